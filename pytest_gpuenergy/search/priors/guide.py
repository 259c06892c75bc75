"""What the search of one kernel expects of moves, from all that is known, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpuenergy.search.explorer import Step
from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.move import Application, Move, Region
from pytest_gpuenergy.search.priors.prior import BottleneckPrior
from pytest_gpuenergy.search.priors.profiler import Profiler
from pytest_gpuenergy.search.priors.tactics import Observation
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.trust.result import Result


@dataclass
class Guide:
    """Predicts gains from bottlenecks, which a profiler measures now and then.

    Attributes:
        prior: by bottlenecks and what moves have brought in other kernels.
        place: the folder of a state by its id.
        profiler: None without one.
        llm: a language model, of whose proposals it says itself what to expect; None without.
    """

    prior: BottleneckPrior
    place: Callable[[str], Path]
    profiler: Profiler | None = None
    llm: LlmMoves | None = None
    _states: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.llm is not None:
            self.llm.regions_of = self.regions

    def learned(self, state: State, result: Result) -> None:
        """Take note of a result, and profile its state if it is its turn.

        Raises:
            InputError: a profile that is there is damaged.
            OutputError: a profile cannot be written.
        """
        self._states[state.id] = state
        if self.profiler is not None and result.cost is not None:
            used = self.profiler.visit(self.place(state.id))
            if used:
                self.prior.profiled(state, used)

    def expected(
        self, state: State, result: Result, move: Move, application: Application
    ) -> float | None:
        """The gain to expect, as a natural logarithm; None if nothing is known."""
        if self.llm is not None and self.llm.has_made(application):
            return self.llm.prior or None
        return self.prior.gain(state, result, move, application)

    def regions(self, result: Result) -> Mapping[Region, float]:
        """Shares of the time of a state that was learned; empty if they are not known."""
        state = self._states.get(result.id)
        found = None if state is None else self.prior.situation(state, result)
        return {} if found is None else found.time_shares

    def observations(self, steps: Iterator[Step]) -> Iterator[Observation]:
        """What became of moves to states whose bottleneck is known."""
        for step in steps:
            situation = self.prior.situation(step.state, step.result)
            if situation is not None:
                yield step.application.move, situation.bottleneck, step.gain
