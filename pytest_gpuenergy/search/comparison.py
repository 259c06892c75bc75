"""Measures the best variant alternately with the baseline, on fresh inputs."""

from __future__ import annotations

import math
from pathlib import Path

from pytest_gpuenergy.ab.exhibit import Exhibit
from pytest_gpuenergy.ab.rounds import Turns, take_turns
from pytest_gpuenergy.control.setpoint import CURRENT
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.engine.harness import describe_workload
from pytest_gpuenergy.engine.jobs import read_job, write_job
from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.gate.verdict import Judgement, Verdict, count_comparisons
from pytest_gpuenergy.kernels.job import Job
from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.infos import KernelInfo
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.search.evaluation import Bench
from pytest_gpuenergy.search.kernel import kernel_of
from pytest_gpuenergy.search.search_state import Gain
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.support.scratch import disk_folder

ROUNDS = 6
TIMEOUT_S = 60.0
_SETTINGS = GateSettings(limits=dict.fromkeys(METRICS, 0.0))


def compare(bench: Bench, state: State) -> Gain:
    """Measure a state and the baseline alternately, both verified after each turn.

    Raises:
        DeviceError: the device does not respond.
        OSError: the inputs cannot be written.
    """
    with bench.device.twin() as device, disk_folder() as folder:
        base, head = (_exhibit(bench, device, folder, one) for one in (bench.spec.baseline, state))
        turns = take_turns(device, base, head, rounds=ROUNDS, timeout_s=TIMEOUT_S)
        if problem := turns.base_fault or turns.problem:
            return Gain(id=state.id, accepted=False, rounds=0, message=problem)
        return _gain(bench, state, head, turns)


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


def _gain(bench: Bench, state: State, exhibit: Exhibit, turns: Turns) -> Gain:
    found: dict[Metric, Judgement] = {
        one.metric: one for one in turns.judge(exhibit, _SETTINGS, count_comparisons(1, _SETTINGS))
    }
    changes = {metric: one.change for metric, one in found.items() if one.change is not None}
    return Gain(
        id=state.id,
        accepted=found[bench.objective].verdict is Verdict.BETTER,
        rounds=ROUNDS,
        ratios={metric: math.exp(change.value) for metric, change in changes.items()},
        ratio_intervals={
            metric: Interval(math.exp(change.low), math.exp(change.high))
            for metric, change in changes.items()
        },
        baseline={metric: one.base for metric, one in found.items() if one.base is not None},
        variant={metric: one.new for metric, one in found.items() if one.new is not None},
        reasons=tuple(dict.fromkeys(reason for one in found.values() for reason in one.reasons)),
    )
