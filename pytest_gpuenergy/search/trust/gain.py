"""Whether the best variants of a search are certainly better than the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Literal

from pytest_gpuenergy.ab import Exhibit, Turns, take_turns
from pytest_gpuenergy.control import CURRENT
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import Reading
from pytest_gpuenergy.engine import describe_workload, read_job, write_job
from pytest_gpuenergy.gate import Verdict, decide, tail_of, widened
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import (
    METRICS,
    SAME_BOARD_SD,
    WANDER,
    Estimate,
    Interval,
    KernelInfo,
    Measurement,
    Metric,
    paired_log_ratio,
)
from pytest_gpuenergy.search.running.evaluators import Evaluator
from pytest_gpuenergy.search.running.kernel_folder import KernelFolder
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.trust.result import Gain, Node, TurnFigures
from pytest_gpuenergy.search.trust.state_evaluation import Bench
from pytest_gpuenergy.support import disk_folder, student_t
from pytest_gpuenergy.tuning import writing


@dataclass(frozen=True)
class Confirmation:
    """Compares variants of one search. What was compared among as many before is not repeated.

    Attributes:
        evaluator: of the search.
        folder: of the kernel.
        states: by id.
        tell: called with lines of progress.
        is_stopped: asked before each comparison, and before each turn of one.
    """

    evaluator: Evaluator
    folder: KernelFolder
    states: Mapping[str, State]
    tell: Callable[[str], None]
    is_stopped: Callable[[], bool]

    def gains(self, nodes: Sequence[Node]) -> Iterator[Gain | None]:
        """The gains of the best variants, in their order, up to the first that is accepted.

        Args:
            nodes: all of the search, the baseline first.

        Yields:
            A gain, as soon as it is on disk, or one that may not be claimed; or None, at last, if
            it was stopped.

        Raises:
            DeviceError: the device does not respond.
            InputError: the reference cannot be computed, or a file is damaged.
            OutputError: a file cannot be written.
        """
        for place, node in enumerate(by_cost(nodes)[:CONFIRMED]):
            if node.id == nodes[0].id:
                return
            if (left_out := self._left_out(node, nodes)) is not None:
                if place == 0:
                    yield left_out
                return  # the next ones are no better
            gain = self._unclaimed(node, nodes) or self._gain(node, len(nodes) - 1)
            yield gain
            if gain is None or gain.accepted or gain.unclaimed:
                return

    def _unclaimed(self, node: Node, nodes: Sequence[Node]) -> Gain | None:
        """Why the device's figures are not enough for a claim; None if they are."""
        for one in (nodes[0], node):
            if message := self.evaluator.bench.no_claim(self.states[one.id]):
                return Gain(
                    id=node.id,
                    accepted=False,
                    rounds=0,
                    candidates=len(nodes) - 1,
                    message=message,
                    unclaimed=True,
                )
        return None

    def _left_out(self, node: Node, nodes: Sequence[Node]) -> Gain | None:
        """Why a variant is not worth a comparison; None if it is."""
        metric, candidates = self.evaluator.bench.objective, len(nodes) - 1
        assert node.cost is not None
        assert nodes[0].cost is not None
        change = math.log(node.cost / nodes[0].cost)
        if may_be_claimed(change, metric, candidates=candidates):
            return None
        message = (
            f"left out: by the search's own figures it takes {-math.expm1(change):.2%} less "
            f"{metric.label}, too little to be claimed of the best of {candidates}"
        )
        return Gain(id=node.id, accepted=False, rounds=0, candidates=candidates, message=message)

    def _gain(self, node: Node, candidates: int) -> Gain | None:
        known = self.folder.known_gain(node.id)
        if known is not None and known.candidates >= candidates:
            return known
        if self.is_stopped():
            return None
        bench = self.evaluator.bench
        self.tell(f"{bench.spec.name}: measuring {node.id} alternately with the baseline")
        with self.evaluator.alone(), writing(self.folder.path):
            gain = compare(
                bench, self.states[node.id], candidates=candidates, is_stopped=self.is_stopped
            )
        if gain is not None:
            self.folder.keep_gain(gain)
        return gain


def by_cost(nodes: Sequence[Node]) -> list[Node]:
    """The correct nodes, best first; of equal ones the earlier."""
    correct = [(node.cost, node) for node in nodes if node.cost is not None]
    return [node for _, node in sorted(correct, key=lambda pair: pair[0])]


ROUNDS = 6
TIMEOUT_S = 60.0
NO_CHANGE = Estimate(0.0, 0.0, 0.0)


def compare(
    bench: Bench,
    state: State,
    *,
    candidates: int = 1,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Gain | None:
    """Measure a state and the baseline alternately, both verified after each turn.

    The state is first verified once more, on inputs that no variant was verified on. Once the
    claim of a gain is out of reach, there are no further rounds.

    Args:
        bench: where.
        state: the variant.
        candidates: among which it is the best, see `claimed_change`.
        is_stopped: asked after the verification and before each turn.

    Returns:
        None if it was stopped before the end.

    Raises:
        DeviceError: the device does not respond.
        InputError: the reference cannot be computed.
        OSError: the inputs cannot be written.
    """
    if message := bench.verify_afresh(state):
        return Gain(id=state.id, accepted=False, rounds=0, message=message)
    if is_stopped():
        return None
    with bench.device.twin() as device, disk_folder() as folder:
        base, head = (_exhibit(bench, device, folder, one) for one in (bench.spec.baseline, state))
        turns = take_turns(
            device,
            base,
            head,
            rounds=ROUNDS,
            timeout_s=TIMEOUT_S,
            ends=lambda turns: is_stopped() or _is_hopeless(turns, bench.objective, candidates),
        )
    if problem := turns.base_fault or turns.problem:
        return Gain(id=state.id, accepted=False, rounds=0, message=problem)
    if len(turns.base) < ROUNDS and not _is_hopeless(turns, bench.objective, candidates):
        return None
    return gain_of(state.id, turns, bench.objective, candidates)


def _is_hopeless(turns: Turns, objective: Metric, candidates: int) -> bool:
    if len(turns.base) != len(turns.head):
        return False
    return is_out_of_reach(
        _log_ratios(turns, objective),
        LASTING_SD[objective],
        rounds=ROUNDS,
        candidates=candidates,
        room=widened(NO_CHANGE, turns.doubts(), objective).high,
    )


def _log_ratios(turns: Turns, metric: Metric) -> list[float]:
    """ln(variant / baseline) of each round."""
    return [new - old for old, new in zip(*turns.log_figures(metric), strict=True)]


def gain_of(state_id: str, turns: Turns, objective: Metric, candidates: int) -> Gain:
    """What the rounds say of a variant that is the best of so many candidates."""
    figures = {metric: turns.log_figures(metric) for metric in METRICS}
    changes = {
        metric: claimed_change(
            _log_ratios(turns, metric), LASTING_SD[metric], candidates=candidates
        )
        for metric in METRICS
    }
    doubts = turns.doubts()
    verdict = decide(widened(changes[objective], doubts, objective), 0.0)
    return Gain(
        id=state_id,
        accepted=verdict is Verdict.BETTER,
        rounds=len(turns.base),
        ended_early=len(turns.base) < ROUNDS,
        candidates=candidates,
        ratios={metric: math.exp(change.value) for metric, change in changes.items()},
        ratio_intervals={
            metric: Interval(math.exp(change.low), math.exp(change.high))
            for metric, change in changes.items()
        },
        baseline={metric: math.exp(fmean(base)) for metric, (base, _) in figures.items()},
        variant={metric: math.exp(fmean(head)) for metric, (_, head) in figures.items()},
        reasons=tuple(doubt.reason for doubt in doubts),
        turns=tuple(_in_order(turns)),
    )


def _in_order(turns: Turns) -> Iterator[TurnFigures]:
    """The turns as they were taken: the side that goes first alternates."""
    for number, (base, head) in enumerate(zip(turns.base, turns.head, strict=True)):
        both = [_turn(number + 1, "baseline", base), _turn(number + 1, "variant", head)]
        yield from both if number % 2 == 0 else both[::-1]


def _turn(number: int, side: Literal["baseline", "variant"], reading: Reading) -> TurnFigures:
    return TurnFigures(
        round=number,
        side=side,
        time_ms=reading.time_ms.value,
        energy_mj=reading.energy_mj.value,
        power_w=reading.power_w,
        seconds=sum(one.seconds for one in reading.trials),
        temperature_c=reading.temperature_c,
        effective_sm_clock_mhz=reading.effective_sm_clock_mhz,
        memory_clock_mhz=reading.end.memory_clock_mhz,
        event_reasons=reading.event_reasons,
        flags=reading.flags,
    )


def _exhibit(bench: Bench, device: Device, folder: Path, state: State) -> Exhibit:
    sizes = bench.spec.sizes[0]
    kernel = kernel_of(bench.spec, state, sizes)
    workload = bench.workload(sizes, device)
    job = Job.of(kernel, workload, seed=bench.hidden_seeds("comparison")[0], timeout_s=TIMEOUT_S)
    name = write_job(folder, job, workload)
    draft = Measurement(
        node_id=f"{bench.spec.name}-{state.id}",
        workload=describe_workload(workload),
        kernel=KernelInfo(kernel.label, kernel.digest, kernel.origin.kind),
        outcome="correct",
        cap=CURRENT.label,
    )
    return Exhibit(draft, read_job(folder, name))


CONFIRMED = 3
"""The best variants, at most, that are measured alternately with the baseline until one is kept."""

LASTING_SD: Mapping[Metric, float] = {
    metric: math.sqrt(SAME_BOARD_SD[metric] ** 2 - WANDER[metric] ** 2) for metric in METRICS
}
"""Standard deviation of what a kernel may keep through a session, and has otherwise in another: the
part of the deviation between sessions that is not of a loading or of the state of the card, as a
fraction. Rounds of one session cannot show it."""

HEAVY_TAIL_DEGREES = 5
"""Of Student's t, for what lasts: large values are far more frequent than normal ones."""

_HEAVY_ALARM = 0.02
"""Chance of a search with a false claim, if what lasts is distributed like that."""

FUTILE = 0.02
"""Chance that a gain which could just be claimed, if nothing scattered, is given up."""

LEAST_ROUNDS = 3
"""Before a comparison may end early: with two, Student's t says nothing of the scatter."""


def claimed_change(
    log_ratios: Sequence[float], lasting_sd: float, *, candidates: int = 1
) -> Estimate:
    """ln(variant / baseline) by the rounds, with an interval for a claim of a gain.

    At most one search in a hundred claims a gain that is none: the rounds of each of `CONFIRMED`
    variants, and what lasts of each of the candidates (see `lasting_half_width`), are off by more
    than their half widths that seldom (Bonferroni's inequality). What lasts counts once for each
    candidate, because it is in the figures by which the best one was chosen: the best of many has
    more of it. The scatter of the rounds is not, and counts as usual. The squares of both half
    widths are added, as in `energy.statistics.estimate`.

    Args:
        log_ratios: of each round.
        lasting_sd: see `LASTING_SD`.
        candidates: among which the variant was chosen.

    Raises:
        ValueError: there are fewer than two rounds.
    """
    scatter = paired_log_ratio(log_ratios, tail=tail_of(CONFIRMED))
    half = math.hypot(scatter.half_width, lasting_half_width(lasting_sd, max(1, candidates)))
    return Estimate(scatter.value, scatter.value - half, scatter.value + half)


def lasting_half_width(lasting_sd: float, candidates: int) -> float:
    """How far what lasts may make the best of so many candidates seem better than the baseline.

    The larger of two bounds, because nobody knows how what lasts is distributed:

    - If it is normal, the difference of two kernels is, too. One search in a hundred exceeds this.
    - If it has heavy tails, Student's t with `HEAVY_TAIL_DEGREES` of the same variance, a large
      difference comes from one kernel that is far off: one of the candidates, or the baseline. One
      search in fifty exceeds this.

    Args:
        lasting_sd: see `LASTING_SD`.
        candidates: among which the best was chosen; at least 1.
    """
    normal = -NormalDist().inv_cdf(tail_of(candidates)) * math.sqrt(2)
    degrees = HEAVY_TAIL_DEGREES
    heavy = student_t(degrees, 1 - _HEAVY_ALARM / (candidates + 1))
    return max(normal, heavy * math.sqrt((degrees - 2) / degrees)) * lasting_sd


def may_be_claimed(log_ratio: float, metric: Metric, *, candidates: int) -> bool:
    """Whether a variant is worth a comparison with the baseline, by the search's own figures.

    It is not if a claim takes more than it can have: the claim of a gain takes at least
    `lasting_half_width`, even if the rounds do not scatter at all. A figure of the search deviates
    as one of another session does (`SAME_BOARD_SD`), the baseline's likewise; one variant in
    fifty (`FUTILE`) has more than this allows for.

    Args:
        log_ratio: ln(variant / baseline) by the figures of the search.
        metric: what the search minimizes.
        candidates: among which the variant is the best.
    """
    allowance = NormalDist().inv_cdf(1 - FUTILE) * math.sqrt(2) * SAME_BOARD_SD[metric]
    return log_ratio - allowance < -lasting_half_width(LASTING_SD[metric], max(1, candidates))


def is_out_of_reach(
    log_ratios: Sequence[float],
    lasting_sd: float,
    *,
    rounds: int,
    candidates: int = 1,
    room: float = 0.0,
) -> bool:
    """Whether the first of some rounds leave no hope for the claim of a gain after all of them.

    A claim takes a mean ratio of less than ``-lasting_half_width`` after all rounds, even if they
    do not scatter at all, see `claimed_change`. The mean of all n rounds deviates from that of the
    first k, whose standard deviation is s, by ``s sqrt(1/k - 1/n)``, in terms of Student's t with
    k - 1 degrees of freedom. If it gets that far with a probability of less than `FUTILE`, there is
    no hope (stochastic curtailment: K. K. G. Lan, R. Simon and M. Halperin, "Stochastically
    curtailed tests in long-term clinical trials", Sequential Analysis 1, 1982).

    To end a comparison for this reason never adds a claim.

    Args:
        log_ratios: of the rounds so far.
        lasting_sd: see `LASTING_SD`.
        rounds: that were planned.
        candidates: among which the variant was chosen.
        room: by which doubts widen the interval besides.
    """
    count = len(log_ratios)
    if count < LEAST_ROUNDS or count >= rounds:
        return False
    spread = stdev(log_ratios) * math.sqrt(1 / count - 1 / rounds)
    least = fmean(log_ratios) - student_t(count - 1, 1 - FUTILE) * spread
    return least >= -lasting_half_width(lasting_sd, max(1, candidates)) - room
