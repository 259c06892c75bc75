"""How well gains of moves are predicted, from searches that were made.

    gpuenergy optimize bench/search/kernels --no-llm --objective edp --gpus emulated:h200
    python studies/predicted_gains.py out

For each variant that was evaluated, and the state that it was made from: the logarithm of the gain
in the objective that was found, and the mean that the model of bottlenecks predicts, without what
searches have learned from one another. Given are Spearman's rank correlation of the two with a 95 %
bootstrap interval over variants, the standard deviation of their difference, and of the variants
that gained more than ``--good`` how many would have been left out for a predicted gain below 2 %.
With ``--moves``, what kinds of moves gained in all kernels: means of what was found and predicted.

Variants that ended in a failure do not count, nor do gains and losses by more than a factor of 50.
Searches are read from folders, or from a file that ``studies/searched.py`` has made of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from searched import Searched, read_searches
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.emulator import DEFAULT_PROFILE, PROFILES
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.search import (
    MOVES,
    Application,
    BottleneckPrior,
    CardModel,
    Result,
    SearchParameters,
)
from pytest_gpuenergy.support import InputError

_RESAMPLES = 2000
_LARGEST = math.log(50)
_FEWEST = 3


@dataclass(frozen=True)
class Pair:
    """A gain, as logarithms.

    Attributes:
        found: by the search.
        mean: that the model predicts.
        expected: the improvement to expect.
        move: the name of what gained it.
        what: its place and parameters.
    """

    found: float
    mean: float
    expected: float
    move: str = ""
    what: str = ""


def pairs_of(search: Searched, objective: Metric | None = None) -> list[Pair]:
    """The gains in the search of one kernel; in its own objective by default."""
    objective = objective or search.identity.objective
    prior = BottleneckPrior(search.spec, _card(search), objective, SearchParameters())
    moves = {move.name: move for move in MOVES}
    variants = {one.state.id: one for one in search.variants}
    found = []
    for after in search.variants:
        before, move = variants.get(after.parent or ""), moves.get(after.move)
        if before is None or move is None:
            continue
        application = Application(after.move, after.what, after.state)
        mean = prior.counted_gain(before.state, before.result, after.state)
        expected = prior.gain(before.state, before.result, move, application)
        costs = [_cost(one.result, objective) for one in (before, after)]
        if all(costs) and mean is not None and expected is not None:
            gain = math.log(costs[0] / costs[1])
            found.append(Pair(gain, mean, expected, after.move, after.what))
    return [pair for pair in found if abs(pair.found) <= _LARGEST]


def _cost(result: Result, objective: Metric) -> float:
    """In the objective; 0 if it is not known."""
    return replace(result, objective=objective).cost or 0.0


def _card(search: Searched) -> CardModel:
    identity = search.identity
    profiles = [one for one in PROFILES.values() if one.name == identity.gpu]
    return CardModel([*profiles, DEFAULT_PROFILE][0], identity.power_limit_w)


def ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Ranks from 0 on; equal values have the mean of theirs."""
    array = np.asarray(values, dtype=np.float64)
    below, equal = (compare(array[None, :], array[:, None]) for compare in (np.less, np.equal))
    found: npt.NDArray[np.float64] = below.sum(axis=1) + (equal.sum(axis=1) - 1) / 2
    return found


def spearman(pairs: Sequence[Pair]) -> float:
    """Spearman's rank correlation of what was found and predicted; 0 where either is constant."""
    found, mean = (ranks([getattr(pair, name) for pair in pairs]) for name in ("found", "mean"))
    if found.std() == 0 or mean.std() == 0:
        return 0.0
    return float(np.corrcoef(found, mean)[0, 1])


def interval(pairs: Sequence[Pair], seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of `spearman`."""
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(len(pairs), size=len(pairs)) for _ in range(_RESAMPLES))
    low, high = np.quantile([spearman([pairs[k] for k in some]) for some in drawn], (0.025, 0.975))
    return float(low), float(high)


def row(name: str, pairs: Sequence[Pair], good: float) -> list[str]:
    """A line of the table."""
    low, high = interval(pairs)
    deviation = float(np.std([pair.found - pair.mean for pair in pairs]))
    gained = [pair for pair in pairs if 1 - math.exp(-pair.found) > good]
    left_out = sum(1 - math.exp(-pair.expected) < 0.02 for pair in gained)
    return [
        *(name, str(len(pairs)), f"{spearman(pairs):.2f} ({low:.2f} to {high:.2f})"),
        *(f"{deviation:.2f}", f"{left_out} of {len(gained)}"),
    ]


def rows_of_moves(pairs: Sequence[Pair]) -> Iterator[list[str]]:
    """A line for each move."""
    for move in sorted({pair.move for pair in pairs}):
        some = [pair for pair in pairs if pair.move == move]
        means = (np.mean([getattr(pair, name) for pair in some]) for name in ("found", "mean"))
        yield [move, str(len(some)), *(f"{mean:+.2f}" for mean in means)]


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if the folder cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("places", type=Path, nargs="+", help="Folders or records of searches")
    parser.add_argument("--good", type=float, default=0.02, help="A fraction (default: 0.02)")
    parser.add_argument(
        *("--objective",),
        type=Metric,
        choices=list(Metric),
        help="Of which the gains are (default: of each search its own)",
    )
    parser.add_argument("--kernels", default="", help="Names, with commas (default: all)")
    parser.add_argument("--moves", action="store_true", help="A line for each move, not kernel")
    arguments = parser.parse_args(words)
    searches = [one for place in arguments.places for one in read_searches(place)]
    found = [
        (one.spec.name, pairs)
        for one in searches
        if not arguments.kernels or one.spec.name in arguments.kernels.split(",")
        if len(pairs := pairs_of(one, arguments.objective)) >= _FEWEST
    ]
    if not found:
        names = ", ".join(map(str, arguments.places))
        raise InputError(f"{names} has no search with {_FEWEST} variants or more.")
    if arguments.moves:
        every = [pair for _, pairs in found for pair in pairs]
        print(markdown_table(["move", "variants", "found", "predicted"], rows_of_moves(every)))
        return
    head = ["kernel", "variants", "rank correlation", "deviation", "good ones left out"]
    print(markdown_table(head, [row(*one, arguments.good) for one in found]))


if __name__ == "__main__":
    sys.exit(main())
