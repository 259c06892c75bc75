"""Where a search has its states evaluated: in this process, or on several GPUs at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.engine import Team
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.running.kernel_folder import KernelFolder
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.trust.result import Limit, Result
from pytest_gpuenergy.search.trust.state_evaluation import Bench
from pytest_gpuenergy.support import DeviceError


class Evaluator(Protocol):
    """Evaluates states of one spec, for one objective."""

    @property
    def bench(self) -> Bench:
        """Of a GPU that is used, in this process: for all but the evaluation of states."""
        ...

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of all GPUs, in the order of ``--gpus``."""
        ...

    @property
    def working(self) -> tuple[str, ...]:
        """Those of `gpus` that are still used."""
        ...

    def start(
        self, turn: int, state: State, ahead: Sequence[State] = (), limit: Limit | None = None
    ) -> Future[Result]:
        """Have a state evaluated.

        The future has the result, or the error with which the search must end; see
        `Bench.evaluate`.

        Args:
            turn: the GPU is that of this number, counted on beyond the last one.
            state: to evaluate.
            ahead: states to compile meanwhile, because they may follow.
            limit: see `Bench.evaluate`.
        """
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Have the GPU of `bench` for this process alone: no other one keeps a context there.

        Waits for the evaluations that were started there before.
        """
        ...

    def leave(self, gpu: str, why: str) -> None:
        """Do not use a GPU any more.

        Args:
            gpu: its UUID.
            why: a clause.

        Raises:
            DeviceError: it is the last one.
        """
        ...


@dataclass(frozen=True)
class OwnProcess:
    """Evaluates states on one GPU, while the search waits.

    Attributes:
        bench: of this GPU.
    """

    bench: Bench

    @property
    def gpus(self) -> tuple[str, ...]:
        """This GPU alone."""
        return (self.bench.device.uuid,)

    @property
    def working(self) -> tuple[str, ...]:
        """As `gpus`."""
        return self.gpus

    def start(
        self,
        turn: int,  # noqa: ARG002 -- there is one GPU
        state: State,
        ahead: Sequence[State] = (),
        limit: Limit | None = None,
    ) -> Future[Result]:
        """Evaluate a state at once; errors are raised here."""
        self.bench.prepare([state, *ahead])
        done: Future[Result] = Future()
        done.set_result(self.bench.evaluate(state, limit))
        return done

    def alone(self) -> AbstractContextManager[None]:
        """Nothing: there is no other process."""
        return nullcontext()

    def leave(self, gpu: str, why: str) -> None:
        """Raise what ends the search."""
        raise DeviceError(f"{self.bench.device.name} ({gpu}) cannot be used, because {why}.")


@dataclass(frozen=True)
class TeamEvaluator:
    """A team that evaluates the states of one spec.

    Attributes:
        team: of GPUs.
        benches: of the members in their order, in this process.
    """

    team: Team
    benches: tuple[Bench, ...]
    _prepared: set[str] = field(default_factory=set)

    @property
    def bench(self) -> Bench:
        """Of the first GPU that is used."""
        return self.benches[self.team.members.index(self.team.first)]

    @property
    def gpus(self) -> tuple[str, ...]:
        """All of the team."""
        return tuple(member.uuid for member in self.team.members)

    @property
    def working(self) -> tuple[str, ...]:
        """Those that are used."""
        return self.team.working

    def start(
        self, turn: int, state: State, ahead: Sequence[State] = (), limit: Limit | None = None
    ) -> Future[Result]:
        """Hand a state to the team; each one is compiled ahead by one process only."""
        new = tuple(one for one in ahead if one.id not in self._prepared)
        self._prepared.update(one.id for one in (state, *new))
        bench = self.benches[0]
        emulated = bench.device.emulated
        task = Task(bench.spec, bench.objective, bench.seed, state, new, limit, emulated)
        return self.team.start(turn, task)

    def alone(self) -> AbstractContextManager[None]:
        """Let the process of the first GPU that is used rest."""
        return self.team.first.resting()

    def leave(self, gpu: str, why: str) -> None:
        """Use a GPU no more."""
        [member] = [one for one in self.team.members if one.uuid == gpu]
        name = self.benches[0].device.name
        self.team.leave(member, DeviceError(f"{name} ({gpu}) cannot be used, because {why}."))


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


class Scales:
    """How the figures of each GPU compare with those of the GPU where the search began.

    Cards of one model differ by some percent in time and power. What a variant takes is therefore
    divided by what the baseline takes on the same card, and multiplied by what it takes on the
    first one.

    Args:
        evaluator: of the search.
        folder: where baselines are kept.
    """

    def __init__(self, evaluator: Evaluator, folder: KernelFolder) -> None:
        self._evaluator = evaluator
        self._folder = folder
        self._scales: dict[str, float] = {}

    def measure(self, first: Result | None) -> Result:
        """Evaluate the baseline on all GPUs where that is missing, at the same time.

        A GPU is used no more if the baseline fails on it and not on the first one.

        Args:
            first: the baseline on the GPU where the search began; None if it begins now.

        Returns:
            ``first``, or the result on the first GPU now, which may be a failure.

        Raises:
            DeviceError: no GPU is left.
            InputError: the reference cannot be computed.
        """
        known = {} if first is None else {**self._folder.known_baselines(), first.gpu: first}
        found = self._evaluated(known)
        if first is None:
            first, *found = found
        if first.cost is None:
            return first
        for result in found:
            if result.cost is not None:
                self._folder.keep_baseline(result)
            elif result.gpu in self._evaluator.working:
                why = f"the baseline fails there ({result.outcome}): {result.message}"
                self._evaluator.leave(result.gpu, why.removesuffix("."))
        self._scales = {
            one.gpu: first.cost / one.cost for one in [*known.values(), *found] if one.cost
        } | {first.gpu: 1.0}
        return first

    def scaled(self, result: Result) -> Result:
        """A result with the scale of its GPU."""
        return replace(result, scale=self._scales.get(result.gpu, 1.0))

    def _evaluated(self, known: dict[str, Result]) -> list[Result]:
        """The baseline on the GPUs where it is not known."""
        evaluator = self._evaluator
        baseline = evaluator.bench.spec.baseline
        pending = [
            evaluator.start(place, baseline)
            for place, gpu in enumerate(evaluator.gpus)
            if gpu in evaluator.working and gpu not in known
        ]
        return [future.result() for future in pending]
