"""How much of what a long search finds do its first trials find?

    gpuenergy gemm tune "MNK=1024 t=1000; MNK=4096 mode=bfloat16 t=1000" --no-energy --out tuned
    python bench/first_trials.py tuned [--first 16]

A search does not know how many trials follow, so that one long search answers this.
Speeds are those of single trials, which last 30 ms: their noise favours the longer search.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.report.tables import markdown_table
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.tuning.trial import IDENTITY_FILE, TRIALS_FILE, read_trials

HEADER = ("workload", "trials", "best (ms)", "found by trial", "of its speed by trial {first}")


@dataclass(frozen=True)
class Search:
    """One search, by the times of its trials.

    Attributes:
        workload: its name.
        times_ms: of the trials in order; infinite for those that failed.
    """

    workload: str
    times_ms: Sequence[float]

    @property
    def best_ms(self) -> float:
        """The least of all times."""
        return min(self.times_ms)

    def share(self, first: int) -> float:
        """The speed of the best of the first trials, relative to that of the best of all."""
        return self.best_ms / min(self.times_ms[:first])


def searches(folder: Path) -> list[Search]:
    """The searches whose raw results lie anywhere in a folder.

    Raises:
        InputError: there are none, or they are damaged or without a correct kernel.
    """
    found = []
    for path in sorted(folder.rglob(TRIALS_FILE)):
        times_ms = [one.time_ms or math.inf for one in read_trials(path)]
        name = _workload(path.with_name(IDENTITY_FILE))
        if math.isinf(min(times_ms, default=math.inf)):
            raise InputError(f"{path} has no trial that was timed: leave it out.")
        found.append(Search(name, times_ms))
    if not found:
        raise InputError(
            f"{folder} has no {TRIALS_FILE}: give the folder that gpuenergy tune --out has written."
        )
    return found


def table(found: Sequence[Search], first: int) -> str:
    """As Markdown, with the geometric mean."""
    shares = [one.share(first) for one in found]
    rows = [
        [
            one.workload,
            str(len(one.times_ms)),
            f"{one.best_ms:.4g}",
            str(one.times_ms.index(one.best_ms) + 1),
            f"{share:.1%}",
        ]
        for one, share in zip(found, shares, strict=True)
    ]
    mean = math.exp(sum(map(math.log, shares)) / len(shares)) if all(shares) else 0.0
    header = [words.format(first=first) for words in HEADER]
    return f"{markdown_table(header, rows)}\n\ngeometric mean: {mean:.1%}, least: {min(shares):.1%}"


def _workload(path: Path) -> str:
    try:
        return str(json.loads(path.read_bytes())["workload"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} does not say which workload was searched.") from None


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if there is no search."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="That of gpuenergy tune --out")
    parser.add_argument("--first", type=int, default=16, help="Trials (default: 16)")
    arguments = parser.parse_args(words)
    try:
        if arguments.first < 1:
            raise InputError(f"--first {arguments.first} is no number of trials: give at least 1.")
        print(table(searches(arguments.folder), arguments.first))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
