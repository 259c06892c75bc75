"""What runs in the process of one GPU of several, see `engine.team`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.kernel_spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.trust.result import Limit, Result
from pytest_gpuenergy.search.trust.state_evaluation import Bench


class Task(Struct, frozen=True):
    """The evaluation of a state.

    Attributes:
        spec: what it computes.
        objective: what is minimized.
        seed: of the search.
        state: to evaluate.
        ahead: states to compile meanwhile.
        limit: see `Bench.evaluate`.
        emulated: whether the GPUs are.
    """

    spec: KernelSpec
    objective: Metric
    seed: int
    state: State
    ahead: tuple[State, ...] = ()
    limit: Limit | None = None
    emulated: bool = False

    @property
    def title(self) -> str:
        """See `Errand`."""
        return f"{self.spec.name}: {self.state.id}"

    def failed(self, outcome: Literal["timeout", "runtime"], message: str, gpu: str) -> Result:
        """See `Errand`."""
        return Result(
            id=self.state.id,
            outcome=outcome,
            emulated=self.emulated,
            objective=self.objective,
            gpu=gpu,
            message=message,
        )


class GpuProcess:
    """Evaluates states on one GPU, which the parent process has claimed under its power limit.

    Args:
        gpu: as ``--gpu-device`` takes it.
        index: see `open_device`.
    """

    def __init__(self, gpu: str, index: int) -> None:
        self._device = open_device(gpu, index=index)
        self._bench: Bench | None = None

    def is_ready(self) -> bool:
        """True; there is no answer if the GPU cannot be opened."""
        return True

    def evaluate(self, task: Task) -> Result:
        """See `Bench.evaluate`."""
        bench = Bench(task.spec, self._device, task.objective, task.seed)
        if bench != self._bench:  # which may have verified the baseline on other sizes
            self._bench = bench
        bench = self._bench
        bench.prepare([task.state, *task.ahead])
        return bench.evaluate(task.state, task.limit)

    def rest(self) -> None:
        """Keep no context on the GPU, which may be in a mode where only one process has one."""
        self._device.renew()

    def close(self) -> None:
        """End the processes of the GPU."""
        self._device.close()
