"""Evaluates the states of a search: in this process, or on several GPUs at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.engine import CardScales, GpuWorker, Team
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.running.kernel_folder import KernelFolder
from pytest_gpuenergy.search.running.state_evaluation import SearchBench
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.validation.result import PowerCutoff, Result
from pytest_gpuenergy.support import DeviceError


class Evaluator(Protocol):
    """Evaluates states of one spec, for one objective."""

    @property
    def bench(self) -> SearchBench:
        """The bench of a GPU in this process, for everything except the evaluation of states."""
        ...

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of all GPUs, in the order of ``--gpus``."""
        ...

    @property
    def working(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that are still used."""
        ...

    def start(
        self, turn: int, state: State, ahead: Sequence[State] = (), limit: PowerCutoff | None = None
    ) -> Future[Result]:
        """Start to evaluate a state.

        The future has the result, or the error with which the search must end; see
        `SearchBench.evaluate`.

        Args:
            turn: the number of the evaluation; the GPUs take turns.
            state: the state to evaluate.
            ahead: the states to compile meanwhile, because they may follow.
            limit: the time beyond which the power need not be measured.
        """
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Reserve the GPU of `bench` for this process, so that no other one has a context there.

        Wait first for the evaluations that were started there.
        """
        ...

    def leave(self, gpu: str, why: str) -> None:
        """Stop using a GPU.

        Args:
            gpu: the UUID of the GPU.
            why: the reason, as a clause.

        Raises:
            DeviceError: it is the last GPU.
        """
        ...


@dataclass(frozen=True)
class OwnProcess:
    """Evaluates states on one GPU, while the search waits.

    Attributes:
        bench: the bench of this GPU.
    """

    bench: SearchBench

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUID of this GPU."""
        return (self.bench.device.uuid,)

    @property
    def working(self) -> tuple[str, ...]:
        """The UUID of this GPU."""
        return self.gpus

    def start(
        self,
        turn: int,  # noqa: ARG002 -- there is one GPU
        state: State,
        ahead: Sequence[State] = (),
        limit: PowerCutoff | None = None,
    ) -> Future[Result]:
        """Evaluate a state and raise its errors before returning."""
        done: Future[Result] = Future()
        done.set_result(self.bench.evaluate(state, limit, ahead))
        return done

    def alone(self) -> AbstractContextManager[None]:
        """Do nothing, because there is no other process."""
        return nullcontext()

    def leave(self, gpu: str, why: str) -> None:
        """Raise the error that ends the search."""
        raise DeviceError(f"{self.bench.device.name} ({gpu}) cannot be used, because {why}.")


@dataclass(frozen=True)
class TeamEvaluator:
    """Evaluates states on several GPUs, each with a process of its own.

    Attributes:
        team: the team of GPUs.
        benches: the benches of the team's members in their order, in this process.
    """

    team: Team
    benches: tuple[SearchBench, ...]
    _prepared: set[str] = field(default_factory=set)

    @property
    def bench(self) -> SearchBench:
        """The bench of the first GPU that is used."""
        return self.benches[self.team.members.index(self.team.first)]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of all GPUs of the team."""
        return tuple(member.uuid for member in self.team.members)

    @property
    def working(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that are used."""
        return self.team.working

    def start(
        self, turn: int, state: State, ahead: Sequence[State] = (), limit: PowerCutoff | None = None
    ) -> Future[Result]:
        """Hand a state to the team; only one process compiles each state ahead."""
        new = tuple(state for state in ahead if state.id not in self._prepared)
        self._prepared.update(prepared.id for prepared in (state, *new))
        bench = self.benches[0]
        emulated = bench.device.emulated
        task = EvaluationTask(bench.spec, bench.objective, bench.seed, state, new, limit, emulated)
        return self.team.start(turn, task)

    def alone(self) -> AbstractContextManager[None]:
        """Let the process of the first GPU that is used rest."""
        return self.team.first.resting()

    def leave(self, gpu: str, why: str) -> None:
        """Stop using a GPU."""
        self.team.leave(gpu, why)


class EvaluationTask(Struct, frozen=True):
    """The evaluation of a state, as it is sent to the process of a GPU; see `Evaluator.start`."""

    spec: KernelSpec
    objective: Metric
    seed: int
    state: State
    ahead: tuple[State, ...] = ()
    limit: PowerCutoff | None = None
    emulated: bool = False

    @property
    def title(self) -> str:
        """See `GpuTask`."""
        return f"{self.spec.name}: {self.state.id}"

    def run(self, gpu: GpuWorker) -> Result:
        """Evaluate the state, see `SearchBench.evaluate`."""
        bench = SearchBench(self.spec, gpu.device, self.objective, self.seed)
        bench = gpu.keep(bench, lambda _: bench)  # which has drawn and verified the unlisted sizes
        return bench.evaluate(self.state, self.limit, self.ahead)

    def failed(self, outcome: Literal["timeout", "runtime"], message: str, gpu: str) -> Result:
        """See `GpuTask`."""
        return Result(
            id=self.state.id,
            outcome=outcome,
            emulated=self.emulated,
            objective=self.objective,
            gpu=gpu,
            message=message,
        )


class BaselineScales:
    """Scales the costs of variants by those of the baseline on the same GPU, see `CardScales`."""

    def __init__(self, evaluator: Evaluator, folder: KernelFolder) -> None:
        self._evaluator = evaluator
        self._folder = folder
        self._scales = CardScales[Result](
            evaluator, "baseline", lambda result: (result.cost,) if result.cost else ()
        )

    def measure(self, first: Result | None) -> Result:
        """Evaluate the baseline on all GPUs that have no result of it, at the same time.

        ``first`` is its result on the GPU where the search began, which is returned; without one,
        the new result on the first GPU is, even if it is a failure. Another GPU is no longer used
        if the baseline fails on it.

        Raises:
            DeviceError: no GPU is left.
            InputError: the reference cannot be computed.
        """
        earlier = {} if first is None else {**self._folder.earlier_baselines(), first.gpu: first}
        evaluator = self._evaluator
        pending = [
            evaluator.start(place, evaluator.bench.spec.baseline)
            for place, gpu in enumerate(evaluator.gpus)
            if gpu in evaluator.working and gpu not in earlier
        ]
        results = [future.result() for future in pending]
        if first is None:
            first, *results = results
        if first.cost is None:
            return first
        for result in results:
            if result.cost is not None:
                self._folder.keep_baseline(result)
        self._scales.compare([*earlier.values(), *results, first], first)
        return first

    def scaled(self, result: Result) -> Result:
        """Return a result with the scale of its GPU."""
        (scale,) = self._scales.of(result.gpu) or (1.0,)
        return replace(result, scale=scale)
