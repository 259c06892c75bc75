"""One report from several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report.store import UNKNOWN_GPU, Report, joined, latest_only
from pytest_gpuenergy.support import ReportInputError


def merge(reports: Sequence[Report]) -> Report:
    """One report from several runs on the same GPU model, or of what one run left on several hosts.

    Of an item measured more than once, the measurement of the latest run is kept; within a run, the
    latest measurement, with the flags it has got on any host.

    Raises:
        ReportInputError: the runs differ in GPU model, cache state, or in being emulated or
            legacy, or their GPUs are unknown.
    """
    ordered = sorted(reports, key=lambda report: report.run.started)
    last = ordered[-1]
    for report in ordered:
        same_run = report.run.run_id == last.run.run_id  # which may have been on several models
        for name in ("emulated", "legacy") if same_run else ("gpu_name", "emulated", "legacy"):
            ours, theirs = getattr(last.run, name), getattr(report.run, name)
            if ours != theirs:
                raise ReportInputError(
                    f"Runs {last.run.run_id} and {report.run.run_id} cannot be merged: "
                    f"{name} is {ours!r} in one and {theirs!r} in the other."
                )
    if len(ordered) > 1 and last.run.gpu_name == UNKNOWN_GPU:
        raise ReportInputError(
            f"Runs {ordered[0].run.run_id} and {last.run.run_id} cannot be merged, because their "
            "GPUs are unknown: name the GPU with --gpu."
        )
    runs = by_run(ordered)
    measurements = [
        m
        for parts in runs
        for m in _in_turn([m for part in parts for m in part.measurements], alone=len(parts) == 1)
    ]
    if len({m.cache for m in measurements}) > 1:
        raise ReportInputError(
            f"Runs {ordered[0].run.run_id} and {last.run.run_id} cannot be merged: some kernels "
            "were measured with a hot cache and others with a cold one."
        )
    anchors = tuple(dict.fromkeys(check for report in ordered for check in report.anchors))
    tables = [report.run.cap_table_w for report in ordered if report.run.cap_table_w]
    run = replace(last.run, cap_table_w=tables[-1]) if tables else last.run
    stations = joined(station for report in ordered for station in report.stations)
    # The controller and the host of a worker have the same ones.
    board_checks = {
        (check.node_id, check.started, check.wall_s): check
        for report in ordered
        for check in report.board_checks
    }
    return Report(run, latest_only(measurements), anchors, stations, tuple(board_checks.values()))


def by_run(reports: Iterable[Report]) -> list[list[Report]]:
    """The reports of each run: what it has left on each of its hosts."""
    found: dict[str, list[Report]] = {}
    for report in reports:
        found.setdefault(report.run.run_id, []).append(report)
    return list(found.values())


def _in_turn(measurements: list[Measurement], *, alone: bool) -> list[Measurement]:
    """One run's measurements by time; of the same one from two hosts, that with more flags last."""
    if alone:
        return measurements
    return sorted(measurements, key=lambda m: (m.started, len(m.validity)))
