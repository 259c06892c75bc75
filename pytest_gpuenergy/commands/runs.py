"""Runs that a command line names, and the outputs that must not overwrite them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import tell
from pytest_gpuenergy.support import InputError, ReportError, matching

if TYPE_CHECKING:
    from pytest_gpuenergy.report import Report


def find_runs(runs: Sequence[str]) -> list[Path]:
    """Paths of the runs given by path or by id; without any, this project's latest run.

    Raises:
        InputError: there is no latest run.
    """
    from pytest_gpuenergy.report import HOME, find_run, latest_run

    if runs:
        return [find_run(Path(run), Path()) for run in runs]
    latest = latest_run(Path.cwd())
    if latest is None:
        raise InputError(
            f"There is no run under {Path.cwd() / HOME}: run pytest first, or name a run."
        )
    return [latest.path]


def load_runs(paths: Iterable[Path], gpu: str | None = None) -> list[Report]:
    """Read runs, and what older tools have left; says how many outputs of those have no figures.

    Args:
        paths: see `find_runs`.
        gpu: the name of the GPU of older tools' outputs; None where it is unknown.

    Raises:
        InputError: one cannot be read, or a run names another GPU than ``gpu``.
    """
    from pytest_gpuenergy.report import is_legacy, load_legacy, load_report

    reports = [load_legacy(path, gpu) if is_legacy(path) else load_report(path) for path in paths]
    if gpu is not None and not all(report.run.gpu_name == gpu for report in reports):
        raise InputError(
            "--gpu names the GPU of an older tool's outputs, but these runs name their own: "
            "omit --gpu."
        )
    for report in reports:
        errors = [m.error for m in report.measurements if m.error]
        total = len(report.measurements)
        if report.run.legacy and 0 < len(errors) < total:
            tell(f"{len(errors)} of {total} outputs have no figures: {errors[0]}")
    return reports


def runs_of_project(root: Path) -> list[Report]:
    """The runs of the project in ``root``; one that cannot be read is left out, and named.

    Raises:
        InputError: there is none.
    """
    from pytest_gpuenergy.report import HOME, is_run, load_report

    reports = []
    for folder in filter(is_run, matching(root / HOME / "runs", "*")):
        try:
            reports.append(load_report(folder))
        except ReportError as error:
            tell(f"left out: {error}")
    if not reports:
        raise InputError(f"There is no run under {root / HOME}: run pytest first.")
    return reports


def check_outputs(
    outputs: Mapping[str, str | Path | None],
    runs: Iterable[str | None] = (),
    folders: Mapping[str, Path | None] | None = None,
    outdirs: Iterable[Path] = (),
) -> None:
    """Check that no output would overwrite another one, or the runs it is made from.

    Args:
        outputs: paths by the names of their options.
        runs: as on the command line; None is skipped.
        folders: likewise, of trees.
        outdirs: folders of searches that are read, too.

    Raises:
        InputError: one would.
    """
    from pytest_gpuenergy.report import ViewTarget, check_targets, files_read, is_legacy, outputs_in
    from pytest_gpuenergy.search import files_of

    targets = [
        ViewTarget(f"--{name}", Path(path))
        for name, path in outputs.items()
        if path is not None and path != "-"
    ]
    targets += [
        ViewTarget(f"--{name}", path, folder=True)
        for name, path in (folders or {}).items()
        if path is not None
    ]
    named = [run for run in runs if run is not None]
    found = find_runs(named) if named else []  # no view may be written to the latest run anyway
    files = [
        file for run in found for file in (outputs_in(run) if is_legacy(run) else files_read(run))
    ]
    check_targets(targets, [*files, *(file for one in outdirs for file in files_of(one))])
