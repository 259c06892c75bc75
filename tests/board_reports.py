"""Reports of runs on several boards, whose gains are known."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from report_fixtures import a_run

from pytest_gpuenergy.record import (
    WANDER,
    Interval,
    KernelInfo,
    Measurement,
    Metric,
    RunInfo,
    StationInfo,
    Window,
    WorkloadInfo,
)
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.support import NORMAL, student_t

TRIALS = 6
TRIAL_SD = 0.002
KERNELS = ("rotate", "scale")


def run_of(boards: Sequence[str], **changes: Any) -> RunInfo:
    return a_run(**{"gpu_uuid": boards[0], **changes})


def station(uuid: str, **changes: Any) -> StationInfo:
    values: dict[str, Any] = {
        "gpu_uuid": uuid,
        "gpu_name": "NVIDIA H200",
        "host": f"host-of-{uuid}",
        "architecture": "sm_90",
        "emulated": True,
        "power_limits_w": {},
        "software": {},
    }
    return StationInfo(**{**values, **changes})


def board_measurement(
    uuid: str,
    kernel: str,
    *,
    time_ms: float = 0.02,
    energy_mj: float = 10.0,
    error: float = 0.0,
    node_id: str | None = None,
    **changes: Any,
) -> Measurement:
    """A clean measurement; ``error`` is the standard error of its mean that its trials show."""
    edp = time_ms * energy_mj
    values = {Metric.TIME: time_ms, Metric.ENERGY: energy_mj, Metric.EDP: edp}
    halves = {
        metric: math.hypot(student_t(TRIALS - 1) * error, NORMAL * WANDER[metric])
        for metric in Metric
    }
    ends = {
        f"{metric.field}_ci95": Interval(value * (1 - halves[metric]), value * (1 + halves[metric]))
        for metric, value in values.items()
    }
    fields: dict[str, Any] = {
        "node_id": node_id or f"board::{kernel}-700W-{uuid}",
        "workload": WorkloadInfo(kernel, {}, 10**9, 10**6),
        "kernel": KernelInfo(kernel, kernel.ljust(64, "0"), "board-anchor"),
        "outcome": "correct",
        "cap": "700W",
        "power_limit_w": 700.0,
        "enforced_power_limit_w": 700.0,
        "gpu_uuid": uuid,
        "time_ms": time_ms,
        "energy_mj": energy_mj,
        "edp_mj_ms": edp,
        "power_w": energy_mj / time_ms,
        "gflops": 1e3 / time_ms,
        "gflops_per_w": 1e3 / energy_mj,
        "trials": (Window(1.0, energy_mj / time_ms, 1000 / time_ms, 1.0),) * TRIALS,
        **ends,
    }
    return Measurement(**{**fields, **changes})


def report_on(
    gains: Mapping[str, float],
    *items: Measurement,
    checks: Sequence[Measurement] | None = None,
    **changes: Any,
) -> Report:
    """A report of boards whose energies differ by exactly these gains."""
    if checks is None:
        checks = [
            board_measurement(uuid, kernel, energy_mj=10 * (place + 1) * gain, error=0.001)
            for uuid, gain in gains.items()
            for place, kernel in enumerate(KERNELS)
        ]
    stations = tuple(map(station, gains))
    return Report(run_of([*gains], **changes), items, (), stations, tuple(checks))


def simulated(
    gains: Mapping[str, float],
    draw: random.Random,
    *,
    kernel_sd: float,
    kernels: Sequence[str] = KERNELS,
    items: int = 0,
) -> Report:
    """A report as a run would make it: with the errors of states, kernels and trials."""

    def measure(uuid: str, kernel: str, node_id: str | None = None) -> Measurement:
        log = math.log(gains[uuid]) + states[uuid] + draw.gauss(0, kernel_sd)
        trials = [draw.gauss(0, TRIAL_SD) for _ in range(TRIALS)]
        mean = sum(trials) / TRIALS
        scatter = math.sqrt(sum((one - mean) ** 2 for one in trials) / (TRIALS - 1))
        energy_mj = 10 * math.exp(log + mean)
        error = scatter / math.sqrt(TRIALS)
        return board_measurement(uuid, kernel, energy_mj=energy_mj, error=error, node_id=node_id)

    def state() -> float:
        return draw.gauss(0, WANDER[Metric.ENERGY])

    states = {uuid: state() for uuid in gains}
    checks = [measure(uuid, kernel) for uuid in gains for kernel in kernels]
    states = {uuid: state() for uuid in gains}
    measured = [
        measure(uuid, f"k{number}", f"item{number}-{uuid}")
        for uuid in gains
        for number in range(items)
    ]
    return report_on(gains, *measured, checks=checks)
