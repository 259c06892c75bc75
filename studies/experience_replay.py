"""What experience within a search is worth, replayed with searches that were made.

    python studies/experience_replay.py bench/results/nvidia-h100-2026-11-25/searches.json.gz

For each variant, in the order of a search: the gain that is expected of it by its prediction and by
what the variants before it have brought, with the experience of each action alone, and with the
mean error of the predictions for its move as well. Given are the root mean square of the difference
to the logarithm of the gain that was found (at most 1 either way) and Spearman's rank correlation,
as means over kernels, and the mean difference with a 95 % bootstrap interval over kernels.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from predicted_gains import Pair, pairs_of, spearman
from searched import read_searches
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.search import Experience, GraphEdge, GraphNode, SearchParameters
from pytest_gpuenergy.support import InputError

_RESAMPLES = 4000
_LARGEST = 1.0


def expected(pairs: Sequence[Pair], *, by_move: bool) -> list[Pair]:
    """What was found, and what was expected of each variant by those before it."""
    parameters = SearchParameters()
    experience = Experience(parameters.prediction_count, parameters.no_error_count)
    found = []
    for pair in pairs:
        label = f"{pair.move} {pair.what}"
        edge = GraphEdge(
            label, label, pair.expected, label, 0.0, family=pair.move if by_move else ""
        )
        gained = max(-_LARGEST, min(_LARGEST, pair.found))
        found.append(Pair(gained, experience.gain(edge), 0.0))
        experience.observe([(GraphNode(0), edge, GraphNode(1, own=pair.found))])
    return found


def error(pairs: Sequence[Pair]) -> float:
    """The root mean square of what was found less what was expected."""
    return math.sqrt(math.fsum((pair.found - pair.mean) ** 2 for pair in pairs) / len(pairs))


def rows(kernels: Sequence[Sequence[Pair]]) -> Iterator[list[str]]:
    """A line for each figure."""
    sides = [[expected(pairs, by_move=one) for pairs in kernels] for one in (False, True)]
    figures: dict[str, Callable[[Sequence[Pair]], float]] = {
        "error": error,
        "rank correlation": spearman,
    }
    rng = np.random.default_rng(0)
    for name, figure in figures.items():
        alone, with_move = (np.array([figure(pairs) for pairs in side]) for side in sides)
        change = with_move - alone
        drawn = rng.choice(change, (_RESAMPLES, len(change))).mean(axis=1)
        low, high = np.quantile(drawn, (0.025, 0.975))
        difference = f"{change.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        yield [name, f"{alone.mean():.3f}", f"{with_move.mean():.3f}", difference]


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if the searches cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("place", type=Path, help="A folder or a record of searches")
    parser.add_argument("--objective", type=Metric, choices=list(Metric), default=None)
    parser.add_argument("--kernels", default="", help="Names, with commas (default: all)")
    arguments = parser.parse_args(words)
    searches = read_searches(arguments.place)
    names = arguments.kernels.split(",") if arguments.kernels else None
    chosen = [one for one in searches if names is None or one.spec.name in names]
    kernels = [pairs for one in chosen if (pairs := pairs_of(one, arguments.objective))]
    if not kernels:
        raise InputError(f"{arguments.place} has no such searches with variants.")
    head = ["", "of the action alone", "and of its move", "difference"]
    print(markdown_table(head, rows(kernels)))


if __name__ == "__main__":
    sys.exit(main())
