"""Measures the best variant alternately with the baseline, on fresh inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Literal

from pytest_gpuenergy.ab import Exhibit, Turns, take_turns
from pytest_gpuenergy.control import CURRENT
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import Reading
from pytest_gpuenergy.engine import describe_workload, read_job, write_job
from pytest_gpuenergy.gate import Verdict, decide, widened
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import METRICS, Estimate, Interval, KernelInfo, Measurement, Metric
from pytest_gpuenergy.search.claim import LASTING_SD, claimed_change, is_out_of_reach
from pytest_gpuenergy.search.search_state import Gain, TurnFigures
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.trust.state_evaluation import Bench
from pytest_gpuenergy.support import disk_folder

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
