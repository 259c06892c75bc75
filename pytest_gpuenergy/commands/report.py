"""``gpuenergy report``: merges runs and writes views of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pytest_gpuenergy import gate, report as reports, search
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_schema_option,
    path_argument,
    print_lines,
    stdout_width,
    target_argument,
    write_text,
)
from pytest_gpuenergy.commands.kernel_records import add_choice
from pytest_gpuenergy.commands.runs import (
    check_outputs,
    find_runs,
    load_runs,
    runs_of_project,
    select,
)
from pytest_gpuenergy.support import InputError, emulated_mark, wrapped

TEXTS = {
    "json": "the JSON report",
    "tidy": "one CSV table with a row per measurement and a column per field",
    "md": "Markdown, as for the summary of a CI job",
    "html": "one HTML page with charts that works offline",
    "bencher": "Bencher Metric Format",
    "gha": "what github-action-benchmark's customSmallerIsBetter reads",
}
"""Options that take a path, and the view that each writes there."""

_ONLY_RAW = ("csv", "best_perf", "bencher", "gha")
"""Options whose views have no place for the mark of calibrated figures."""

_ONLY_FIGURES = ("csv", "bencher", "gha")
"""Options whose views have only kernels with figures."""

_ONLY_RUNS = (
    *(name for name in TEXTS if name != "html"),
    *("csv", "best_perf", "parquet", "baseline", "trend", "mean", "calibrated", "gpu"),
    *("case", "network"),
)
"""Options that need measurements."""


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``report``."""
    parser = add_command(
        subparsers,
        "report",
        run,
        summary=summary,
        description="Runs on the same GPU are merged; if an item was measured twice, the later "
        "measurement counts. Without an output, the summary is printed. Of searches of gpuenergy "
        "optimize, the page shows the graphs.",
        example="""
gpuenergy report
gpuenergy report .gpuenergy/runs/* --json sweep.json --csv results --html sweep.html
gpuenergy report --mean first.json second.json third.json --json baseline.json
gpuenergy report --html now.html --baseline nightly.json --trend
gpuenergy report --bencher bencher.json --md - >> "$GITHUB_STEP_SUMMARY"
gpuenergy report out --html searches.html
gpuenergy report nightly.json --json -
gpuenergy report --case 5 --case "bench/test_conv2d.py::test_conv2d[case1-k01-300W]"
gpuenergy report kernel_outputs --gpu "NVIDIA A100" --csv results
""",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="Run folder, run id of this project, JSON report, --outdir of gpuenergy optimize, or "
        "folder of an older tool's text outputs (default: this project's latest run)",
    )
    add_choice(parser, "Only measurements of workloads")
    parser.add_argument(
        "--mean",
        action="store_true",
        help="For an item measured in several runs, show the geometric mean instead of the latest "
        "measurement; the runs may be on several boards of a model",
    )
    parser.add_argument(
        "--sort",
        metavar="KEY",
        default="rank",
        help="Sort the summary's tables by rank, name, time, energy, edp, power, gflops or "
        "gflops_per_w, the best first (default: rank)",
    )
    parser.add_argument(
        "--calibrated",
        action="store_true",
        help="Show figures divided by the gain of their board in the summary and with --md; "
        "--json, --tidy, --parquet and --html have both anyway",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="Name of the GPU on which an older tool's outputs were measured (default: unknown)",
    )
    outputs = parser.add_argument_group("outputs (a PATH of - is the terminal)")
    for name, what in TEXTS.items():
        outputs.add_argument(
            f"--{name}", metavar="PATH", type=target_argument, help=f"Write {what}"
        )
    outputs.add_argument(
        "--csv", metavar="DIR", type=path_argument, help="Write the classic CSV tree"
    )
    outputs.add_argument(
        "--best-perf",
        metavar="DIR",
        type=path_argument,
        help="Write a line for each contender in matrix products and convolutions, into a folder "
        "for each size",
    )
    outputs.add_argument(
        "--parquet", metavar="PATH", type=path_argument, help="Write the table of --tidy as Parquet"
    )
    add_schema_option(outputs, "--json; needs no run")
    parser.add_argument(
        "--baseline",
        metavar="RUN",
        help="Earlier run or JSON report with which the HTML page compares",
    )
    parser.add_argument(
        "--trend",
        metavar="RUN",
        nargs="*",
        help="Earlier runs whose figures the HTML page shows over time (without RUN: all of this "
        "project)",
    )


def run(arguments: Namespace) -> int:
    """Merge the runs, and write or print their views."""
    from msgspec.structs import replace

    for name in ("baseline", "trend"):
        if getattr(arguments, name) is not None and arguments.html is None:
            raise InputError(f"--{name} is shown on the HTML page only: give --html too.")
    for name in _ONLY_RAW:
        if arguments.calibrated and getattr(arguments, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} has raw figures only: give it without --calibrated."
            )
    sort = reports.check_sort(arguments.sort, "--sort")
    files = {name: getattr(arguments, name) for name in (*TEXTS, "parquet", "schema")}
    folders = {"csv": arguments.csv, "best-perf": arguments.best_perf}
    named, outdirs = _split_searches(arguments.runs)
    check_outputs(files, [*named, arguments.baseline, *(arguments.trend or ())], folders, outdirs)
    if arguments.schema is not None:
        write_text(reports.schema_document(), arguments.schema)
    outputs = {**files, **folders, "schema": None}
    written = any(path is not None for path in outputs.values())
    if arguments.schema is not None and not arguments.runs and not written:
        return 0
    found = [record for path in outdirs for record in search.read_searches(path)]
    searches = list({record.folder.resolve(): record for record in found}.values())  # each once
    if searches and not named:
        _show_searches_alone(searches, arguments, outdirs[0])
        return 0
    if searches and arguments.html is None and written:
        raise InputError(
            f"The searches in {outdirs[0]} are shown on the HTML page only: give --html too, or "
            "name the run alone."
        )
    runs = load_runs(find_runs(named), arguments.gpu)
    report = reports.mean_of_runs(runs) if arguments.mean else reports.merge(runs)
    chosen = select(report.measurements, arguments.case, arguments.network, Path.cwd())
    report = replace(report, measurements=chosen)
    _refuse_useless(report, arguments)
    if arguments.calibrated:
        reports.check_gains(report)
    _write_views(report, runs, searches, arguments)
    if arguments.schema is None and not written:
        _print_summary(report, sort, calibrated=arguments.calibrated)
        if searches:
            _print_searches(searches)
    return 0


def _refuse_useless(report: reports.Report, arguments: Namespace) -> None:
    """Refuse a report whose views would be empty."""
    measurements = report.measurements
    if not measurements:
        raise InputError(
            f"Run {report.run.run_id} has no measurements, so there is nothing to report: run "
            "pytest again, or name another run."
        )
    if any(m.measured for m in measurements):
        return
    why = measurements[0].error or measurements[0].why_no_figures
    if report.run.legacy:
        raise InputError(f"None of the {len(measurements)} outputs can be used: {why}")
    for name in _ONLY_FIGURES:
        if getattr(arguments, name) is not None:
            raise InputError(
                f"--{name} has figures only, and none of the {len(measurements)} kernels has any "
                f"({why}): omit --{name}."
            )


def _write_views(
    report: reports.Report,
    runs: Sequence[reports.Report],
    searches: Sequence[search.SearchRecord],
    arguments: Namespace,
) -> None:
    """Write each view of a report, its runs and searches, whose option is given.

    Raises:
        ReportError: a view cannot be written.
    """

    def markdown(report: reports.Report) -> str:
        shown = reports.calibrated_report(report) if arguments.calibrated else report
        return reports.markdown(shown, calibrated=arguments.calibrated)

    texts: dict[str, Callable[[reports.Report], str]] = {
        "json": reports.json_document,
        "tidy": reports.tidy_csv,
        "md": markdown,
        "html": lambda report: _page(report, runs, searches, arguments),
        "bencher": reports.bencher_json,
        "gha": reports.github_action_json,
    }
    for name, text in texts.items():
        if (target := getattr(arguments, name)) is not None:
            write_text(text(report), target)
    if arguments.csv is not None:
        reports.write_classic_csv(report, arguments.csv)
    if arguments.best_perf is not None and not reports.write_best_perf(report, arguments.best_perf):
        raise InputError(
            "--best-perf has matrix products and convolutions only, and nothing was written since "
            "this report has neither: omit --best-perf."
        )
    if arguments.parquet is not None:
        reports.write_parquet(report, arguments.parquet)


def _page(
    report: reports.Report,
    runs: Sequence[reports.Report],
    searches: Sequence[search.SearchRecord],
    arguments: Namespace,
) -> str:
    """Return the HTML page, with verdicts on a baseline and the trend over earlier runs."""
    baseline = verdicts = trend = None
    if arguments.baseline is not None:
        (baseline,) = load_runs(find_runs([arguments.baseline]))
        verdicts = gate.page_verdicts(baseline, report, gate.GateSettings())
    if arguments.trend is not None:
        earlier = arguments.trend and load_runs(find_runs(arguments.trend))
        by_id = {run.run.run_id: run for run in [*(earlier or runs_of_project(Path.cwd())), *runs]}
        trend = gate.trend_values(by_id.values())
    graphs = [search.search_values(searched) for searched in searches]
    return reports.html_page(report, baseline, verdicts=verdicts, trend=trend, searches=graphs)


def _print_summary(report: reports.Report, sort: str, *, calibrated: bool) -> None:
    """Print the tables of a report by GPU model, and lines about its boards."""
    report = reports.calibrated_report(report) if calibrated else report
    emulated = report.run.emulated
    width = stdout_width()
    for part in reports.by_model(report):
        rows, run = part.measurements, part.run
        heading = f"{run.gpu_name}{emulated_mark(emulated)}, run {run.run_id}"
        print_lines(wrapped(heading, width))
        print_lines(
            reports.summary(
                rows,
                emulated=emulated,
                width=width,
                sort=sort,
                gpu_name=run.gpu_name,
                calibrated=calibrated,
            )
        )
        print_lines(reports.best_lines(rows, emulated=emulated, width=width, calibrated=calibrated))
    for line in [
        *reports.board_lines(report),
        *(reports.calibration_lines(report) if calibrated else ()),
    ]:
        print_lines(wrapped(line, width, whole_words=True))


def _split_searches(named: Iterable[str]) -> tuple[list[str], list[Path]]:
    """Divide what was named into runs and folders of searches."""
    runs, searches = list[str](), list[Path]()
    for name in named:
        path = Path(name)
        if not reports.is_run(path) and search.search_folders(path):
            searches.append(path)
        else:
            runs.append(name)
    return runs, searches


def _show_searches_alone(
    searches: Sequence[search.SearchRecord], arguments: Namespace, first: Path
) -> None:
    """Write the page of searches without a run, or print what they have gained.

    Raises:
        InputError: an option is given that needs a run.
        ReportError: the page cannot be written.
    """
    for name in _ONLY_RUNS:
        if getattr(arguments, name):
            raise InputError(
                f"--{name.replace('_', '-')} is of measurements, and {first} has searches only: "
                "omit it, or name a run, too, such as one of bench/test_search.py --search-out "
                f"{first}."
            )
    if arguments.html is None:
        _print_searches(searches)
        return
    latest = max(searches, key=lambda one: one.run.started)
    graphs = [search.search_values(searched) for searched in searches]
    write_text(reports.html_page(reports.Report(latest.run, ()), searches=graphs), arguments.html)


def _print_searches(searches: Sequence[search.SearchRecord]) -> None:
    """Print a table of what searches have gained, and the sums."""
    summary = search.summarize((searched.spec, searched.state) for searched in searches)
    assert summary is not None  # each has a baseline
    print_lines(search.summary_lines(summary))
