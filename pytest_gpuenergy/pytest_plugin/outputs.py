"""The output of a run: views on disk and the summary in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_gpuenergy.gate import shared_identities, verdict_values
from pytest_gpuenergy.pytest_plugin.gate import GatePlugin
from pytest_gpuenergy.pytest_plugin.header import emulated_line
from pytest_gpuenergy.pytest_plugin.options import Options
from pytest_gpuenergy.pytest_plugin.session import Session
from pytest_gpuenergy.record import VERIFIED
from pytest_gpuenergy.report import (
    HOME,
    Report,
    ViewTarget,
    anchor_lines,
    best_lines,
    board_lines,
    by_model,
    check_targets,
    check_writable,
    duration_lines,
    files_read,
    find_run,
    idle_caps,
    summary,
    write_classic_csv,
    write_json,
)
from pytest_gpuenergy.support import GpuEnergyError, told, wrapped


def check_outputs(options: Options) -> None:
    """Check that the views can be written later, each to a path of its own.

    Raises:
        InputError: a view would overwrite another one, the baseline or a run's measurements.
        ReportError: a view cannot be written.
    """
    asked = (
        ("json", options.json_path, False),
        ("csv", options.csv_folder, True),
        ("html", options.html_path, False),
    )
    targets = [
        ViewTarget(f"--gpuenergy-{name}", path, folder)
        for name, path, folder in asked
        if path is not None
    ]
    baseline = options.baseline
    check_targets(targets, files_read(find_run(baseline, options.root)) if baseline else ())
    for target in targets:
        check_writable(target.path, folder=target.folder)


def write_outputs(
    session: Session,
    gate: GatePlugin,
    searches_of: Callable[[Report], Sequence[Mapping[str, Any]]],
) -> list[str]:
    """Write the views to the run folder and the requested paths; returns the problems.

    Args:
        session: the session, which has the measurements and the options.
        gate: judges what the HTML page shows next to the baseline.
        searches_of: returns what the page shows of searches for the kernels of a report.
    """
    try:
        report = session.outcome
    except (GpuEnergyError, OSError) as error:
        return [told(error)]
    if report is None:
        return []
    folder = session.options.root / HOME / "runs" / session.run_id
    json_paths = {folder / "report.json", session.options.json_path} - {None}
    csv_folders = {folder / "csv", session.options.csv_folder} - {None}
    html_paths = {session.options.html_path} - {None}
    problems = shared_identities(report.measurements)[:1]  # each worker checked only its own items
    baseline = gate.baseline_for(report.run)
    verdicts = None
    if html_paths and baseline is not None and (comparison := gate.compare(report)) is not None:
        verdicts = verdict_values(comparison)
    searches: Sequence[Mapping[str, Any]] = ()
    try:
        searches = searches_of(report) if html_paths else ()
    except (GpuEnergyError, OSError) as error:
        problems.append(told(error))
    outputs: list[tuple[Callable[[Report, Path], object], set[Path | None]]] = [
        (write_json, json_paths),
        (write_classic_csv, csv_folders),
    ]
    if html_paths:
        # To import it takes a tenth of the time until a run without a page begins.
        from pytest_gpuenergy.report import write_html

        page = partial(write_html, baseline=baseline, verdicts=verdicts, searches=searches)
        outputs.append((page, html_paths))
    for write, targets in outputs:
        for target in targets:
            assert target is not None
            try:
                write(report, target)
            except (GpuEnergyError, OSError) as error:
                problems.append(f"{told(error)} The measurements are in {folder}.")
    return problems


def summary_lines(session: Session, verbosity: int = 0, width: int | None = None) -> Iterator[str]:
    """A table per workload and cap, the best of each workload, and where the report is.

    With ``verbosity`` below zero, the tables per cap are omitted. Empty when nothing was measured.
    Lines have at most ``width`` characters, but paths are left whole.
    """
    try:
        report = session.outcome
    except (GpuEnergyError, OSError):
        return  # `write_outputs` has reported it
    if report is None or not report.measurements:
        return
    emulated = report.run.emulated
    if emulated and not session.card.opened:  # pytest-xdist hides its workers' headers
        yield from wrapped(emulated_line(report.run.gpu_name), width)
    sort, parts = session.options.sort, by_model(report)
    for part in parts:
        rows, name = part.measurements, part.run.gpu_name
        if len(parts) > 1:
            yield from wrapped(f"on {name}", width)
        if verbosity >= 0:
            yield from summary(rows, emulated=emulated, width=width, sort=sort, gpu_name=name)
        yield from best_lines(rows, emulated=emulated, width=width)
    if session.options.durations:
        for line in duration_lines(report.measurements):
            yield from wrapped(line, width, whole_words=True)
    for sentence in _sentences(session, report):
        yield from wrapped(sentence, width, whole_words=True)
    yield from _places(session, width)


def _sentences(session: Session, report: Report) -> Iterator[str]:
    measurements = report.measurements
    if verified := sum(m.verified_only for m in measurements):
        yield f"{verified} of {len(measurements)} kernels are {VERIFIED}"
    if flagged := sum(bool(m.validity) for m in measurements):
        yield f"{flagged} of {len(measurements)} measurements are flagged (see validity)"
    yield from anchor_lines(measurements, report.anchors, emulated=report.run.emulated)
    yield from board_lines(report)
    for sentence in session.restored:
        yield f"restored after a killed run: {sentence}"
    if idle := idle_caps(measurements):
        yield f"caps without effect (no kernel was held back): {', '.join(idle)}"


def _places(session: Session, width: int | None) -> Iterator[str]:
    """The paths of the views, on one line if there is room."""
    options = session.options
    folder = options.root / HOME / "runs" / session.run_id
    written = {
        "report": options.json_path or folder / "report.json",
        "CSV": options.csv_folder or folder / "csv",
        "page": options.html_path,
    }
    places = [f"{name}: {path}" for name, path in written.items() if path is not None]
    line = ", ".join(places)
    yield from [line] if width is None or len(line) <= width else places
