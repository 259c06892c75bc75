"""Compares search strategies at equal budgets on recorded search spaces.

    python studies/search_strategies.py studies/spaces/*.json.gz --seeds 30
    python studies/search_strategies.py benchmark_hub/cachefiles/*/*_T4.json.gz --budgets 50,200

A recorded space has the cost of every configuration, so that a search is simulated by looking costs
up. Each figure is the best cost of the space divided by the best one found after so many
evaluations (1 is the optimum), as the mean over seeds with a 95 % bootstrap interval. A seed stands
for a random start, the same for all strategies, and for their random choices.

Two strategies are our graph search without the graph. Both tell apart states that were reached
along different paths. ``tree`` pays for each evaluation, also of a configuration that it has
evaluated before; ``tree, free repeats`` does not, so that what remains is what sharing values and
visits is worth. The last table has the differences between the graph search and these, paired by
seed.

With ``--predicted``, the graph search also gets predictions of gains: the improvement to expect of
the true logarithm of a gain with an error of this standard deviation, drawn once for each action;
or, for ``of others``, of another action of the same state, which says nothing.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.search import (
    Action,
    Exhaustive,
    GraphStrategy,
    HillClimbing,
    RandomExpansion,
    RandomSearch,
    RecordedSpace,
    SearchParameters,
    SearchStrategy,
    improvement,
    read_t4,
)
from pytest_gpuenergy.support import InputError

GRAPH, TREE, FREE_TREE = "graph search", "tree", "tree, free repeats"
BLOCK_SIZES = ("block", "tile_m", "tile_n")
"""How the names of parameters begin that block-size tuning varies."""
_RESAMPLES = 2000
_MOST_REPEATS = 5
"""Free repeats for each evaluation that counts, after which a search is taken to be stuck."""

Figures = npt.NDArray[np.float64]


class Unmerged:
    """A space as a tree: a state is the path to it, and a path does not return to where it was."""

    def __init__(self, space: RecordedSpace) -> None:
        self.root = space.root
        self._space = space
        self._ways = {space.root: (space.root,)}

    def configuration_of(self, state: str) -> str:
        """Where a path ends."""
        return self._ways[state][-1]

    def actions(self, state: str) -> list[Action]:
        """Those of the configuration, without the ones that go back."""
        way = self._ways[state]
        found = []
        for action in self._space.actions(way[-1]):
            if action.child not in way:
                child = f"{state}/{action.label}"
                self._ways[child] = (*way, action.child)
                found.append(action._replace(child=child))
        return found


class Predicted:
    """A space of which gains are predicted.

    Args:
        space: with the true gains.
        error: standard deviation of the mean of a prediction around them.
        seed: of the errors.
        of_others: whether the gains are those of other actions of the same state.
    """

    def __init__(
        self, space: RecordedSpace, error: float, seed: int, *, of_others: bool = False
    ) -> None:
        self.root = space.root
        self._space = space
        self._error = error
        self._seed = seed
        self._of_others = of_others

    def actions(self, state: str) -> list[Action]:
        """Those of the configuration, with predictions."""
        drawn = random.Random(f"{self._seed} {state}")
        actions = list(self._space.actions(state))
        gains = [self._gain(state, action.child) for action in actions]
        if self._of_others:
            drawn.shuffle(gains)
        return [
            action._replace(predicted_gain=improvement(drawn.gauss(gain, self._error), self._error))
            for action, gain in zip(actions, gains, strict=True)
        ]

    def _gain(self, state: str, child: str) -> float:
        before, after = self._space.costs[state], self._space.costs[child]
        failure = SearchParameters().failure_value
        assert before is not None  # only states that did not fail are asked for
        return failure if after is None else max(failure, math.log(before / after))


def prediction(error: float, *, of_others: bool = False) -> str:
    """The name of graph search with such predictions."""
    return f"predicted to {error:g}{' of others' if of_others else ''}"


def block_sizes(space: RecordedSpace) -> list[str]:
    """The states that differ from the root in their block sizes alone."""
    fixed = {
        name: value
        for name, value in space.configuration(space.root).items()
        if not name.startswith(BLOCK_SIZES)
    }
    return space.with_values(**fixed)


STRATEGIES: Mapping[str, Callable[[RecordedSpace, int], SearchStrategy]] = {
    "random": lambda space, seed: RandomSearch(space, seed=seed),
    "random expansion": lambda space, seed: RandomExpansion(space, seed=seed),
    "hill climbing, first": lambda space, seed: HillClimbing(space, seed=seed),
    "hill climbing, steepest": lambda space, seed: HillClimbing(
        space, improvement="steepest", seed=seed
    ),
    "block sizes": lambda space, seed: Exhaustive(space, block_sizes(space)),  # noqa: ARG005 -- draws nothing
}
"""Those that take a recorded space as it is, besides our own."""


@dataclass(frozen=True)
class Comparison:
    """What the strategies found in one space.

    Attributes:
        name: of the space.
        found: by strategy, an array of seeds x budgets: best cost of all over best found.
    """

    name: str
    found: Mapping[str, Figures]


def compare(
    name: str,
    space: RecordedSpace,
    *,
    budgets: Sequence[int],
    seeds: Sequence[int],
    parameters: SearchParameters,
    strategies: Sequence[str] = (GRAPH, TREE, FREE_TREE, *STRATEGIES),
    errors: Sequence[float] = (),
) -> Comparison:
    """Run each strategy from a random start for each seed."""
    kinds = [(error, of_others) for of_others in (False, True) for error in errors]
    predicted = {prediction(error, of_others=other): (error, other) for error, other in kinds}
    rows: dict[str, list[list[float]]] = {name: [] for name in (*strategies, *predicted)}
    for seed in seeds:
        begun = space.with_root(random.Random(seed).choice(space.good))
        for strategy, found in rows.items():
            if strategy in (TREE, FREE_TREE):
                found.append(
                    _run_tree(begun, budgets, seed, parameters, free=strategy == FREE_TREE)
                )
            elif strategy in predicted:
                error, of_others = predicted[strategy]
                told = Predicted(begun, error, seed, of_others=of_others)
                found.append(_run(begun, GraphStrategy(told, parameters, seed=seed), budgets))
            elif strategy == GRAPH:
                found.append(_run(begun, GraphStrategy(begun, parameters, seed=seed), budgets))
            else:
                found.append(_run(begun, STRATEGIES[strategy](begun, seed), budgets))
    return Comparison(name, {key: np.array(found) for key, found in rows.items()})


def _run(space: RecordedSpace, strategy: SearchStrategy, budgets: Sequence[int]) -> list[float]:
    found: list[float] = []
    used = 0
    for budget in budgets:
        while used < budget and (proposal := strategy.propose()):
            strategy.learn(proposal, space.costs[proposal.state])
            used += 1
        found.append(_share(space, strategy))
    return found


def _run_tree(
    space: RecordedSpace,
    budgets: Sequence[int],
    seed: int,
    parameters: SearchParameters,
    *,
    free: bool,
) -> list[float]:
    tree = Unmerged(space)
    explorer = GraphStrategy(tree, parameters, seed=seed)
    found: list[float] = []
    paid: set[str] = set()
    used = repeats = 0
    for budget in budgets:
        while used < budget and repeats < _MOST_REPEATS * budget:
            proposal = explorer.propose()
            if proposal is None:
                break
            configuration = tree.configuration_of(proposal.state)
            explorer.learn(proposal, space.costs[configuration])
            if free and configuration in paid:
                repeats += 1
            else:
                used += 1
            paid.add(configuration)
        found.append(_share(space, explorer))
    return found


def _share(space: RecordedSpace, strategy: SearchStrategy) -> float:
    assert strategy.incumbent is not None  # the start did not fail
    return space.optimum / strategy.incumbent.cost


def interval(samples: Sequence[Figures], seed: int = 0) -> tuple[float, float, float]:
    """The mean over spaces of the mean over seeds, with a 95 % percentile bootstrap interval.

    Seeds are drawn anew within each space (B. Efron and R. Tibshirani, "An Introduction to the
    Bootstrap", 1993, chapter 13).
    """
    rng = np.random.default_rng(seed)
    means = np.zeros(_RESAMPLES)
    for values in samples:
        drawn = rng.integers(len(values), size=(_RESAMPLES, len(values)))
        means += values[drawn].mean(axis=1) / len(samples)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(np.mean([values.mean() for values in samples])), float(low), float(high)


def found_table(comparisons: Sequence[Comparison], budgets: Sequence[int]) -> str:
    """What was found: of each space, and of all."""
    rows = []
    groups = [(one.name, [one]) for one in comparisons]
    if len(comparisons) > 1:
        groups.append(("all", list(comparisons)))
    for name, members in groups:
        for strategy in comparisons[0].found:
            cells = [
                _words(interval([one.found[strategy][:, place] for one in members]))
                for place in range(len(budgets))
            ]
            rows.append([name, strategy, *cells])
    return markdown_table(["space", "strategy", *map(str, budgets)], rows)


def difference_table(comparisons: Sequence[Comparison], budgets: Sequence[int]) -> str:
    """Graph search less every other strategy, paired by seed, over all spaces."""
    rows = []
    for other in comparisons[0].found:
        if other != GRAPH:
            cells = [
                _words(
                    interval(
                        [one.found[GRAPH][:, k] - one.found[other][:, k] for one in comparisons]
                    ),
                    sign="+",
                )
                for k in range(len(budgets))
            ]
            rows.append([other, *cells])
    return markdown_table(["graph search less", *map(str, budgets)], rows)


def _words(figures: tuple[float, float, float], sign: str = "") -> str:
    mean, low, high = (format(figure, f"{sign}.3f") for figure in figures)
    return f"{mean} ({low} to {high})"


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if a file or an option cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="T4 result files")
    parser.add_argument("--budgets", default="25,50,100,200", help="Evaluations")
    parser.add_argument("--seeds", type=int, default=20, help="How many, from 0 on (default: 20)")
    parser.add_argument("--neighbours", choices=["any", "adjacent"], default="any")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help="A search parameter"
    )
    parser.add_argument(
        "--predicted",
        default="",
        metavar="LIST",
        help="Also with predicted gains of these errors, such as 0.1,0.3",
    )
    arguments = parser.parse_args(words)
    budgets = _budgets(arguments.budgets)
    errors = _errors(arguments.predicted)
    if arguments.seeds < 2:
        raise InputError(f"--seeds {arguments.seeds} gives no interval: give at least 2.")
    parameters = SearchParameters.of(map(_setting, arguments.set))
    comparisons = [
        compare(
            path.name.partition(".")[0],
            RecordedSpace(read_t4(path), neighbours=arguments.neighbours),
            budgets=budgets,
            seeds=range(arguments.seeds),
            parameters=parameters,
            errors=errors,
        )
        for path in arguments.files
    ]
    print(found_table(comparisons, budgets))
    print()
    print(difference_table(comparisons, budgets))


def _budgets(text: str) -> list[int]:
    try:
        budgets = sorted({int(word) for word in text.split(",")})
    except ValueError:
        budgets = []
    if not budgets or budgets[0] < 1:
        raise InputError(f"--budgets {text!r:.40} are no numbers of evaluations: give 50,200.")
    return budgets


def _errors(text: str) -> list[float]:
    try:
        errors = [float(word) for word in text.split(",") if text]
    except ValueError:
        errors = [-1.0]
    if not all(0 < error < math.inf for error in errors):
        raise InputError(f"--predicted {text!r:.40} are no errors above 0: give 0.1,0.3.")
    return errors


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r:.40} is not NAME=NUMBER: give puct_c=1.")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
