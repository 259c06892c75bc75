"""Searches one kernel: evaluates the baseline and its variants, then confirms the best."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.record import Metric, RunInfo
from pytest_gpuenergy.search.analysis.text_checks import not_understood, other_types
from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.running.confirmation import Confirmation, by_cost
from pytest_gpuenergy.search.running.evaluators import BaselineScales, Evaluator
from pytest_gpuenergy.search.running.explorer import GraphExplorer, NextMove
from pytest_gpuenergy.search.running.kernel_folder import (
    BASELINE,
    SPEC_JSON,
    Control,
    KernelFolder,
    SearchState,
)
from pytest_gpuenergy.search.running.search_trace import Times, candidate_diff, trace
from pytest_gpuenergy.search.running.state_evaluation import SearchBench
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.strategy.search_parameters import SearchParameters
from pytest_gpuenergy.search.validation.result import Result, SearchNode, VariantGain, power_cutoff
from pytest_gpuenergy.support import InputError, KernelFault, emulated_mark

_COMPILED_AHEAD = 2
"""The number of states that are compiled ahead while one is evaluated."""

_KernelAndListings = tuple[AnyKernel | None, Mapping[str, str]]
"""The kernel of a state, or None if there can be none, and its compiler listings, if any."""


@dataclass(frozen=True)
class KernelSearchSettings:
    """The settings of searches.

    Attributes:
        outdir: the folder of all searches.
        budget: the number of variants to evaluate, including those of earlier runs.
        gpus: the GPUs, as ``--gpus`` takes them.
        powercap: the power limit, as ``--powercap`` takes it.
        smclock: the clock, as ``--smclock`` takes it.
        objective: the metric to minimize.
        seed: the seed of the searches.
        parameters: the parameters of the strategy.
        resume: whether to continue existing searches.
    """

    outdir: Path
    budget: int
    gpus: str
    powercap: str
    smclock: str
    objective: Metric
    seed: int
    parameters: SearchParameters
    resume: bool = False


@dataclass
class _Trial:
    """A move whose resulting state is being evaluated.

    Attributes:
        next_move: the move.
        result: the result, once it is on disk.
        pending: the evaluation; None if an earlier run has written the result.
        state: the resulting state.
    """

    next_move: NextMove
    result: Result | None
    pending: Future[Result] | None = None

    @property
    def state(self) -> State:
        return self.next_move.application.state


@dataclass
class KernelSearch:
    """A search in one folder. States whose results are on disk are not evaluated again.

    As many variants are evaluated at the same time as there are GPUs. Each result is written when
    it arrives, but the explorer learns the results in the order of its choices. Its choices
    therefore depend on the results alone, not on how long each evaluation took.

    Attributes:
        evaluator: evaluates states on the GPUs.
        folder: the folder of the search.
        explorer: chooses the states.
        settings: the settings of all searches of the command.
        run_info: the record of the run, which is written beside each result.
        tell: called with lines of progress.
        stop: set by the caller to end the search early.
        llm: the moves of a language model, which are among the explorer's; None without one.
        state: the state of the search, as it is stored.
    """

    evaluator: Evaluator
    folder: KernelFolder
    explorer: GraphExplorer
    settings: KernelSearchSettings
    run_info: RunInfo
    tell: Callable[[str], None]
    stop: Event
    llm: LlmMoves | None = None
    state: SearchState = field(init=False)

    def __post_init__(self) -> None:
        earlier = self.folder.earlier
        width = earlier.width if earlier and earlier.nodes else len(self.evaluator.gpus)
        self.state = SearchState(identity=self.folder.identity, width=width)
        self._states: dict[str, State] = {}
        self._scales = BaselineScales(self.evaluator, self.folder)
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="listings")
        self._listings: dict[str, Future[_KernelAndListings]] = {}
        self._background = ThreadPoolExecutor(1, thread_name_prefix="precompute")
        self._precomputing: list[Future[None]] = []
        self._parse_note = not_understood(self.bench.spec)
        self._times = Times()
        self._timed = self._times.timed
        self._proposed = 0

    @property
    def bench(self) -> SearchBench:
        """The bench of this process."""
        return self.evaluator.bench

    def run(self) -> SearchState:
        """Search until the budget is spent or nothing is left to try, and confirm the best.

        Raises:
            InputError: the baseline is wrong or fails, or a file is damaged.
            DeviceError: the device does not respond.
            OutputError: a result cannot be written.
            KeyboardInterrupt: ``stop`` was set; everything evaluated so far is on disk.
        """
        self.folder.event("began", id=self.run_info.run_id, builds=self.settings.budget)
        with self._background:
            try:
                self._evaluate_baseline()
                self._explore()
            finally:
                self._compiler.shutdown(wait=False, cancel_futures=True)
        if self.stop.is_set():
            raise self._announce_interrupt()
        self._confirm()
        return self.state

    def _evaluate_baseline(self) -> None:
        """Evaluate the baseline on each GPU, unless an earlier run has done so."""
        spec = self.bench.spec
        earlier = self.folder.earlier_result(BASELINE)
        if earlier is None:
            self.tell(f"{spec.name}: evaluating the baseline")
            if self._parse_note:
                self.tell(f"{spec.name}: {self._parse_note}")
        with self._timed("evaluate"):
            result = self._scales.measure(earlier)
        if result.cost is None:
            reason = str(result.message)
            if result.has_wrong_values:
                reason = (
                    f"{reason.removesuffix('.')}; fix the kernel or its reference, or state a "
                    "tolerance in the spec if it is exact enough."
                )
            types = other_types(spec)
            reason = f"{reason.removesuffix('.')}. {types}" if types else reason
            raise InputError(
                f"The baseline of {spec.name} cannot be used ({result.outcome}): {reason}"
            )
        if earlier is None:
            self._write_result(BASELINE, spec.baseline, result, None)
        self._record_node(spec.baseline, result, None)

    def _explore(self) -> None:
        """Evaluate variants, as many at the same time as the search is wide."""
        trials: deque[_Trial] = deque()
        while True:
            while len(trials) < self.state.width and not self.stop.is_set():
                trial = self._start_next(len(trials))
                if trial is None:
                    break
                trials.append(trial)
            if not trials:
                return
            self._write_arrived_results(trials)
            while trials[0].result is None:
                pending = [trial.pending for trial in trials if trial.pending and not trial.result]
                with self._timed("evaluate"):
                    wait(pending, return_when=FIRST_COMPLETED)
                self._write_arrived_results(trials)
            trial = trials.popleft()
            assert trial.result is not None
            if trial.pending is not None:
                number = f"{self.state.builds + 1}/{self.settings.budget}"
                application, result = trial.next_move.application, trial.result
                finding = f"{result.outcome}: {result.message}"
                if result.cost is not None:
                    unit = f"{result.objective.unit}{emulated_mark(result.emulated)}"
                    assumed = "" if result.assumed_power_w is None else ", with an assumed power"
                    finding = f"{result.cost:.4g} {unit}{assumed}"
                label = f"{application.move} {application.what}"
                self.tell(f"{self.bench.spec.name} {number}: {label}: {finding}")
            self._record_node(trial.state, trial.result, trial.next_move)

    def _start_next(self, running: int) -> _Trial | None:
        """Start the trial of the next variant; return None if there is none now or none at all."""
        if self.state.builds + running >= self.settings.budget:
            return None
        with self._timed("propose"):
            wait(self._precomputing)
            self._precomputing.clear()
            next_move = self.explorer.propose()
        if next_move is None:
            return None
        state = next_move.application.state
        earlier = self.folder.earlier_result(state.id)
        pending = None
        if earlier is None:
            with self._timed("propose"):
                ahead = self.explorer.likely_next(_COMPILED_AHEAD)
            self._listings[state.id] = self._compiler.submit(self._kernel_and_listings, state)
            limit = None
            if not self.bench.device.emulated:  # an emulated one needs this processor itself
                job = self._background.submit(self.explorer.precompute, state)
                self._precomputing.append(job)
                limit = power_cutoff(self.state.nodes, self.bench.objective)
            with self._timed("evaluate"):
                pending = self.evaluator.start(self._proposed, state, ahead, limit)
        self._proposed += 1
        return _Trial(next_move, earlier, pending)

    def _write_arrived_results(self, trials: Iterable[_Trial]) -> None:
        """Write the results that have arrived."""
        for trial in trials:
            if trial.pending is not None and trial.result is None and trial.pending.done():
                trial.result = self._scales.scaled(trial.pending.result())
                self._write_result(trial.state.id, trial.state, trial.result, trial.next_move)

    def _write_result(
        self, folder_name: str, state: State, result: Result, next_move: NextMove | None
    ) -> None:
        """Write the result of a state, and all that belongs to it, into the folder of the state."""
        root = ".." if folder_name == BASELINE else "../.."
        gpu_index = self.evaluator.gpus.index(result.gpu)
        control = Control(
            spec=f"{root}/{SPEC_JSON}",
            state=state,
            objective=self.bench.objective,
            seed=self.bench.seed,
            gpus=self.settings.gpus,
            place=gpu_index,
            powercap=self.settings.powercap,
            smclock=self.settings.smclock,
            **_origin(next_move),
        )
        with self._timed("listings"):
            pending = self._listings.pop(state.id, None)
            compiled = self._kernel_and_listings(state) if pending is None else pending.result()
            kernel, listings = compiled
        diff = "" if next_move is None else candidate_diff(next_move.parent, state)
        run = replace(self.run_info, gpu_uuid=result.gpu)
        with self._timed("write"):
            self.folder.keep(folder_name, control, run, kernel, listings, result, diff)
        self._times.add(result)

    def _kernel_and_listings(self, state: State) -> _KernelAndListings:
        """Return the kernel of a state with the first set of sizes, and its listings."""
        kernel: AnyKernel | None = None
        listings: Mapping[str, str] = {}
        with suppress(KernelFault):  # the result reports the fault
            kernel = kernel_of(self.bench.spec, state, self.bench.spec.sizes[0])
            listings = self.bench.device.listings(kernel)
        return kernel, listings

    def _record_node(self, state: State, result: Result, next_move: NextMove | None) -> None:
        """Record a state and its result: in the search's state, on disk, and in the explorer."""
        node = SearchNode(
            id=state.id,
            **_origin(next_move),
            outcome=result.outcome,
            cost=result.cost,
            time_ms=result.time_ms,
            assumed=result.assumed_power_w is not None,
        )
        self._states[state.id] = state
        nodes = (*self.state.nodes, node)
        self.state = replace(
            self.state, builds=len(nodes) - 1, nodes=nodes, incumbent=by_cost(nodes)[0].id
        )
        self.folder.event("variant" if next_move else BASELINE, **_fields(node))
        if self.llm is not None:
            self.llm.learn(node, result)
        with self._timed("learn, profile"):
            self.explorer.learn(state, result)
        earlier = self.folder.earlier
        if earlier is None or len(nodes) > len(earlier.nodes):
            self._write_state()

    def _confirm(self) -> None:
        """Compare the best variants with the baseline, until one is better."""
        baseline, gains = self.bench.spec.baseline.id, list[VariantGain]()
        confirmation = Confirmation(
            self.evaluator, self.folder, self._states, self.tell, self.stop.is_set
        )
        with self._timed("confirm"):
            for gain in confirmation.gains(self.state.nodes):
                if gain is None:
                    raise self._announce_interrupt()
                gains.append(replace(gain, turns=()))
                self.folder.event("compared", **_fields(gains[-1]))
        best = next((gain.id for gain in gains if gain.accepted), baseline)
        self.state = replace(self.state, incumbent=best, finished=True, gains=tuple(gains))
        self.folder.link_best(BASELINE if best == baseline else best)
        self.folder.event("finished", id=best, builds=self.state.builds)
        self._write_state()

    def _write_state(self) -> None:
        """Write the state of the search and its trace."""
        with self._timed("write"):
            self.state = replace(self.state, graph=self.explorer.graph())
            self.folder.write_state(self.state)
        parse_notes = [self._parse_note] if self._parse_note else []
        proposals = () if self.llm is None else self.llm.lines()
        lines = [*parse_notes, *proposals, *self._times.lines()]
        self.folder.write_trace(trace(self.bench.spec, self.state, lines))

    def _announce_interrupt(self) -> KeyboardInterrupt:
        """Tell the user that the search was interrupted, and return the exception that ends it."""
        self.tell(f"stopped; everything evaluated is kept in {self.folder.path}")
        return KeyboardInterrupt()


def _origin(next_move: NextMove | None) -> dict[str, Any]:
    """Return the fields that say how a state was made from which other one."""
    if next_move is None:
        return {"parent": None}
    application = next_move.application
    return {"parent": next_move.parent.id, "move": application.move, "what": application.what}


def _fields(record: SearchNode | VariantGain) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}
