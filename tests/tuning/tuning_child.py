# ruff: noqa: ARG001 -- verify and measure are told more than is needed here
"""What the tests of the search do in a child process, so that TVM stays out of pytest's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from tuning_fakes import FakeDevice, time_by_digest

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.errors import DeviceError, KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.kernels.records import Measured
from pytest_gpuenergy.tuning.metaschedule import SearchSettings
from pytest_gpuenergy.tuning.tuner import Tuner, TuneResult
from pytest_gpuenergy.workloads import CASES, Workload


@dataclass(frozen=True)
class Plan:
    """What to search and what goes wrong; numbers count timings or verifications from 0."""

    folder: Path
    trials: int
    keep: int = 4
    failing: Sequence[int] = ()
    wrong: Sequence[int] = ()
    lost_at: int | None = None
    stop_at: int | None = None
    figures: bool = False
    gpu: str = "NVIDIA H200"


@dataclass
class Log:
    """What was seen of a search."""

    result: TuneResult | None = None
    interrupted: bool = False
    told: list[str] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)


class Child:
    """Made in the child by `pytest_gpuenergy.worker.Worker`."""

    def tune(self, plan: Plan) -> Log:
        """Search case7 with a small population."""
        log, stop = Log(), Event()

        def time_ms(kernel: Kernel) -> float:
            number = len(device.timed) - 1
            if number == plan.stop_at:
                stop.set()
            if number == plan.lost_at:
                raise DeviceError("The GPU is lost.")
            if number in plan.failing:
                raise KernelFault("timeout", "The kernel did not finish within 20 s.")
            return time_by_digest(kernel)

        def verify(device: Device, kernel: Kernel, workload: Workload) -> None:
            log.verified.append(kernel.digest)
            if len(log.verified) - 1 in plan.wrong:
                raise KernelFault("correctness", "1 of 100 elements of output is wrong.")

        def measure(device: Device, kernel: Kernel, workload: Workload) -> Measured:
            time = time_by_digest(kernel)
            return Measured(time, 300.0, 300.0 * time, 700.0)

        device = FakeDevice(time_ms)
        device.name = plan.gpu
        tuner = Tuner(
            device,
            plan.folder,
            plan.keep,
            verify,
            measure if plan.figures else None,
            log.told.append,
            stop,
        )
        settings = SearchSettings(plan.trials, 0, 2, largest_population=8, generations=1)
        try:
            log.result = tuner.tune(CASES["case7"], settings)
        except KeyboardInterrupt:
            log.interrupted = True
        log.timed = device.timed
        return log

    def lower_two_stages(self) -> Kernel:
        """The kernel of B = 2 A, C = B + 1, where B is in memory between two launches."""
        return _lowered(_scheduled(shared=False))

    def lower_shared(self) -> Kernel:
        """The kernel of C = 2 A + 1 through dynamic shared memory."""
        return _lowered(_scheduled(shared=True))

    def imported_intrinsics(self) -> list[str]:
        """Modules of tensor intrinsics that this process has imported."""
        import sys

        return [name for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin")]


def _lowered(module: Any) -> Kernel:
    from pytest_gpuenergy.tuning.lower import cuda_target, to_kernel

    return to_kernel(module, cuda_target("sm_90"), ["input", "result"])


def _scheduled(*, shared: bool) -> Any:
    import tvm
    from tvm import te

    a = te.placeholder((1024,), "float32", "A")
    b = te.compute((1024,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((1024,), lambda i: b[i] + 1.0, name="C")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    blocks = {name: schedule.get_sblock(name) for name in ("B", "C")}
    outer = None
    for name in ("C",) if shared else ("B", "C"):
        outer, inner = schedule.split(schedule.get_loops(blocks[name])[0], [None, 128])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")
    if shared:
        schedule.set_scope(blocks["B"], 0, "shared.dyn")
        schedule.compute_at(blocks["B"], outer)
        inner = schedule.get_loops(blocks["B"])[-1]
        schedule.bind(inner, "threadIdx.x")
    return schedule.mod
