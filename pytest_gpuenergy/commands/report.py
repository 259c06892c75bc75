"""``gpuenergy report``: merges runs and writes views of them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import report_searches
from pytest_gpuenergy.commands.command_line import Subparsers, add_command, write_text
from pytest_gpuenergy.commands.kernel_records import add_choice
from pytest_gpuenergy.commands.report_views import TEXTS, print_summary, write_views
from pytest_gpuenergy.commands.runs import check_outputs, find_runs, load_runs
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.report import Report


_ONLY_RAW = ("csv", "best_perf", "bencher", "gha")
"""Options whose views have no place for the mark of calibrated figures."""

_ONLY_FIGURES = ("csv", "bencher", "gha")
"""Options whose views have only kernels with figures."""

_OF_RUNS = (
    *(name for name in TEXTS if name != "html"),
    *("csv", "best_perf", "parquet", "baseline", "trend", "mean", "calibrated", "gpu"),
    *("case", "network"),
)
"""Options that need measurements."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``report``."""
    parser = add_command(
        subparsers,
        "report",
        run,
        summary="Merge runs and write them as a page, tables or other tools' formats",
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
        help="Of an item measured in several runs, take the geometric mean instead of the latest "
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
        "--gpu", metavar="NAME", help="GPU of an older tool's outputs (default: unknown)"
    )
    outputs = parser.add_argument_group("outputs; - as PATH is the terminal")
    for name, what in TEXTS.items():
        outputs.add_argument(f"--{name}", metavar="PATH", help=f"Write {what}")
    outputs.add_argument("--csv", metavar="DIR", type=Path, help="Write the classic CSV tree")
    outputs.add_argument(
        "--best-perf",
        metavar="DIR",
        type=Path,
        help="Write a line for each contender in matrix products, into a folder for each size",
    )
    outputs.add_argument(
        "--parquet", metavar="PATH", type=Path, help="Write the table of --tidy as Parquet"
    )
    outputs.add_argument(
        "--schema", metavar="PATH", help="Write the JSON Schema of --json; needs no run"
    )
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
    """Merge, write, print; 1 if a view cannot be written, 2 if a run cannot be read or used."""
    from pytest_gpuenergy.report import check_sort, mean_of_runs, merge

    asked = {name: getattr(arguments, name) for name in TEXTS}
    for name in ("baseline", "trend"):
        if getattr(arguments, name) is not None and asked["html"] is None:
            raise InputError(f"--{name} is shown on the HTML page only: give --html too.")
    for name in _ONLY_RAW:
        if arguments.calibrated and getattr(arguments, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} has raw figures only: give it without --calibrated."
            )
    sort = check_sort(arguments.sort, "--sort")
    paths = {name: getattr(arguments, name) for name in (*TEXTS, "parquet", "schema")}
    folders = {"csv": arguments.csv, "best-perf": arguments.best_perf}
    named, outdirs = report_searches.split(arguments.runs)
    read = [*named, arguments.baseline, *(arguments.trend or ())]
    check_outputs(paths, read, folders, outdirs)
    if arguments.schema is not None:
        from pytest_gpuenergy.report import schema_document

        write_text(schema_document(), arguments.schema)
    written = [*asked.values(), *folders.values(), arguments.parquet]
    if arguments.schema is not None and not arguments.runs and written.count(None) == len(written):
        return 0
    searches = report_searches.read(outdirs)
    if searches and not named:
        given = [name for name in _OF_RUNS if getattr(arguments, name)]
        report_searches.show_alone(searches, asked["html"], given, outdirs[0])
        return 0
    if searches and asked["html"] is None and written.count(None) < len(written):
        raise InputError(
            f"The searches in {outdirs[0]} are shown on the HTML page only: give --html too, or "
            "name the run alone."
        )
    runs = load_runs(find_runs(named), arguments.gpu)
    report = _chosen(mean_of_runs(runs) if arguments.mean else merge(runs), arguments)
    _refuse_useless(report, arguments)
    if arguments.calibrated:
        from pytest_gpuenergy.report import check_gains

        check_gains(report)
    write_views(report, runs, searches, arguments)
    if arguments.schema is None and written.count(None) == len(written):
        print_summary(report, sort, calibrated=arguments.calibrated)
        if searches:
            report_searches.print_searches(searches)
    return 0


def _chosen(report: Report, arguments: Namespace) -> Report:
    from msgspec.structs import replace

    from pytest_gpuenergy.commands.selection import select

    found = select(report.measurements, arguments.case, arguments.network, Path.cwd())
    return replace(report, measurements=found)


def _refuse_useless(report: Report, arguments: Namespace) -> None:
    """Refuse what would make empty views.

    Raises:
        InputError: nothing was measured, or there are no figures for a view that has only figures.
    """
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
