"""What the tests of kernels on the host CPU share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.devices.device import Arena
from pytest_gpuenergy.devices.emulated.host import HostRunner
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.workloads import Tensor


@pytest.fixture(scope="module")
def runner(host_cache: Path) -> Iterator[HostRunner]:
    host = HostRunner(host_cache, jobs=2)
    yield host
    host.close()


@pytest.fixture
def run(runner: HostRunner, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """run(source, inputs, outputs={name: (size, dtype)}, ...) -> outputs, by name."""

    def go(
        source,
        inputs=None,
        outputs=None,
        *,
        grid=1,
        block=1,
        arguments=None,
        shared_bytes=0,
        scalars=(),
        order_seed=0,
        timeout_s=20.0,
        entry="k",
    ):
        inputs, outputs = inputs or {}, outputs or {}
        arenas = {}
        for name, value in inputs.items():
            tensor = Tensor(name, value.shape, str(value.dtype), "input")
            arenas[name] = Arena.create(tmp_path / name, tensor, value)
        for name, (size, dtype) in outputs.items():
            arenas[name] = Arena.create(tmp_path / name, Tensor(name, (size,), dtype, "output"))
        names = arguments or (*inputs, *outputs, *(scalar.name for scalar in scalars))
        launch = Launch(entry, _dims(grid), _dims(block), tuple(names), shared_bytes)
        kernel = Kernel(source, (launch,))
        values = {scalar.name: scalar for scalar in scalars}
        runner.run(kernel, arenas, values, timeout_s=timeout_s, order_seed=order_seed)
        return {name: arenas[name].value() for name in outputs}

    return go


def _dims(size: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return size if isinstance(size, tuple) else (size, 1, 1)
