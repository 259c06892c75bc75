"""What tuning for energy or EDP rather than time saves, with equal numbers of trials.

    python studies/tuning/objectives.py --json objectives.json --budget-s 570
    python studies/tuning/objectives.py --json objectives.json --budget-s 570 --resume
    python studies/tuning/objectives.py --json objectives.json --table

Each search is ``gpuenergy tune`` with a different ``--objective``, from scratch in its own process.
The best kernels, according to the searches' own record files, are then verified and measured
alternately. A search cut short by the budget has no best kernel and is repeated.
Exit code 0 if everything is done, 1 if something is left or failed, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from statistics import geometric_mean
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

from pytest_gpuenergy.record import METRICS, Measurement
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import SPACES, load_records
from pytest_gpuenergy.tuning import find_records
from pytest_gpuenergy.workloads import Workload

BENCH = "tuning/objectives"
FIGURES = ("time_ms", "energy_mj", "edp_mj_ms")
HEADER = (
    "case",
    "objective",
    "trials",
    "tuning (s)",
    "tuning (kJ)",
    "time (µs)",
    "energy (mJ)",
    "EDP (mJ·ms)",
    "time against time's",
    "energy",
    "EDP",
    "notes",
)


def main(argv: Sequence[str] | None = None, tune: Sequence[str] = OURS) -> int:
    """Run the bench and return the exit code; ``tune`` is the command of the tuner."""
    parser = make_parser(__doc__ or "", trials=150)
    parser.add_argument(
        "--objectives",
        type=words(METRICS),
        default=list(METRICS),
        metavar="LIST",
        help=f"Some of {', '.join(METRICS)} (default: all)",
    )
    parser.add_argument(
        "--space", choices=SPACES, default="all", help="Schedules to search (default: all)"
    )
    parser.add_argument(
        "--keep",
        type=positive(int),
        default=1,
        metavar="N",
        help="Kernels in a record file; two for each five contend for the best (default: 1)",
    )
    settings = ("trials", "threads", "seed", "objectives", "space", "keep")
    return run(parser, argv, BENCH, settings, "objectives", partial(_search, tune), table)


def table(content: dict[str, Any]) -> str:
    """The content of a result file as Markdown, with geometric means over the cases."""
    objectives, results = content["settings"]["objectives"], content["results"]
    rows = []
    ratios: dict[str, list[list[float]]] = {objective: [] for objective in objectives}
    for case in content["settings"]["cases"]:
        kernels = results.get(f"{case}/measured", {}).get("kernels", {})
        best = {name: remeasure.best_of(kernels.get(name, []), "time_ms") for name in objectives}
        for objective in objectives:
            found = results.get(f"{case}/{objective}")
            against = _ratios(best[objective], best.get("time"))
            ratios[objective] += [against] if against else []
            rows.append(
                [
                    *(case, objective),
                    *_tuning_cells(found),
                    *measured_cells(best[objective]),
                    *([f"{ratio:.3f}" for ratio in against] or [""] * len(FIGURES)),
                    _notes(found, best[objective]),
                ]
            )
    for objective, of_cases in ratios.items():
        if of_cases:
            means = [f"{geometric_mean(column):.3f}" for column in zip(*of_cases, strict=True)]
            rows.append(
                ["geometric mean", objective, *[""] * 6, *means, f"of {len(of_cases)} cases"]
            )
    return f"{title(content)}\n\n{markdown_table(HEADER, rows, text=(0, 1, len(HEADER) - 1))}"


def _search(
    tune: Sequence[str],
    arguments: argparse.Namespace,
    workload: Workload,
    objective: str,
    budget: steps.Budget,
) -> steps.Result:
    folder = arguments.work / workload.name / objective
    command = [
        *(*tune, *search_options(arguments, workload.name, folder), "--json"),
        *("--objective", objective, "--space", arguments.space, "--keep", str(arguments.keep)),
    ]
    raw = folder / workload.name / "raw"
    limit_s = budget.left_s - RESERVE_S
    found = tuner_process.run_tuner(command, folder, raw, limit_s, arguments.device)
    summary = found.summary()
    if found.exit_code != 0:
        return {"complete": False, **summary, "contenders": []}
    try:
        (outcome,) = json.loads(found.printed)
    except ValueError:
        raise InputError(f"gpuenergy tune printed no outcome: see {folder}.") from None
    best = load_records(find_records(folder, workload)).record(1)
    return {**summary, "outcome": outcome, "contenders": [{"record": best.recipe}]}


def _ratios(measured: Measurement | None, fastest: Measurement | None) -> list[float]:
    """Time, energy and EDP relative to the kernel tuned for time; empty if unknown."""
    if measured is None or fastest is None:
        return []
    return [getattr(measured, name) / getattr(fastest, name) for name in FIGURES]


def _tuning_cells(found: steps.Result | None) -> list[str]:
    if found is None or "trials" not in found:
        return ["", "", ""]
    return [
        str(found["trials"]),
        figure(found["wall_s"], ".0f"),
        figure(found["energy_j"], ".1f", scale=1e-3),
    ]


def _notes(found: steps.Result | None, measured: Measurement | None) -> str:
    if found is None:
        return "not run"
    if not found["complete"]:
        return f"failed: {found['error']}" if found["error"] else "cut short by the budget"
    if measured is None:
        return "not measured"
    return ", ".join(measured.validity)


if __name__ == "__main__":
    sys.exit(main())
