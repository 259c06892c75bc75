"""What the tests of kernels on the host CPU share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import HostRunner, LaunchProfile
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

ELEMENTS = 1 << 14


@pytest.fixture
def small_kernel(tmp_path: Path) -> Callable[..., tuple[Kernel, dict[str, Arena]]]:
    """Make small_kernel(body, block, grid, before): k(const float* x, float* y, int* n), arenas.

    In the body, ``t`` is the thread of its block, ``b`` the block and ``i`` the thread of the grid.
    Each tensor has `ELEMENTS` elements: x is full of ones, y and n of zeros.
    """

    def make(
        body: str, block: int = 64, grid: int = 1, before: str = "", shared_bytes: int = 0
    ) -> tuple[Kernel, dict[str, Arena]]:
        arenas = {}
        for name, dtype in (("x", "float32"), ("y", "float32"), ("n", "int32")):
            tensor = Tensor(name, (ELEMENTS,), dtype, "input" if name == "x" else "output")
            value = np.full(ELEMENTS, name == "x", dtype)
            arenas[name] = Arena.create(tmp_path / name, tensor, value)
        head = "int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t;"
        source = (
            f"{before}\n__global__ void k(const float* x, float* y, int* n) {{ {head}\n{body}\n}}"
        )
        launch = Launch("k", (grid, 1, 1), (block, 1, 1), ("x", "y", "n"), shared_bytes)
        return Kernel(source, (launch,)), arenas

    return make


@pytest.fixture
def check_races(
    runner: HostRunner, small_kernel: Callable[..., tuple[Kernel, dict[str, Arena]]]
) -> Callable[..., tuple[LaunchProfile, ...]]:
    """Make check_races(...), which returns the profile of a `small_kernel` that does not race."""

    def check(*arguments: Any, **named: Any) -> tuple[LaunchProfile, ...]:
        kernel, arenas = small_kernel(*arguments, **named)
        return runner.check_races(kernel, arenas, {}, timeout_s=20.0)

    return check


@pytest.fixture
def run_orders(
    runner: HostRunner, small_kernel: Callable[..., tuple[Kernel, dict[str, Arena]]]
) -> Callable[..., list[dict[str, Any]]]:
    """Make run_orders(...), which returns y and n of a `small_kernel` in each of three orders."""

    def run(
        *arguments: Any, orders: Iterable[int] = range(3), **named: Any
    ) -> list[dict[str, Any]]:
        kernel, arenas = small_kernel(*arguments, **named)
        results = []
        with runner.open(kernel, arenas, {}, timeout_s=20.0) as program:
            for order_seed in orders:
                for name in ("y", "n"):
                    arenas[name].fill(np.zeros(ELEMENTS, arenas[name].tensor.dtype))
                program.run(order_seed=order_seed)
                results.append({name: arenas[name].value() for name in ("y", "n")})
        return results

    return run


@pytest.fixture
def fault_of(check_races: Callable[..., tuple[LaunchProfile, ...]]) -> Callable[..., KernelFault]:
    """Make fault_of(...), which returns the fault that the check finds in a `small_kernel`."""

    def find(*arguments: Any, **named: Any) -> KernelFault:
        with pytest.raises(KernelFault) as caught:
            check_races(*arguments, **named)
        return caught.value

    return find


@pytest.fixture(scope="module")
def runner(host_cache: Path) -> Iterator[HostRunner]:
    host = HostRunner(host_cache, jobs=2)
    yield host
    host.close()


@pytest.fixture
def run(runner: HostRunner, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Make run(source, inputs, outputs={name: (size, dtype)}, ...), which returns the outputs."""

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


@pytest.fixture(scope="module", params=["g++", "clang++"])
def each_compiler(request: pytest.FixtureRequest, host_cache: Path) -> Iterator[HostRunner]:
    """A runner with each compiler that is installed."""
    compiler = shutil.which(request.param)
    if compiler is None:
        pytest.skip(f"{request.param} is not installed")
    host = HostRunner(host_cache, compiler=compiler, jobs=2)
    yield host
    host.close()


@pytest.fixture(scope="module")
def run_by_each_compiler(
    each_compiler: HostRunner, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., np.ndarray]:
    """Make run(source, *inputs, size=..., dtype=...): y from one thread of k(inputs..., y)."""

    def go(source: str, *inputs: np.ndarray, size: int, dtype: str) -> np.ndarray:
        folder = tmp_path_factory.mktemp("arenas")
        arenas = {}
        for k, value in enumerate(inputs):
            tensor = Tensor(f"x{k}", value.shape, str(value.dtype), "input")
            arenas[tensor.name] = Arena.create(folder / tensor.name, tensor, value)
        arenas["y"] = Arena.create(folder / "y", Tensor("y", (size,), dtype, "output"))
        launch = Launch("k", (1, 1, 1), (1, 1, 1), tuple(arenas))
        each_compiler.run(Kernel(source, (launch,)), arenas, {}, timeout_s=20.0)
        return arenas["y"].value()

    return go
