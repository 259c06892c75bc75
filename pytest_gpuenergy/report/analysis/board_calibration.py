"""The gains of a run's boards, from the kernels that all of them measured, and what they calibrate.

Figures of one kernel on several boards of a model are modelled as the product of the kernel's, the
board's gain and a deviation: in logarithms, a table of two ways without interaction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import asdict, replace

from pytest_gpuenergy.record import (
    BOARD_KERNEL_SD,
    METRICS,
    WIDE_FLAGS,
    BoardGain,
    Calibrated,
    CalibratedItem,
    Estimate,
    Interval,
    Measurement,
    Metric,
    RunInfo,
    SessionMean,
    StationInfo,
    session_mean,
    t_interval,
    welch,
)
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support import NORMAL, InputError

UNCALIBRATED = "uncalibrated"
"""The flag of a figure among calibrated ones whose board has no gain."""

_PRIOR_DEGREES = 10
"""The number of degrees of freedom that prior knowledge of the deviations is worth.

A run has few: one with two boards and two kernels. Both are combined as in G. K. Smyth, "Linear
models and empirical Bayes methods for assessing differential expression in microarray experiments",
Statistical Applications in Genetics and Molecular Biology 3, 2004.
"""

_TAIL = 0.025
_MAX_HALF = math.log(1e9)
"""Wider intervals are clipped to this, so that their ends stay finite."""


class BoardPlace(NamedTuple):
    """The conditions under which boards are compared: model, cap, clock and cache state."""

    gpu_name: str
    cap: str
    enforced_power_limit_w: float | None
    sm_clock_mhz: float | None
    cache: str


class Boards:
    """The boards of a report, as its checks tell.

    Attributes:
        gains: the gain of each board under each condition with several boards of the model, in
            the order in which they were measured.
    """

    def __init__(self, report: Report) -> None:
        self._stations = {station.gpu_uuid: station for station in report.stations}
        self._run = report.run
        tables: dict[BoardPlace, dict[str, list[Measurement]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for check in report.board_checks:
            if check.gpu_uuid is not None:
                tables[self._place(check)][check.gpu_uuid].append(check)
        self.gains: tuple[BoardGain, ...] = tuple(
            gain
            for place, boards in tables.items()
            if len(boards) > 1
            for gain in self._gains(place, boards)
        )
        self._known = {
            (
                BoardPlace(
                    gain.gpu_name,
                    gain.cap,
                    gain.enforced_power_limit_w,
                    gain.sm_clock_mhz,
                    gain.cache,
                ),
                gain.gpu_uuid,
            ): gain
            for gain in self.gains
            if gain.left_out is None
        }

    @property
    def compared(self) -> list[BoardGain]:
        """The gains that could be estimated."""
        return [*self._known.values()]

    def gain_of(self, measurement: Measurement) -> BoardGain | None:
        """Return the gain of the board of a measurement, at its place; None if there is none."""
        uuid = measurement.gpu_uuid
        return None if uuid is None else self._known.get((self._place(measurement), uuid))

    def calibrated(self, measurement: Measurement) -> Calibrated:
        """Return the figures of a measurement divided by its board's gain."""
        gain = self.gain_of(measurement)
        if gain is None:
            return Calibrated()
        values: dict[str, float | Interval] = {}
        for metric in METRICS:
            ratio, value = gain.of(metric), measurement.figure(metric)
            if ratio is None or value is None:
                continue
            raw = measurement.estimate(metric)
            # Squares of half widths are added, as in `energy.estimate`.
            half = math.hypot(
                0.0 if raw is None else raw.relative_half_width,
                math.log(ratio.high / ratio.low) / 2,
                NORMAL * gain.kernel_sd[metric],
            )
            half = min(half, _MAX_HALF)
            middle, name = value / ratio.value, calibrated_name(metric)
            values[name] = middle
            values[f"{name}_ci95"] = Interval(middle * math.exp(-half), middle * math.exp(half))
        return Calibrated(**values)  # type: ignore[arg-type]

    def _place(self, m: Measurement) -> BoardPlace:
        station = self._stations.get(m.gpu_uuid or self._run.gpu_uuid)
        model = self._run.gpu_name if station is None else station.gpu_name
        return BoardPlace(model, m.cap, m.enforced_power_limit_w, m.sm_clock_mhz, m.cache)

    def _gains(
        self, place: BoardPlace, boards: Mapping[str, Sequence[Measurement]]
    ) -> Iterable[BoardGain]:
        """Yield the gain of each board at one place, or why it has none."""
        kernels = dict.fromkeys(m.kernel.digest for checks in boards.values() for m in checks)
        # The last good measurement of each kernel, by its digest.
        rows = {
            uuid: {m.kernel.digest: m for m in checks if _usable(m)}
            for uuid, checks in boards.items()
        }
        whole = {uuid: row for uuid, row in rows.items() if set(kernels) <= set(row)}
        ratios: dict[Metric, dict[str, Estimate]] = {}
        kernel_sd: dict[Metric, float] = {}
        for metric in METRICS if len(whole) > 1 else ():
            cells = {
                uuid: [found for digest in kernels if (found := session_mean(row[digest], metric))]
                for uuid, row in whole.items()
            }
            ratios[metric], kernel_sd[metric] = _estimate_gains(cells, metric)
        for uuid, checks in boards.items():
            station: StationInfo | RunInfo = self._stations.get(uuid, self._run)
            gain = BoardGain(uuid, host=station.host, boards=len(whole), **place._asdict())
            if ratios and uuid in whole:
                ours = {str(metric): found[uuid] for metric, found in ratios.items()}
                yield replace(gain, **ours, kernel_sd=kernel_sd)
                continue
            why = "it has not measured all kernels"
            if uuid in whole:
                why = "no other board of the model was measured completely"
            elif bad := [m for m in checks if not _usable(m)]:
                last = bad[-1]
                reason = last.error or ", ".join(last.validity) or "it has no interval"
                why = f"{last.kernel.label}: {reason}"
            yield replace(gain, left_out=why)


def calibrated_name(metric: Metric) -> str:
    """Return the field of `Calibrated` for a metric, such as ``energy_calibrated_mj``."""
    name, _, unit = metric.field.partition("_")
    return f"{name}_calibrated_{unit}"


def calibrated_report(report: Report) -> Report:
    """Return the report with calibrated figures in place of the raw ones, for views that say so.

    What has no gain keeps its figures, and gets the flag `UNCALIBRATED`. It is never stored, and no
    gate may read it: gates compare raw figures, board by board (`report.shift`).
    """
    boards = Boards(report)
    measurements = []
    for m in report.measurements:
        found = boards.calibrated(m)
        time_ms, energy_mj = found.time_calibrated_ms, found.energy_calibrated_mj
        if not m.measured:
            measurements.append(m)
        elif time_ms is None or energy_mj is None:
            measurements.append(m.flagged(UNCALIBRATED))
        else:
            gflops = m.workload.flops / time_ms / 1e6
            calibrated = replace(
                m,
                time_ms=time_ms,
                time_ms_ci95=found.time_calibrated_ms_ci95,
                energy_mj=energy_mj,
                energy_mj_ci95=found.energy_calibrated_mj_ci95,
                edp_mj_ms=found.edp_calibrated_mj_ms,
                edp_mj_ms_ci95=found.edp_calibrated_mj_ms_ci95,
                power_w=energy_mj / time_ms,
                gflops=gflops,
                gflops_per_w=gflops * time_ms / energy_mj,
            )
            measurements.append(calibrated)
    return replace(report, measurements=tuple(measurements))


def calibrated_items(report: Report, boards: Boards) -> tuple[CalibratedItem, ...]:
    """Return the calibrated figures of all measurements whose board has a gain."""
    return tuple(
        CalibratedItem(node_id=m.node_id, **asdict(boards.calibrated(m)))
        for m in report.measurements
        if m.measured and boards.gain_of(m) is not None
    )


def check_gains(report: Report) -> None:
    """Check that a measurement of the report can be calibrated.

    Raises:
        InputError: none can; the message says why.
    """
    boards = Boards(report)
    if any(m.measured and boards.gain_of(m) is not None for m in report.measurements):
        return
    left_out = next((gain.left_out for gain in boards.gains if gain.left_out), None)
    why = left_out or "no two boards of a model have measured the same kernels under one cap"
    raise InputError(
        f"--calibrated needs the gains of boards, and there are none ({why.removesuffix('.')}): "
        "run pytest on several GPUs, or with --gpuenergy-boards always, and name all the runs."
    )


def board_spread(gains: Iterable[BoardGain], metric: Metric) -> float:
    """Return the excess of the board that takes most over the one that takes least: 0.04."""
    found = [gain.of(metric) for gain in gains]
    values = [one.value for one in found if one is not None]
    return max(values) / min(values) - 1 if values else 0.0


def _usable(m: Measurement) -> bool:
    return WIDE_FLAGS.issuperset(m.validity) and all(session_mean(m, metric) for metric in METRICS)


def _estimate_gains(
    cells: Mapping[str, Sequence[SessionMean]], metric: Metric
) -> tuple[dict[str, Estimate], float]:
    """Return the gains of two or more boards, and the deviation of a single kernel about them.

    The variance of a board's mean over the kernels has two parts. What all its measurements have in
    common, the state and the temperature of the card, does not become less with more kernels. The
    rest, each measurement's own scatter and how far a kernel's gain deviates from the board's, is
    estimated from the residuals of the table, with what is known beforehand.
    """
    logs = {uuid: [math.log(cell.mean) for cell in row] for uuid, row in cells.items()}
    count, kernels = len(cells), len(next(iter(cells.values())))
    columns = [fmean(column) for column in zip(*logs.values(), strict=True)]
    means = {uuid: fmean(row) for uuid, row in logs.items()}
    grand = fmean(columns)
    residuals = math.fsum(
        (value - columns[place] - means[uuid] + grand) ** 2
        for uuid, row in logs.items()
        for place, value in enumerate(row)
    )
    own = fmean(cell.relative_error**2 for row in cells.values() for cell in row)
    prior = own + BOARD_KERNEL_SD[metric] ** 2
    degrees = _PRIOR_DEGREES + (count - 1) * (kernels - 1)
    rest = (_PRIOR_DEGREES * prior + residuals) / degrees
    shared = {uuid: max(cell.shared_error for cell in row) ** 2 for uuid, row in cells.items()}
    found = {}
    for uuid in cells:
        weights = {other: (other == uuid) - 1 / count for other in cells}
        in_common = math.fsum(weights[other] ** 2 * shared[other] for other in cells)
        of_rest = math.fsum(weight**2 for weight in weights.values()) * rest / kernels
        variance = in_common + of_rest
        log = t_interval(
            means[uuid] - grand, variance, welch([(of_rest, degrees)], variance), _TAIL
        )
        found[uuid] = Estimate(*map(math.exp, (log.value, log.low, log.high)))
    return found, math.sqrt(max(0.0, rest - own))
