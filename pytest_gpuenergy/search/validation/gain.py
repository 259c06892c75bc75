"""Finds the best variant that is certainly better than the baseline, by measuring both alternately.

A gain is proven if the whole interval of the objective's ratio is below 1. A comparison that cannot
prove one is not begun, or ends early.
"""

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
from pytest_gpuenergy.gate import Verdict, bonferroni_tail, decide, widened
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
from pytest_gpuenergy.search.running.state_evaluation import Bench
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.validation.result import SearchNode, TurnFigures, VariantGain
from pytest_gpuenergy.support import disk_folder, student_t
from pytest_gpuenergy.tuning import writing

ROUNDS = 6
"""Rounds of a comparison; in each, both kernels are measured once."""
TIMEOUT_S = 60.0
"""Seconds for one turn."""
NO_CHANGE = Estimate(0.0, 0.0, 0.0)
CONFIRMED = 3
"""Number of variants, at most, that are compared with the baseline until one is kept."""
LASTING_SD: Mapping[Metric, float] = {
    metric: math.sqrt(SAME_BOARD_SD[metric] ** 2 - WANDER[metric] ** 2) for metric in METRICS
}
"""Standard deviation, as a fraction, of a kernel's lasting deviation: the part of the deviation
between sessions that neither the loading of the kernel nor the state of the card explains. It stays
the same through a session, so the rounds of one session cannot show it."""
HEAVY_TAIL_DEGREES = 5
"""Degrees of freedom of Student's t as a heavy-tailed distribution of lasting deviations."""
_HEAVY_ALARM = 0.02
"""Chance that a search accepts a false gain, if lasting deviations have such heavy tails."""
FUTILE = 0.02
"""Chance of giving up a gain that would just be proven if nothing scattered."""
LEAST_ROUNDS = 3
"""Rounds before a comparison may end early; two say too little about the scatter."""


@dataclass(frozen=True)
class Confirmation:
    """Compares the best variants of one search with the baseline.

    A comparison that an earlier run made among as many candidates is not repeated.

    Attributes:
        evaluator: the evaluator of the search.
        folder: the folder of the kernel.
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
        for place, node in enumerate(by_cost(nodes)[:CONFIRMED]):
            if node.id == nodes[0].id:
                return
            if (left_out := self._left_out(node, nodes)) is not None:
                if place == 0:
                    yield left_out
                return  # the next ones are no better
            gain = self._unproven(node, nodes) or self._measured(node, len(nodes) - 1)
            yield gain
            if gain is None or gain.accepted or gain.unclaimed:
                return

    def _unproven(self, node: SearchNode, nodes: Sequence[SearchNode]) -> VariantGain | None:
        """Return why the device's figures cannot prove a gain; None if they can."""
        for compared in (nodes[0], node):
            if message := self.evaluator.bench.why_unproven(self.states[compared.id]):
                return VariantGain(
                    id=node.id,
                    accepted=False,
                    rounds=0,
                    candidates=len(nodes) - 1,
                    message=message,
                    unclaimed=True,
                )
        return None

    def _left_out(self, node: SearchNode, nodes: Sequence[SearchNode]) -> VariantGain | None:
        """Return why a variant is not worth a comparison; None if it is."""
        metric, candidates = self.evaluator.bench.objective, len(nodes) - 1
        assert node.cost is not None
        assert nodes[0].cost is not None
        change = math.log(node.cost / nodes[0].cost)
        if is_worth_comparing(change, metric, candidates=candidates):
            return None
        message = (
            f"left out: by the search's own figures it takes {-math.expm1(change):.2%} less "
            f"{metric.label}, too little to be claimed of the best of {candidates}"
        )
        return VariantGain(
            id=node.id, accepted=False, rounds=0, candidates=candidates, message=message
        )

    def _measured(self, node: SearchNode, candidates: int) -> VariantGain | None:
        earlier = self.folder.earlier_gain(node.id)
        if earlier is not None and earlier.candidates >= candidates:
            return earlier
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


def by_cost(nodes: Sequence[SearchNode]) -> list[SearchNode]:
    """Return the correct nodes, the best first; among equals, the earlier one first."""
    correct = [(node.cost, node) for node in nodes if node.cost is not None]
    return [node for _, node in sorted(correct, key=lambda pair: pair[0])]


def compare(
    bench: Bench,
    state: State,
    *,
    candidates: int = 1,
    is_stopped: Callable[[], bool] = lambda: False,
) -> VariantGain | None:
    """Measure a state and the baseline alternately, and verify both after each turn.

    The state is first verified once more, on inputs on which no variant was verified. There are no
    further rounds once a proven gain is out of reach.

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
        OSError: the inputs cannot be written.
    """
    if message := bench.verify_afresh(state):
        return VariantGain(id=state.id, accepted=False, rounds=0, message=message)
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
        return VariantGain(id=state.id, accepted=False, rounds=0, message=problem)
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
    """Return ln(variant / baseline) of each round."""
    return [new - old for old, new in zip(*turns.log_figures(metric), strict=True)]


def gain_of(state_id: str, turns: Turns, objective: Metric, candidates: int) -> VariantGain:
    """Return what the rounds say about a variant that is the best of so many candidates."""
    figures = {metric: turns.log_figures(metric) for metric in METRICS}
    changes = {
        metric: proven_change(_log_ratios(turns, metric), LASTING_SD[metric], candidates=candidates)
        for metric in METRICS
    }
    doubts = turns.doubts()
    verdict = decide(widened(changes[objective], doubts, objective), 0.0)
    return VariantGain(
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
    """Yield the turns in the order in which they were taken; the first side alternates."""
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
        seconds=sum(trial.seconds for trial in reading.trials),
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


def proven_change(
    log_ratios: Sequence[float], lasting_sd: float, *, candidates: int = 1
) -> Estimate:
    """Return ln(variant / baseline) by the rounds, with an interval that proves a gain if below 0.

    At most one search in a hundred accepts a gain that is none. By Bonferroni's inequality, the
    rounds of each of `CONFIRMED` variants and the lasting deviations of all candidates (see
    `lasting_half_width`) exceed their half widths that seldom. Lasting deviations count once for
    each candidate, because the best one was chosen by figures that contain them: the best of many
    has a larger one. The scatter of the rounds is not in those figures and counts as usual. The
    squares of both half widths are added, as in `energy.estimate`.

    Args:
        log_ratios: ln(variant / baseline) of each round.
        lasting_sd: the standard deviation of lasting deviations, see `LASTING_SD`.
        candidates: the number of variants of which this one was chosen.

    Raises:
        ValueError: there are fewer than two rounds.
    """
    scatter = paired_log_ratio(log_ratios, tail=bonferroni_tail(CONFIRMED))
    half = math.hypot(scatter.half_width, lasting_half_width(lasting_sd, max(1, candidates)))
    return Estimate(scatter.value, scatter.value - half, scatter.value + half)


def lasting_half_width(lasting_sd: float, candidates: int) -> float:
    """Return how much better than the baseline lasting deviations may make the best variant seem.

    This is the larger of two bounds, because the distribution of lasting deviations is unknown:

    - If they are normal, so is the difference of two kernels. One search in a hundred exceeds this
      bound.
    - If they have heavy tails (Student's t with `HEAVY_TAIL_DEGREES` and the same variance), a
      large difference comes from a single kernel: one of the candidates, or the baseline. One
      search in fifty exceeds this bound.

    Args:
        lasting_sd: the standard deviation of lasting deviations, see `LASTING_SD`.
        candidates: the number of variants of which the best was chosen; at least 1.
    """
    normal = -NormalDist().inv_cdf(bonferroni_tail(candidates)) * math.sqrt(2)
    degrees = HEAVY_TAIL_DEGREES
    heavy = student_t(degrees, 1 - _HEAVY_ALARM / (candidates + 1))
    return max(normal, heavy * math.sqrt((degrees - 2) / degrees)) * lasting_sd


def is_worth_comparing(log_ratio: float, metric: Metric, *, candidates: int) -> bool:
    """Return whether a variant is worth a comparison, by the search's own figures.

    A proven gain takes at least `lasting_half_width`, even if the rounds do not scatter at all. A
    variant that cannot have so much is not worth a comparison. A figure of the search deviates like
    one of another session (`SAME_BOARD_SD`), and so does the baseline's; one variant in fifty
    (`FUTILE`) has more than this allows for.

    Args:
        log_ratio: ln(variant / baseline) by the figures of the search.
        metric: the metric that the search minimizes.
        candidates: the number of variants of which this one is the best.
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
    """Return whether a gain can no longer be proven, by the rounds so far.

    A proven gain takes a mean ratio of less than ``-lasting_half_width`` after all rounds, even if
    they do not scatter at all, see `proven_change`. The mean of all n rounds deviates from that of
    the first k, whose standard deviation is s, by ``s sqrt(1/k - 1/n)``, in terms of Student's t
    with k - 1 degrees of freedom. The gain is out of reach if the mean gets that far with a
    probability of less than `FUTILE` (stochastic curtailment: K. K. G. Lan, R. Simon and M.
    Halperin, "Stochastically curtailed tests in long-term clinical trials", Sequential Analysis 1,
    1982).

    Ending a comparison for this reason never adds an accepted gain.

    Args:
        log_ratios: ln(variant / baseline) of the rounds so far.
        lasting_sd: the standard deviation of lasting deviations, see `LASTING_SD`.
        rounds: the number of planned rounds.
        candidates: the number of variants of which this one was chosen.
        room: the amount by which doubts widen the interval as well.
    """
    count = len(log_ratios)
    if count < LEAST_ROUNDS or count >= rounds:
        return False
    spread = stdev(log_ratios) * math.sqrt(1 / count - 1 / rounds)
    least = fmean(log_ratios) - student_t(count - 1, 1 - FUTILE) * spread
    return least >= -lasting_half_width(lasting_sd, max(1, candidates)) - room
