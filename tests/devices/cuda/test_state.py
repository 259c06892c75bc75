"""Kernels that keep something from run to run on a real GPU, on a CuPy with the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_cupy import host_gpu, nvml_of_one_card

from pytest_gpuenergy.devices import Binary, CudaDevice, CudaRunner, FoundGpu
from pytest_gpuenergy.devices.cuda import cuda_device as cuda
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Tensor

SIZE = 256
SPACE = Tensor("space", (4,), "float32", "workspace")
KERNEL = Kernel(
    "__global__ void f() {}",
    (Launch("f", (1, 1, 1), (1, 1, 1), ("x", "y", "space")),),
    workspaces=(SPACE,),
)
DOUBLE = Contract(
    "double",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
)
Body = Callable[[Any, Any, Any], None]


class InProcess:
    """A worker that runs in this process."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.pid: int | None = None
        self.methods: list[str] = []

    def start(self) -> None:
        self.pid = 1

    def call(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        del timeout_s
        if self.pid is None:
            self.start()
            self.runner = CudaRunner()
        self.methods.append(method)
        return getattr(self.runner, method)(*arguments)

    def kill(self) -> None:
        self.pid = None


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[InProcess]:
    made: list[InProcess] = []

    def make(*_: Any, **__: Any) -> InProcess:
        made.append(InProcess())
        return made[-1]

    monkeypatch.setattr(cuda, "Worker", make)
    monkeypatch.setattr(cuda, "find_spec", lambda _: object())
    binary = Binary(Path("f.cubin"), {"f": "f"})
    monkeypatch.setattr(CudaDevice, "_binary", lambda *_: binary)
    return made


def verified(body: Body) -> tuple[int, ...]:
    """Return the seeds for which ``body``, which gets x, y and a workspace, was right."""

    def launch(*arguments: Any) -> None:
        x, y, space = (np.asarray(one).view(np.float32) for one in arguments)
        body(x, y, space)

    found: Any = SimpleNamespace(handle=None, name="GPU", uuid="GPU-1", ordinal=0)
    gpu: FoundGpu = found
    with host_gpu(launch):
        return verify_on_device(CudaDevice(nvml_of_one_card(), gpu), KERNEL, DOUBLE).seeds


def right(x: Any, y: Any, _: Any) -> None:
    y[:] = 2 * x


def test_all_runs_of_a_verification_are_made_on_the_same_buffers(workers):
    addresses = set()

    def body(x: Any, y: Any, space: Any) -> None:
        addresses.add(tuple(one.ctypes.data for one in (x, y, space)))
        right(x, y, space)

    assert len(verified(body)) == 3
    assert len(addresses) == 1
    opened, *runs, shut = workers[0].methods
    again = {"begin_relaunch", "relaunch", "fetch"}
    assert (opened, set(runs) - again, shut) == ("open", {"run"}, "shut")
    assert runs.count("run") > 3  # beside those of the seeds, the sparse drawings


def test_workspaces_are_poisoned_differently_before_each_run(workers):
    held = []

    def body(x: Any, y: Any, space: Any) -> None:
        held.append([str(value) for value in space[:2]])
        assert len(np.unique(space[::2])) == 1
        space[:] = 0
        right(x, y, space)

    verified(body)
    assert held[:3] == [["nan", "nan"], ["inf", "-inf"], ["-inf", "inf"]]
    runs = held[: workers[0].methods.count("run")]
    assert all(one != other for one, other in pairwise(runs))


def skips_what_is_finite() -> Body:
    def body(x: Any, y: Any, _: Any) -> None:
        y[:] = np.where(np.isfinite(y), y, 2 * x)

    return body


def counts() -> Body:
    runs = []

    def body(x: Any, y: Any, _: Any) -> None:
        if not runs:
            y[:] = 2 * x
        runs.append(1)

    return body


def remembers_its_input() -> Body:
    results: dict[int, Any] = {}

    def body(x: Any, y: Any, _: Any) -> None:
        y[:] = results.setdefault(x.ctypes.data, 2 * x)

    return body


def never_resets_its_ticket() -> Body:
    tickets = [0]

    def body(x: Any, y: Any, _: Any) -> None:
        tickets[0] += 1
        y[:-1] = 2 * x[:-1]
        if tickets[0] == 1:  # the last of all blocks
            y[-1] = 2 * x[-1]

    return body


def skips_what_looks_right() -> Body:
    def body(x: Any, y: Any, _: Any) -> None:
        if not (np.isfinite(y).all() and np.abs(y).max() < 1000):
            y[:] = 2 * x

    return body


@pytest.mark.parametrize(
    "body",
    [
        skips_what_is_finite,
        counts,
        remembers_its_input,
        never_resets_its_ticket,
        skips_what_looks_right,
    ],
)
@pytest.mark.usefixtures("workers")
def test_a_kernel_with_state_is_wrong_before_it_is_measured(body):
    with pytest.raises(KernelFault, match=r"elements of y .* (wrong|never written)|element of y"):
        verified(body())
