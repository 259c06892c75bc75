"""The runs and measurements that a command line names, and a check that outputs spare them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_gpuenergy import record, report as reports, search, workloads
from pytest_gpuenergy.commands.command_line import listed, tell
from pytest_gpuenergy.record import split_mode
from pytest_gpuenergy.support import InputError, ReportError, matching


def find_runs(runs: Sequence[str]) -> list[Path]:
    """Return the paths of runs that are given by path or id, or this project's latest run."""
    if runs:
        return [reports.find_run(Path(run), Path()) for run in runs]
    latest = reports.latest_run(Path.cwd())
    if latest is None:
        raise InputError(
            f"There is no run under {Path.cwd() / reports.HOME}: run pytest first, or name a run."
        )
    return [latest.path]


def load_runs(paths: Iterable[Path], gpu: str | None = None) -> list[reports.Report]:
    """Read runs and the outputs of older tools; tell how many of these outputs lack figures.

    ``gpu`` names the GPU of older tools' outputs; a run of another one is refused.
    """
    loaded = [
        reports.load_legacy(path, gpu) if reports.is_legacy(path) else reports.load_report(path)
        for path in paths
    ]
    if gpu is not None and not all(report.run.gpu_name == gpu for report in loaded):
        raise InputError(
            "--gpu names the GPU of an older tool's outputs, but these runs name their own: "
            "omit --gpu."
        )
    for report in loaded:
        errors = [m.error for m in report.measurements if m.error]
        total = len(report.measurements)
        if report.run.legacy and 0 < len(errors) < total:
            tell(f"{len(errors)} of {total} outputs have no figures: {errors[0]}")
    return loaded


def runs_of_project(root: Path) -> list[reports.Report]:
    """Read the runs of the project in ``root``; tell which cannot be read and are left out."""
    loaded = []
    for folder in filter(reports.is_run, matching(root / reports.HOME / "runs", "*")):
        try:
            loaded.append(reports.load_report(folder))
        except ReportError as error:
            tell(f"left out: {error}")
    if not loaded:
        raise InputError(f"There is no run under {root / reports.HOME}: run pytest first.")
    return loaded


def check_outputs(
    outputs: Mapping[str, str | Path | None],
    runs: Iterable[str | None] = (),
    folders: Mapping[str, Path | None] | None = None,
    outdirs: Iterable[Path] = (),
) -> None:
    """Check that no output would overwrite another one, or the runs it is made from.

    ``outputs`` and ``folders`` are paths by the names of their options; searches in ``outdirs`` are
    read too.

    Raises:
        InputError: an output would overwrite something.
    """
    targets = [
        reports.ViewTarget(f"--{name}", Path(path))
        for name, path in outputs.items()
        if path is not None and path != "-"
    ]
    targets += [
        reports.ViewTarget(f"--{name}", path, folder=True)
        for name, path in (folders or {}).items()
        if path is not None
    ]
    named = [run for run in runs if run is not None]
    found = find_runs(named) if named else []  # no view may be written to the latest run anyway
    files = [
        file
        for run in found
        for file in (
            reports.find_outputs(run) if reports.is_legacy(run) else reports.files_read(run)
        )
    ]
    reports.check_targets(
        targets, [*files, *(file for outdir in outdirs for file in search.search_files(outdir))]
    )


def select(
    measurements: Sequence[record.Measurement],
    cases: Sequence[str],
    networks: Sequence[str],
    root: Path,
    *,
    in_all_modes: bool = False,
) -> tuple[record.Measurement, ...]:
    """Return the measurements that ``--case`` and ``--network`` name; all if neither is given.

    A case is an id, a workload's name, ``5`` for ``case5``, or ``all`` for the seven cases. With
    ``in_all_modes``, a name also stands for that workload in other modes and layouts.

    Raises:
        InputError: a word names none of them.
    """
    if not cases and not networks:
        return tuple(measurements)
    workloads.check_named(cases, networks)

    def is_called(m: record.Measurement, names: set[str]) -> bool:
        own = m.workload.name
        plain = split_mode(own, m.workload.parameters)[0] if in_all_modes else own
        return own in names or plain in names

    chosen: set[int] = set()
    whole = [text for text in cases if any(reports.is_named(m, text.strip()) for m in measurements)]
    for word in [*whole, *workloads.split_words([text for text in cases if text not in whole])]:
        name = word.strip()
        names = {*workloads.CASES} if name == workloads.ALL else {workloads.numbered_case(name)}
        chosen |= _indices(
            word,
            measurements,
            (
                is_called(m, names) or (name != workloads.ALL and reports.is_named(m, name))
                for m in measurements
            ),
        )
    for word in workloads.split_words(networks):
        names = {workload.name for workload in workloads.network(word, root)}
        chosen |= _indices(word, measurements, (is_called(m, names) for m in measurements))
    return tuple(m for i, m in enumerate(measurements) if i in chosen)


def _indices(
    word: str, measurements: Sequence[record.Measurement], chosen: Iterable[bool]
) -> set[int]:
    """Return the indices of the measurements that ``word`` chooses; there must be one."""
    found = {index for index, is_chosen in enumerate(chosen) if is_chosen}
    if not found:
        names = listed((m.workload.name for m in measurements), "nothing")
        raise InputError(f"Nothing in this report is called {word[:80]!r}: it has {names}.")
    return found
