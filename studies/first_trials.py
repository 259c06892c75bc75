"""How much of what a long search finds do its first trials find?

    gpuenergy gemm tune "MNK=1024 t=1000; MNK=4096 mode=bfloat16 t=1000" --no-energy --out tuned
    python studies/first_trials.py tuned [--first 16]
    python studies/first_trials.py tuned --again emulated:h100

A search does not know how many trials follow, so that one long search answers this.
Speeds are those of single trials, which last 30 ms: their noise favours the longer search.

With --again, searches of our templates for products are made once more as the present version would
make them, and take the times from the stored trials. Kernels that are not among these count as
trials that find nothing. The device is one like that of the searches; nothing runs on it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, cast

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import TEMPLATE_FORM, FittedCosts, template_space
from pytest_gpuenergy.tuning import IDENTITY_FILE, TRIALS_FILE, Feedback, read_trials, untimed
from pytest_gpuenergy.workloads import from_parameters

HEADER = ("workload", "trials", "best (ms)", "found by trial", "of its speed by trial {first}")


@dataclass(frozen=True)
class Search:
    """One search, by the times of its trials.

    Attributes:
        workload: its name.
        times_ms: of the trials in order; infinite for those that failed.
        again_ms: of those that the present version would make first, if that is asked.
    """

    workload: str
    times_ms: Sequence[float]
    again_ms: Sequence[float] = ()

    @property
    def best_ms(self) -> float:
        """The least of all times."""
        return min(self.times_ms)

    def share(self, first: int) -> float:
        """The speed of the best of the first trials, relative to that of the best of all."""
        return self.best_ms / min((self.again_ms or self.times_ms)[:first])


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


class _Idle:
    """A device that prepares no kernels, so that a search costs nothing."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def prepare(self, kernels: object) -> None:
        """Leave them alone."""


def times_again_ms(
    raw: Path, device: Device, trials: int, estimate: FittedCosts | None = None
) -> list[float]:
    """The times of the first trials that the present version would make, from stored trials.

    Args:
        raw: folder of the raw results of one search.
        device: like the one that it was made on.
        trials: how many to make, if there are as many kernels.
        estimate: where the search begins; None stands for that of the present version.

    Raises:
        InputError: it is no search of our templates for a product.
    """
    recipes = TEMPLATE_FORM.read(raw / TEMPLATE_FORM.file_name)
    stored = [one.time_ms for one in read_trials(raw / TRIALS_FILE)]
    times_ms = {untimed(recipe): time_ms for recipe, time_ms in zip(recipes, stored, strict=False)}
    workload = from_parameters(_identity(raw / IDENTITY_FILE))
    proposer = template_space(workload, cast("Device", _Idle(device)), estimate).propose(
        raw, lambda: ()
    )
    made: list[float] = []
    while len(made) < trials and (batch := proposer.take(trials - len(made), Event())):
        for candidate in batch:
            time_ms = times_ms.get(candidate.recipe)
            made.append(time_ms or math.inf)
            if time_ms is not None:
                proposer.learn([Feedback(candidate.recipe, time_ms / 1e3)])
    return made


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
    return str(_identity(path)["name"])


def _identity(path: Path) -> dict[str, Any]:
    try:
        found = dict(json.loads(path.read_bytes())["workload"])
        return {**found, "name": str(found["name"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} does not say which workload was searched.") from None


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if there is no search."""
    parser = study_parser(__doc__)
    parser.add_argument("folder", type=Path, help="That of gpuenergy tune --out")
    parser.add_argument("--first", type=int, default=16, help="Trials (default: 16)")
    parser.add_argument("--again", metavar="DEVICE", help="Such as emulated:h100, see above")
    arguments = parser.parse_args(words)
    if arguments.first < 1:
        raise InputError(f"--first {arguments.first} is no number of trials: give at least 1.")
    found = searches(arguments.folder)
    if arguments.again:
        raws = [path.parent for path in sorted(arguments.folder.rglob(TRIALS_FILE))]
        with open_device(arguments.again) as device:
            found = [
                replace(one, again_ms=times_again_ms(raw, device, arguments.first))
                for one, raw in zip(found, raws, strict=True)
            ]
    print(table(found, arguments.first))


if __name__ == "__main__":
    sys.exit(main())
