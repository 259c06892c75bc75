"""Measures the best variant alternately with the baseline, on fresh inputs."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

from pytest_gpuenergy.ab.exhibit import Exhibit
from pytest_gpuenergy.ab.rounds import Turns, take_turns
from pytest_gpuenergy.control.setpoint import CURRENT
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.engine.harness import describe_workload
from pytest_gpuenergy.engine.jobs import read_job, write_job
from pytest_gpuenergy.gate.doubt import widened
from pytest_gpuenergy.gate.verdict import Verdict, decide
from pytest_gpuenergy.kernels.job import Job
from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.infos import KernelInfo
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.search.claim import LASTING_SD, claimed_change
from pytest_gpuenergy.search.evaluation import Bench
from pytest_gpuenergy.search.kernel import kernel_of
from pytest_gpuenergy.search.search_state import Gain
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.support.scratch import disk_folder

ROUNDS = 6
TIMEOUT_S = 60.0


def compare(bench: Bench, state: State, *, candidates: int = 1) -> Gain:
    """Measure a state and the baseline alternately, both verified after each turn.

    The state is first verified once more, on inputs that no variant was verified on.

    Args:
        bench: where.
        state: the variant.
        candidates: among which it is the best, see `claimed_change`.

    Raises:
        DeviceError: the device does not respond.
        InputError: the reference cannot be computed.
        OSError: the inputs cannot be written.
    """
    if message := bench.verify_afresh(state):
        return Gain(id=state.id, accepted=False, rounds=0, message=message)
    with bench.device.twin() as device, disk_folder() as folder:
        base, head = (_exhibit(bench, device, folder, one) for one in (bench.spec.baseline, state))
        turns = take_turns(device, base, head, rounds=ROUNDS, timeout_s=TIMEOUT_S)
    if problem := turns.base_fault or turns.problem:
        return Gain(id=state.id, accepted=False, rounds=0, message=problem)
    return gain_of(state.id, turns, bench.objective, candidates)


def gain_of(state_id: str, turns: Turns, objective: Metric, candidates: int) -> Gain:
    """What the rounds say of a variant that is the best of so many candidates."""
    figures = {metric: turns.log_figures(metric) for metric in METRICS}
    changes = {
        metric: claimed_change(
            [new - old for old, new in zip(base, head, strict=True)],
            LASTING_SD[metric],
            candidates=candidates,
        )
        for metric, (base, head) in figures.items()
    }
    doubts = turns.doubts()
    verdict = decide(widened(changes[objective], doubts, objective), 0.0)
    return Gain(
        id=state_id,
        accepted=verdict is Verdict.BETTER,
        rounds=len(turns.base),
        candidates=candidates,
        ratios={metric: math.exp(change.value) for metric, change in changes.items()},
        ratio_intervals={
            metric: Interval(math.exp(change.low), math.exp(change.high))
            for metric, change in changes.items()
        },
        baseline={metric: math.exp(fmean(base)) for metric, (base, _) in figures.items()},
        variant={metric: math.exp(fmean(head)) for metric, (_, head) in figures.items()},
        reasons=tuple(doubt.reason for doubt in doubts),
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
