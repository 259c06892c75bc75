"""How to search: what the command line offers, without importing what does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

Strategy = Literal["evolutionary", "replay-trace"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

Space = Literal["direct", "gemm", "all"]
SPACES: tuple[Space, ...] = get_args(Space)


@dataclass(frozen=True)
class SearchSettings:
    """How to search.

    Attributes:
        trials: candidates to time, all searches of the folder together.
        seed: of the search; with the strategy replay-trace and one thread it decides everything.
        threads: processor cores for the search.
        strategy: evolutionary learns from scores, replay-trace draws at random.
        space: see `spaces`.
        batch: schedules proposed at a time, between two updates of the cost model.
        population: schedules of one generation.
        generations: between two proposals.
    """

    trials: int
    seed: int
    threads: int
    strategy: Strategy = "evolutionary"
    space: Space = "all"
    batch: int = 64
    population: int = 128
    generations: int = 3

    def for_trials(self) -> SearchSettings:
        """The same with batches that are no larger than half the trials, but at least 16."""
        batch = max(1, min(self.batch, max(16, self.trials // 2), self.trials))
        return replace(self, batch=batch, population=min(self.population, max(8, 4 * batch)))
