"""The settings of a search with TVM, separate from the search so that reading options is cheap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

Strategy = Literal["evolutionary", "replay-trace"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

Space = Literal["direct", "gemm", "all"]
SPACES: tuple[Space, ...] = get_args(Space)

_THREADS = 3
"""The threads of one search process."""
_MIN_BATCH = 8
_MIN_POPULATION = 32
"""The least batch and population of one process with which a search is useful."""


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search.

    Attributes:
        seed: the seed of the search. With the strategy replay-trace and one thread it determines
            all proposals.
        threads: the CPU cores for the search, three for each of its processes.
        strategy: ``evolutionary`` learns from trials, ``replay-trace`` draws at random.
        space: the schedules to consider: TVM's own (``direct``), those of a matrix product in
            padded tiles (``gemm``), or all.
        batch: the schedules that all processes together propose between two updates of the cost
            model.
        population: the schedules in one generation of all processes together.
        generations: the number of generations between two proposals.
    """

    seed: int
    threads: int
    strategy: Strategy = "evolutionary"
    space: Space = "all"
    batch: int = 64
    population: int = 128
    generations: int = 2

    @property
    def processes(self) -> int:
        """The number of search processes, each with a population of its own."""
        return max(1, self.threads // _THREADS)

    def of_process(self) -> SearchSettings:
        """Return the settings of one process: its share, but not less than is useful."""
        batch = max(_MIN_BATCH, -(-self.batch // self.processes))
        population = max(_MIN_POPULATION, -(-self.population // self.processes))
        return replace(
            self,
            threads=max(1, self.threads // self.processes),
            batch=min(batch, self.batch),
            population=min(population, self.population),
        )

    def for_trials(self, trials: int) -> SearchSettings:
        """Return the same settings with batches of at most half the trials, but at least 16."""
        batch = max(1, min(self.batch, max(16, trials // 2), trials))
        return replace(self, batch=batch, population=min(self.population, max(8, 4 * batch)))
