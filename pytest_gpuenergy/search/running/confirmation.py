"""Compares the best variants of a search with the baseline, by measuring both alternately."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_gpuenergy.ab import Exhibit, Turns, take_turns
from pytest_gpuenergy.control import CURRENT
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import Drawing, PreparedJob, describe_workload
from pytest_gpuenergy.gate import widened
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import Estimate, KernelInfo, Measurement, Metric
from pytest_gpuenergy.search.running.evaluators import Evaluator
from pytest_gpuenergy.search.running.kernel_folder import KernelFolder
from pytest_gpuenergy.search.running.state_evaluation import SearchBench
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.validation.gain import (
    CONFIRMED,
    LASTING_SD,
    ROUNDS,
    is_out_of_reach,
    is_proven,
    is_worth_comparing,
    judge_rounds,
    round_log_ratios,
)
from pytest_gpuenergy.search.validation.result import SearchNode, VariantGain
from pytest_gpuenergy.tuning import writing

TIMEOUT_S = 60.0
"""Seconds for one turn."""
_NO_CHANGE = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Confirmation:
    """Compares the best variants of one search with the baseline.

    A comparison that an earlier run made among as many candidates is not repeated.

    Attributes:
        states: the states that were evaluated, by id.
        tell: called with lines of progress.
        is_stopped: asked before each comparison, and before each turn of one.
    """

    evaluator: Evaluator
    folder: KernelFolder
    states: Mapping[str, State]
    tell: Callable[[str], None]
    is_stopped: Callable[[], bool]

    def gains(self, nodes: Sequence[SearchNode]) -> Iterator[VariantGain | None]:
        """Compare the best variants in their order, up to the first that is accepted.

        Args:
            nodes: all states of the search, the baseline first.

        Yields:
            Each gain, once it is on disk; the reason why a variant is not compared, as a gain
            without figures; or None, at last, if the search was stopped.

        Raises:
            DeviceError: the device does not respond.
            InputError: the reference cannot be computed, or a file is damaged.
            OutputError: a file cannot be written.
        """
        baseline, candidates, bench = nodes[0], len(nodes) - 1, self.evaluator.bench
        for place, node in enumerate(by_cost(nodes)[:CONFIRMED]):
            if node.id == baseline.id:
                return
            assert node.cost is not None
            assert baseline.cost is not None
            change = math.log(node.cost / baseline.cost)
            without_figures = partial(
                VariantGain, id=node.id, accepted=False, rounds=0, candidates=candidates
            )
            if not is_worth_comparing(change, bench.objective, candidates=candidates):
                if place == 0:
                    yield without_figures(
                        message=f"left out: by the search's own figures it takes "
                        f"{-math.expm1(change):.2%} less {bench.objective.label}, too little to be "
                        f"proven of the best of {candidates}"
                    )
                return  # the next ones are no better
            states = self.states[baseline.id], self.states[node.id]
            gain: VariantGain | None
            if unproven := next(filter(None, map(bench.why_unproven, states)), ""):
                gain = without_figures(message=unproven, unclaimed=True)
            else:
                gain = self._measure_gain(node.id, candidates)
            yield gain
            if gain is None or gain.accepted or gain.unclaimed:
                return

    def _measure_gain(self, state_id: str, candidates: int) -> VariantGain | None:
        earlier = self.folder.earlier_gain(state_id)
        if earlier is not None and earlier.candidates >= candidates:
            return earlier
        if self.is_stopped():
            return None
        bench = self.evaluator.bench
        self.tell(f"{bench.spec.name}: measuring {state_id} alternately with the baseline")
        with self.evaluator.alone(), writing(self.folder.path):
            gain = compare(
                bench, self.states[state_id], candidates=candidates, is_stopped=self.is_stopped
            )
        if gain is not None:
            self.folder.keep_gain(gain)
        return gain


def by_cost(nodes: Sequence[SearchNode]) -> list[SearchNode]:
    """Return the correct nodes, the best first; among equals, the earlier one first."""
    correct = [(node.cost, node) for node in nodes if node.cost is not None]
    return [node for _, node in sorted(correct, key=lambda pair: pair[0])]


def compare(
    bench: SearchBench,
    state: State,
    *,
    candidates: int = 1,
    is_stopped: Callable[[], bool] = lambda: False,
) -> VariantGain | None:
    """Measure a state and the baseline alternately, and verify both after each turn.

    The state is first verified once more, on inputs on which no variant was verified. There are no
    further rounds once a gain is proven, or is out of reach.

    Args:
        bench: the bench of the search.
        state: the variant.
        candidates: the number of variants of which it is the best, see `proven_change`.
        is_stopped: asked after the verification and before each turn.

    Returns:
        The gain; None if the comparison was stopped before its end.

    Raises:
        DeviceError: the device does not respond.
        InputError: the reference cannot be computed.
    """
    with bench.meter.heating():
        message = bench.verify_afresh(state)
    if message:
        return VariantGain(id=state.id, accepted=False, rounds=0, message=message)
    if is_stopped():
        return None
    with bench.device.twin() as device:
        base, head = (_exhibit(bench, device, side) for side in (bench.spec.baseline, state))
        turns = take_turns(
            device,
            base,
            head,
            rounds=ROUNDS,
            timeout_s=TIMEOUT_S,
            meter=bench.meter if device is bench.device else None,
            ends=lambda turns: is_stopped() or _is_decided(turns, bench.objective, candidates),
            # Doubts for slight flags are small beside what the rounds and lasting deviations leave.
            spare_rounds=0,
        )
    if problem := turns.base_fault or turns.problem:
        return VariantGain(id=state.id, accepted=False, rounds=0, message=problem)
    if len(turns.base) < ROUNDS and not _is_decided(turns, bench.objective, candidates):
        return None
    return judge_rounds(state.id, turns, bench.objective, candidates)


def _is_decided(turns: Turns, objective: Metric, candidates: int) -> bool:
    """Return whether a gain is proven, or out of reach, by complete rounds."""
    if len(turns.base) != len(turns.head):
        return False
    ratios, lasting_sd = round_log_ratios(turns, objective), LASTING_SD[objective]
    room = widened(_NO_CHANGE, turns.doubts(), objective).high
    return is_proven(ratios, lasting_sd, candidates=candidates, room=room) or is_out_of_reach(
        ratios, lasting_sd, rounds=ROUNDS, candidates=candidates, room=room
    )


def _exhibit(bench: SearchBench, device: Device, state: State) -> Exhibit:
    sizes = bench.spec.sizes[0]
    kernel = kernel_of(bench.spec, state, sizes)
    workload = bench.workload(sizes, device)
    job = Job.of(kernel, workload, seed=bench.hidden.seeds("comparison")[0], timeout_s=TIMEOUT_S)
    case = bench.hidden.cases.case_of(workload, Drawing(job.seed), device.arrays)
    draft = Measurement(
        node_id=f"{bench.spec.name}-{state.id}",
        workload=describe_workload(workload),
        kernel=KernelInfo(kernel.label, kernel.digest, kernel.origin.kind),
        outcome="correct",
        cap=CURRENT.label,
    )
    return Exhibit(draft, PreparedJob(job, case))
