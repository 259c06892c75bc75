"""The mean of several runs of the same kernels, which is known better than a single run.

Runs differ in what all kernels have in common, a board or a day, and kernel by kernel. The mean has
the average of the former; the latter becomes smaller with the number of runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from pytest_gpuenergy.record import METRICS, Measurement, Metric, Window
from pytest_gpuenergy.report.levels import (
    Found,
    Mean,
    Place,
    common_ratios,
    figure_of,
    levels_of,
)
from pytest_gpuenergy.report.merging import by_run, merge
from pytest_gpuenergy.report.models import Models
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support import ReportInputError

_AVERAGED = (
    "raw_energy_mj",
    "temperature_c",
    "settled_temperature_c",
    "energy_change_per_k",
    "effective_sm_clock_mhz",
)


def mean_of_runs(reports: Sequence[Report]) -> Report:
    """One report with the geometric mean of each kernel's figures in several runs.

    The level of a run, which all its kernels have in common on a board and under a cap, is removed
    from each and its average added again, so that it does not matter which run lacks which kernels.
    Flagged measurements are left out where there are others. A kernel that failed in any run has
    failed. The boards of all runs count as one, named after all of them.

    The interval is that of a mean of independent figures. If all figures under a cap lie further
    apart than their intervals explain, or those of one kernel by far, it is wider by the ratio of
    both (R. T. Birge, "The calculation of errors by the method of least squares", Physical Review
    40, 1932).

    Args:
        reports: of the same GPU model, in any order; parts of one run count as one run.

    Raises:
        ReportInputError: they cannot be merged, are of fewer than two runs or of several GPU
            models, or a kernel's text or workload differs between them.
    """
    latest = merge(reports)
    ordered = sorted(reports, key=lambda one: one.run.started)
    runs = [merge(parts) for parts in by_run(ordered)]
    if len(runs) < 2:
        raise ReportInputError("A mean needs at least two runs: name more of them.")
    if len(names := Models(latest).names) > 1:
        raise ReportInputError(
            f"These runs are on several GPU models ({', '.join(sorted(names))}), of which there is "
            "no mean: name runs on one."
        )
    found: dict[str, list[Found]] = defaultdict(list)
    failed: dict[str, Measurement] = {}
    for number, run in enumerate(runs):
        for m in run.measurements:
            if m.measured and not m.validity:
                found[m.node_id].append(Found(Place(number, m.gpu_uuid, m.cap), m))
            elif m.outcome != "correct":
                failed[m.node_id] = m
    for several in found.values():
        _check_same(several)
    levels = {metric: levels_of(found.values(), metric) for metric in (Metric.TIME, Metric.ENERGY)}
    # Not fitted by itself, so that the means of a kernel's figures follow from each other, too.
    levels[Metric.EDP] = {
        place: level + levels[Metric.ENERGY][place] for place, level in levels[Metric.TIME].items()
    }
    means = {metric: _means(found, metric, levels[metric]) for metric in METRICS}
    ratios = {metric: common_ratios(several.values()) for metric, several in means.items()}
    boards = ", ".join(
        sorted({m.gpu_uuid or run.run.gpu_uuid for run in runs for m in run.measurements})
    )
    measurements = []
    for m in latest.measurements:
        kept = failed.get(m.node_id, m)
        if m.node_id not in failed and m.node_id in found:
            kept = _merged(
                [one.measurement for one in found[m.node_id]],
                {metric: several[m.node_id] for metric, several in means.items()},
                {metric: several.get(m.cap, 1.0) for metric, several in ratios.items()},
            )
        measurements.append(replace(kept, gpu_uuid=boards))
    ids = ", ".join(run.run.run_id for run in runs)
    info = replace(
        latest.run,
        run_id=f"mean of {len(runs)} runs until {latest.run.run_id}",
        gpu_uuid=boards,
        options={**latest.run.options, "mean_of": ids},
    )
    return Report(info, tuple(measurements))


def _means(
    found: Mapping[str, Sequence[Found]], metric: Metric, levels: Mapping[Place, float]
) -> dict[str, Mean]:
    return {node_id: Mean.of(several, metric, levels) for node_id, several in found.items()}


def _check_same(several: Sequence[Found]) -> None:
    one = several[0].measurement
    for other in (found.measurement for found in several[1:]):
        for name, then, now in (
            ("kernel", one.kernel.digest, other.kernel.digest),
            ("workload", one.workload, other.workload),
            ("source of energy", one.energy_source, other.energy_source),
            (
                "setpoint",
                *((m.enforced_power_limit_w, m.locked_sm_clock_max_mhz) for m in (one, other)),
            ),
        ):
            if then != now:
                raise ReportInputError(
                    f"{one.node_id} has another {name} in one of these runs than in the others, so "
                    "there is no mean: name runs of the same kernels."
                )


def _merged(
    parts: Sequence[Measurement], means: Mapping[Metric, Mean], ratios: Mapping[Metric, float]
) -> Measurement:
    last = parts[-1]
    figures: dict[str, float] = {m.field: math.exp(one.log) for m, one in means.items()}
    time_ms, energy_mj = (figures[metric.field] for metric in (Metric.TIME, Metric.ENERGY))
    # The power of a launch differs from energy by time where the host launches too slowly.
    power_w = energy_mj / time_ms * fmean(_share_of_power(m) for m in parts)
    gflops = last.workload.flops / time_ms / 1e6
    errors = [m.settling_error for m in parts]
    known = [error for error in errors if error is not None]
    return replace(
        last,
        **figures,
        **{f"{m.field}_ci95": one.interval(ratios[m]) for m, one in means.items()},
        **{name: _mean_of(name, parts) for name in _AVERAGED},
        power_w=power_w,
        gflops=gflops,
        gflops_per_w=gflops / power_w,
        trials=tuple(one for m in parts for one in _as_mean(m.trials, m, time_ms, energy_mj)),
        warm_trials=tuple(
            one for m in parts for one in _as_mean(m.warm_trials, m, time_ms, energy_mj)
        ),
        settling_error=math.hypot(*known) / len(known) if len(known) == len(errors) else None,
        cap_binding=any(m.cap_binding for m in parts),
        wall_s=math.fsum(m.wall_s for m in parts),
        phases_s=_sums(m.phases_s for m in parts),
    )


def _as_mean(
    windows: Iterable[Window], m: Measurement, time_ms: float, energy_mj: float
) -> Iterator[Window]:
    """The windows of one run as if its figures were the means: their scatter is that of one run."""
    longer = time_ms / figure_of(m, Metric.TIME)
    more = energy_mj / figure_of(m, Metric.ENERGY)
    for one in windows:
        yield replace(
            one,
            seconds=one.seconds * longer,
            busy_seconds=one.busy_seconds * longer,
            joules=one.joules * more,
        )


def _share_of_power(m: Measurement) -> float:
    """The power of a measurement relative to its energy by its time."""
    return (m.power_w or 0.0) * (m.time_ms or 0.0) / (m.energy_mj or 1.0)


def _mean_of(name: str, parts: Sequence[Measurement]) -> float | None:
    """The mean of a field; None where a part has none."""
    values = [getattr(m, name) for m in parts]
    return None if None in values else fmean(values)


def _sums(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for one in several:
        for name, value in one.items():
            found[name] += value
    return dict(found)
