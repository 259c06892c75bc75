"""TVM's own tuner against ours: same machine, same workloads, same number of trials.

    python studies/tuning/against_stock.py --json stock.json --budget-s 570
    python studies/tuning/against_stock.py --json stock.json --budget-s 570 --resume
    python studies/tuning/against_stock.py --json stock.json --table

Each search starts from scratch in its own process, and the same clock, outside it, times its
trials. ``stock`` is ``ms.tune_tir`` with its defaults (XGBoost, local builder on all cores, local
runner), ``direct`` is ``gpuenergy tune`` over TVM's schedules, ``all`` is the same over all our
schedules. A trial is a candidate that a tuner builds and times, or tries to, including failed ones;
candidates that its search discards before that do not count. Afterwards the fastest kernels of all
tuners are verified and measured alternately, in the same way. Exit code 0 if everything is done, 1
if something is left or failed, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import remeasure
import steps
import tuner_process
from command import (
    OURS,
    RESERVE_S,
    figure,
    make_parser,
    measured_cells,
    positive,
    run,
    search_options,
    title,
    words,
)

from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.workloads import Workload

BENCH = "tuning/against_stock"
TUNERS = ("stock", "direct", "all")
STOCK = (sys.executable, str(Path(__file__).with_name("stock_search.py")))
HEADER = (
    "case",
    "tuner",
    "trials",
    "failed",
    "first trial ended (s)",
    "last (s)",
    "trials/min",
    "best in the search (µs)",
    "as good as TVM's best after (s)",
    "measured (µs)",
    "energy (mJ)",
    "EDP (mJ·ms)",
    "tuning (kJ)",
    "notes",
)


def main(argv: Sequence[str] | None = None, stock: Sequence[str] = STOCK) -> int:
    """Run the bench and return the exit code; ``stock`` is the command of TVM's own tuner."""
    parser = make_parser(__doc__ or "", trials=200)
    parser.add_argument(
        "--tuners",
        type=words(TUNERS),
        default=list(TUNERS),
        metavar="LIST",
        help=f"Some of {', '.join(TUNERS)} (default: all)",
    )
    parser.add_argument(
        "--search-limit-s",
        type=positive(float),
        default=480.0,
        metavar="S",
        help="End a search after this time; its trials so far count (default: 480)",
    )
    parser.add_argument(
        "--kernels",
        type=positive(int),
        default=2,
        metavar="N",
        help="Fastest kernels of each search to measure (default: 2)",
    )
    settings = ("trials", "threads", "seed", "tuners", "search_limit_s", "kernels")
    return run(parser, argv, BENCH, settings, "tuners", partial(_search, stock), table)


def table(content: dict[str, Any]) -> str:
    """The content of a result file as Markdown."""
    rows = [
        [case, tuner, *_cells(content["results"], case, tuner)]
        for case in content["settings"]["cases"]
        for tuner in content["settings"]["tuners"]
    ]
    return f"{title(content)}\n\n{markdown_table(HEADER, rows, text=(0, 1, len(HEADER) - 1))}"


def _search(
    stock: Sequence[str],
    arguments: argparse.Namespace,
    workload: Workload,
    tuner: str,
    budget: steps.Budget,
) -> steps.Result:
    """Run one search, from the start of its process to its end."""
    folder = arguments.work / workload.name / tuner
    options = search_options(arguments, workload.name, folder)
    if tuner == "stock":
        command, raw = [*stock, *options], folder
    else:
        command = [*OURS, *options, "--space", tuner, "--no-energy", "--keep", "1"]
        raw = folder / workload.name / "raw"
    limit_s = min(arguments.search_limit_s, budget.left_s - RESERVE_S)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    found = tuner_process.run_tuner(command, folder, raw, limit_s, arguments.device)
    # A search cut short by the budget could have continued, so it is repeated.
    at_its_limit = found.exit_code is None and limit_s == arguments.search_limit_s
    return {
        "complete": found.exit_code == 0 or at_its_limit,
        "started": started,
        "limit_s": limit_s,
        **found.summary(),
        "contenders": tuner_process.contenders(raw, arguments.kernels),
    }


def _cells(results: dict[str, Any], case: str, tuner: str) -> list[str]:
    found = results.get(f"{case}/{tuner}")
    if found is None:
        return [*[""] * 11, "not run"]
    if "trials" not in found:
        return [*[""] * 11, f"failed: {found['error']}"]
    measured = results.get(f"{case}/measured", {}).get("kernels", {}).get(tuner, [])
    stock_ms = results.get(f"{case}/stock", {}).get("best_ms")
    reached_s = (
        elapsed_s
        for elapsed_s, best_ms in found["curve"]
        if stock_ms is not None and best_ms is not None and best_ms <= stock_ms
    )
    return [
        str(found["trials"]),
        str(sum(found["failed"].values())),
        figure(found["first_trial_s"], ".1f"),
        figure(found["last_trial_s"], ".0f"),
        figure(found["trials_per_min"], ".0f"),
        figure(found["best_ms"], ".2f", scale=1e3),
        figure(next(reached_s, None), ".0f"),
        *measured_cells(remeasure.best_of(measured, "time_ms")),
        figure(found["energy_j"], ".1f", scale=1e-3),
        _notes(found, measured),
    ]


def _notes(found: steps.Result, measured: Sequence[dict[str, Any]]) -> str:
    notes = []
    if found["exit_code"] is None:
        notes.append(f"ended after {found['limit_s']:.0f} s")
    elif found["exit_code"]:
        notes.append(f"failed: {found['error']}")
    wrong = [one for one in measured if one["outcome"] != "correct"]
    notes += [f"{len(wrong)} of {len(measured)} kernels wrong"] if wrong else []
    flags = {flag for one in measured for flag in one.get("validity", ())}
    return ", ".join([*notes, *sorted(flags)])


if __name__ == "__main__":
    sys.exit(main())
