"""The search of one kernel: evaluate the baseline and its variants, then confirm the best."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.record import RunInfo
from pytest_gpuenergy.search.confirmation import Confirmation, by_cost
from pytest_gpuenergy.search.control import Control
from pytest_gpuenergy.search.evaluation import Bench
from pytest_gpuenergy.search.evaluator import Evaluator
from pytest_gpuenergy.search.explorer import Explorer, Proposal
from pytest_gpuenergy.search.folder import BASELINE, SPEC_JSON, KernelFolder
from pytest_gpuenergy.search.limit import Limit, limit_of
from pytest_gpuenergy.search.listings import Listings
from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.result import Result
from pytest_gpuenergy.search.scales import Scales
from pytest_gpuenergy.search.search_state import (
    Gain,
    Identity,
    Node,
    SearchState,
    identity_of_spec,
)
from pytest_gpuenergy.search.source.text_checks import not_understood, other_types
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.search.times import Times
from pytest_gpuenergy.search.trace import candidate_diff, trace
from pytest_gpuenergy.support import InputError, emulated_mark

_AHEAD = 2
"""States that are compiled while one is evaluated."""


@dataclass(frozen=True)
class Options:
    """What a search was asked for, apart from its spec.

    Attributes:
        budget: variants to evaluate, those of earlier runs included.
        gpus: as ``--gpus`` takes them.
        powercap: the power limit, as ``--powercap`` takes it.
        smclock: the clock, as ``--smclock`` takes it.
    """

    budget: int
    gpus: str
    powercap: str
    smclock: str = "current"


def identity_of(bench: Bench, strategy: Mapping[str, float]) -> Identity:
    """What a search on this bench must have in common with one that it continues."""
    device: Device = bench.device
    enforced = enforced_setpoint(device)
    return Identity(
        spec=identity_of_spec(bench.spec),
        gpu=device.name,
        emulated=device.emulated,
        power_limit_w=enforced.power_limit_w,
        sm_clock_mhz=enforced.sm_clock_mhz,
        objective=bench.objective,
        seed=bench.seed,
        strategy=dict(strategy),
    )


@dataclass
class _Trial:
    """A proposal on its way.

    Attributes:
        proposal: of the explorer.
        result: None before it is on disk.
        pending: the evaluation; None of a state that is on disk since an earlier run.
    """

    proposal: Proposal
    result: Result | None
    pending: Future[Result] | None = None

    @property
    def state(self) -> State:
        return self.proposal.application.state


@dataclass
class Search:
    """A search in one folder. What is on disk there is not evaluated again.

    As many variants as GPUs are evaluated at the same time. Each result is written when it comes,
    but the explorer learns them in the order of its proposals, whatever takes how long. So what it
    proposes depends on the results alone.

    Attributes:
        evaluator: evaluates states.
        folder: of the kernel.
        explorer: chooses the states.
        options: what was asked for.
        run_info: of this run.
        tell: called with lines of progress.
        stop: set by the caller to end early.
        state: of the search.
        llm: proposals of a language model, which are among the explorer's moves; None without.
    """

    evaluator: Evaluator
    folder: KernelFolder
    explorer: Explorer
    options: Options
    run_info: RunInfo
    tell: Callable[[str], None]
    stop: Event
    state: SearchState = field(init=False)
    llm: LlmMoves | None = None

    def __post_init__(self) -> None:
        earlier = self.folder.earlier
        width = earlier.width if earlier and earlier.nodes else len(self.evaluator.gpus)
        identity = identity_of(self.bench, self.explorer.settings)
        self.state = SearchState(identity=identity, width=width)
        self._states: dict[str, State] = {}
        self._scales = Scales(self.evaluator, self.folder)
        self._confirmation = Confirmation(
            self.evaluator, self.folder, self._states, self.tell, self.stop.is_set
        )
        self._listings = Listings(self.bench)
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="thoughts")
        self._thoughts: list[Future[None]] = []
        note = not_understood(self.bench.spec)
        self._notes = [note] if note else []
        self._times = Times()
        self._timed = self._times.timed
        self._proposed = 0

    @property
    def bench(self) -> Bench:
        """Of this process."""
        return self.evaluator.bench

    def run(self) -> SearchState:
        """Search until the budget is spent or nothing is left to try, and confirm the best.

        Raises:
            InputError: the baseline is wrong or fails, or a file is damaged.
            DeviceError: the device does not respond.
            OutputError: a result cannot be written.
            KeyboardInterrupt: ``stop`` was set; everything evaluated so far is on disk.
        """
        self.folder.event("began", id=self.run_info.run_id, builds=self.options.budget)
        with self._listings, self._aside:
            self._baseline()
            self._explore()
        if self.stop.is_set():
            raise self._stopped()
        self._confirm()
        return self.state

    def _explore(self) -> None:
        """Evaluate variants, as many at the same time as the search is wide."""
        trials: deque[_Trial] = deque()
        while True:
            while len(trials) < self.state.width and not self.stop.is_set():
                trial = self._next(len(trials))
                if trial is None:
                    break
                trials.append(trial)
            if not trials:
                return
            result = self._first_result(trials)
            trial = trials.popleft()
            if trial.pending is not None:
                number = f"{self.state.builds + 1}/{self.options.budget}"
                self.tell(f"{self.bench.spec.name} {number}: {_told(trial.proposal, result)}")
            self._add(trial.state, result, trial.proposal)

    def _next(self, running: int) -> _Trial | None:
        """Begin the next variant; None if there is none, for now or for good."""
        if self.state.builds + running >= self.options.budget:
            return None
        with self._timed("propose"):
            wait(self._thoughts)
            self._thoughts.clear()
            proposal = self.explorer.propose()
        if proposal is None:
            return None
        state = proposal.application.state
        known = self.folder.known(state.id)
        pending = None
        if known is None:
            with self._timed("propose"):
                ahead = self.explorer.foreseen(_AHEAD)
            self._listings.begin(state)
            if not self.bench.device.emulated:  # which has no processor to spare
                self._thoughts.append(self._aside.submit(self.explorer.think, state))
            with self._timed("evaluate"):
                pending = self.evaluator.start(self._proposed, state, ahead, self._limit())
        self._proposed += 1
        return _Trial(proposal, known, pending)

    def _first_result(self, trials: Sequence[_Trial]) -> Result:
        """Wait for the first trial, and write the results of all that come meanwhile."""
        while True:
            for trial in trials:
                if trial.pending is not None and trial.result is None and trial.pending.done():
                    trial.result = self._scales.scaled(trial.pending.result())
                    self._keep(trial.state.id, trial.state, trial.result, trial.proposal)
            if (found := trials[0].result) is not None:
                return found
            with self._timed("evaluate"):
                wait(_pending(trials), return_when=FIRST_COMPLETED)

    def _stopped(self) -> KeyboardInterrupt:
        self.tell(f"stopped; everything evaluated is kept in {self.folder.path}")
        return KeyboardInterrupt()

    def _baseline(self) -> None:
        spec = self.bench.spec
        known = self.folder.known(BASELINE)
        if known is None:
            self.tell(f"{spec.name}: evaluating the baseline")
            if self._notes:
                self.tell(f"{spec.name}: {self._notes[0]}")
        with self._timed("evaluate"):
            result = self._scales.measure(known)
        if result.cost is None:
            why = str(result.message)
            if result.outcome == "correctness" and " wrong " in why:
                why = (
                    f"{why.removesuffix('.')}; mend it or its reference, or state a tolerance in "
                    "the spec if it is exact enough."
                )
            types = other_types(spec)
            why = f"{why.removesuffix('.')}. {types}" if types else why
            raise InputError(
                f"The baseline of {spec.name} cannot be used ({result.outcome}): {why}"
            )
        if known is None:
            self._keep(BASELINE, spec.baseline, result, None)
        self._add(spec.baseline, result, None)

    def _keep(self, place: str, state: State, result: Result, proposal: Proposal | None) -> None:
        up = ".." if place == BASELINE else "../.."
        control = Control(
            spec=f"{up}/{SPEC_JSON}",
            state=state,
            objective=self.bench.objective,
            seed=self.bench.seed,
            gpus=self.options.gpus,
            place=self.evaluator.gpus.index(result.gpu),
            powercap=self.options.powercap,
            smclock=self.options.smclock,
            **_origin(proposal),
        )
        with self._timed("listings"):
            kernel, listings = self._listings.of(state)
        diff = "" if proposal is None else candidate_diff(proposal.parent, state)
        run = replace(self.run_info, gpu_uuid=result.gpu)
        with self._timed("write"):
            self.folder.keep(place, control, run, kernel, listings, result, diff)
        self._times.add(result)

    def _add(self, state: State, result: Result, proposal: Proposal | None) -> None:
        """Add a result to the graph, on disk and for the explorer."""
        node = Node(
            id=state.id,
            **_origin(proposal),
            outcome=result.outcome,
            cost=result.cost,
            time_ms=result.time_ms,
        )
        self._states[state.id] = state
        nodes = (*self.state.nodes, node)
        self.state = replace(
            self.state,
            builds=len(nodes) - 1,
            nodes=nodes,
            incumbent=by_cost(nodes)[0].id,
        )
        self.folder.event("variant" if proposal else BASELINE, **_fields(node))
        if self.llm is not None:
            self.llm.learn(node, result)
        with self._timed("learn, profile"):
            self.explorer.learn(state, result)
        earlier = self.folder.earlier
        if earlier is None or len(nodes) > len(earlier.nodes):
            self._write()

    def _confirm(self) -> None:
        """Compare the best variants with the baseline, until one is better."""
        baseline, gains = self.bench.spec.baseline.id, list[Gain]()
        with self._timed("confirm"):
            for gain in self._confirmation.gains(self.state.nodes):
                if gain is None:
                    raise self._stopped()
                gains.append(replace(gain, turns=()))
                self.folder.event("compared", **_fields(gains[-1]))
        best = next((gain.id for gain in gains if gain.accepted), baseline)
        self.state = replace(self.state, incumbent=best, finished=True, gains=tuple(gains))
        self.folder.link_best(BASELINE if best == baseline else best)
        self.folder.event("finished", id=best, builds=self.state.builds)
        self._write()

    def _limit(self) -> Limit | None:
        """Beyond what time power is not measured; on the emulated GPU that takes no time anyway."""
        bench = self.bench
        return None if bench.device.emulated else limit_of(self.state.nodes, bench.objective)

    def _write(self) -> None:
        with self._timed("write"):
            self.state = replace(self.state, graph=self.explorer.graph())
            self.folder.write_state(self.state)
        lines = [
            *self._notes,
            *(() if self.llm is None else self.llm.lines()),
            *self._times.lines(),
        ]
        self.folder.write_trace(trace(self.bench.spec, self.state, lines))


def _pending(trials: Iterable[_Trial]) -> list[Future[Result]]:
    return [one.pending for one in trials if one.pending is not None and one.result is None]


def _origin(proposal: Proposal | None) -> dict[str, Any]:
    """From which state, and how, a state was made; nothing of the baseline."""
    if proposal is None:
        return {"parent": None}
    application = proposal.application
    return {"parent": proposal.parent.id, "move": application.move, "what": application.what}


def _fields(record: Node | Gain) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _told(proposal: Proposal, result: Result) -> str:
    what = f"{proposal.application.move} {proposal.application.what}"
    if result.cost is None:
        return f"{what}: {result.outcome}: {result.message}"
    metric = result.objective
    return f"{what}: {result.cost:.4g} {metric.unit}{emulated_mark(result.emulated)}"
