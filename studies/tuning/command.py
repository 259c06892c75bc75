"""The command line and the procedure that the tuning benches share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import remeasure
import steps

from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.support import GpuEnergyError
from pytest_gpuenergy.tuners import installed_tvm
from pytest_gpuenergy.workloads import Workload, choose_workloads

OURS = (sys.executable, "-m", "pytest_gpuenergy.cli", "tune")
RESERVE_S = 60.0
"""The part of the budget that a search leaves for the measurements after it."""

Number = TypeVar("Number", int, float)
Search = Callable[[argparse.Namespace, Workload, str, steps.Budget], steps.Result]


def make_parser(description: str, *, trials: int) -> argparse.ArgumentParser:
    """A parser with the options of all these benches."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--json", type=Path, required=True, metavar="PATH", help="File of results")
    add("--table", action="store_true", help="Run nothing; print existing results as Markdown")
    add("--resume", action="store_true", help="Continue with what --json lacks")
    add("--budget-s", type=positive(float), metavar="S", help="Finish within this many seconds")
    add(
        "--cases",
        default="case1,case4,case5",
        metavar="LIST",
        help="Workloads (default: case1,case4,case5)",
    )
    add(
        "--trials",
        type=positive(int),
        default=trials,
        metavar="N",
        help=f"Trials per search (default: {trials})",
    )
    add(
        "--threads",
        type=positive(int),
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="CPU cores for a tuner (default: all)",
    )
    add("--seed", type=int, default=0, metavar="N", help="Seed of the searches (default: 0)")
    add("--device", default="auto", metavar="DEVICE", help="As --gpu-device (default: auto)")
    add("--work", type=Path, metavar="DIR", help="Tuners' files (default: beside --json)")
    return parser


def run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    bench: str,
    settings: Sequence[str],
    kinds: str,
    search: Search,
    table: Callable[[dict[str, Any]], str],
) -> int:
    """Run a bench from its command line.

    Args:
        parser: from `make_parser`, with the bench's own options.
        argv: the command line.
        bench: its name in the file.
        settings: names of options that must be the same when a file is continued.
        kinds: name of the option that lists the kinds of searches of a workload.
        search: runs one search, from the start of its process to its end.
        table: formats the content of a result file as Markdown.

    Returns:
        The exit code: 0 if everything is done, 1 if something is left or failed, 2 for wrong usage.
    """
    arguments = parser.parse_args(argv)
    try:
        if arguments.table:
            print(table(steps.load_results(arguments.json, bench)))
            return 0
        budget = steps.Budget(arguments.budget_s)
        arguments.workloads = choose_workloads([arguments.cases], root=Path.cwd())
        arguments.cases = [workload.name for workload in arguments.workloads]
        arguments.work = arguments.work or arguments.json.with_suffix(".work")
        found = _about(arguments.device)
        chosen = {name: getattr(arguments, name) for name in ("cases", *settings)}
        chosen |= {name: found[name] for name in ("gpu", "emulated")}
        file = steps.ResultFile(arguments.json, bench, chosen, found, resume=arguments.resume)
        every = _steps(arguments, kinds, search, file, budget)
        complete = steps.do_steps(every, file, budget)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(file.content))
    return 0 if complete else 1


def _steps(
    arguments: argparse.Namespace,
    kinds: str,
    search: Search,
    file: steps.ResultFile,
    budget: steps.Budget,
) -> Iterator[steps.Step]:
    """Yield, for each workload, its searches and then the measurement of what they have found."""
    for workload in arguments.workloads:
        last = f"{workload.name}/measured"
        for kind in getattr(arguments, kinds):
            action = partial(search, arguments, workload, kind, budget)
            yield steps.Step(f"{workload.name}/{kind}", action, 2 * RESERVE_S, spoils=last)

        def measure(workload: Workload = workload) -> steps.Result:
            found = {
                kind: file.results.get(f"{workload.name}/{kind}", {}).get("contenders", [])
                for kind in file.settings[kinds]
            }
            return {"kernels": remeasure.measure_all(arguments.device, workload, found)}

        yield steps.Step(last, measure, RESERVE_S / 2)


def search_options(arguments: argparse.Namespace, case: str, folder: Path) -> list[str]:
    """The options shared by `gpuenergy tune` and `stock_search.py`."""
    return [
        *("--case", case, "--out", str(folder), "--gpu-device", arguments.device),
        *("--trials", str(arguments.trials), "--threads", str(arguments.threads)),
        *("--seed", str(arguments.seed)),
    ]


def positive(kind: type[Number]) -> Callable[[str], Number]:
    """An option type: a number above zero."""

    def number(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not 0 < value < 1e9:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
        return value

    return number


def words(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An option type: a comma-separated list of known words."""

    def chosen(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",")]
        if unknown := [word for word in found if word not in known]:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is not known: give some of {', '.join(known)}"
            )
        return list(dict.fromkeys(found))

    return chosen


def title(content: dict[str, Any]) -> str:
    """One line that says where a file's results come from."""
    about = content["about"]
    emulated = " (emulated)" if about["emulated"] else ""
    return (
        f"{about['gpu']}{emulated}, driver {about.get('driver', 'unknown')}, TVM {about['tvm']}, "
        f"{content['settings']['threads']} threads, {about['started'][:10]}."
    )


def figure(value: float | None, form: str, *, scale: float = 1.0) -> str:
    """A number for a table; empty if unknown."""
    return "" if value is None else format(value * scale, form)


def measured_cells(measured: Measurement | None) -> list[str]:
    """Time in µs, energy in mJ and EDP in mJ ms; ``*`` marks flagged measurements."""
    if measured is None:
        return ["", "", ""]
    doubt = "*" if measured.validity else ""
    return [
        figure(measured.time_ms, ".2f", scale=1e3) + doubt,
        figure(measured.energy_mj, ".3f") + doubt,
        figure(measured.edp_mj_ms, ".4g") + doubt,
    ]


def _about(device: str) -> dict[str, Any]:
    """Where the results come from: the GPU and software versions."""
    with open_device(device) as card:
        return {
            "gpu": card.name,
            "uuid": card.uuid,
            "emulated": card.emulated,
            "tvm": installed_tvm(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            **card.describe(),
        }
