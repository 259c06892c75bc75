"""Where the wall time of a search goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.search.trust.result import Result


class Times:
    """Wall time of this run of a search, by what it was spent on.

    The steps of evaluations are those of `Result.steps_s`; with several GPUs they overlap.
    """

    def __init__(self) -> None:
        self._own_s: defaultdict[str, float] = defaultdict(float)
        self._steps_s: defaultdict[str, float] = defaultdict(float)
        self._evaluated = 0

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the time inside."""
        began = perf_counter()
        try:
            yield
        finally:
            self._own_s[what] += perf_counter() - began

    def add(self, result: Result) -> None:
        """Count the steps of an evaluation."""
        self._evaluated += 1
        for step, seconds in result.steps_s.items():
            self._steps_s[step] += seconds

    def lines(self) -> list[str]:
        """A table, as Markdown; nothing if nothing was evaluated."""
        if not self._evaluated:
            return []
        of_search = [(what, seconds) for what, seconds in self._own_s.items()]
        of_states = [(f"evaluate: {step}", seconds) for step, seconds in self._steps_s.items()]
        rows = [
            [what, f"{seconds:.2f}", f"{seconds / self._evaluated:.2f}"]
            for what, seconds in [*of_search, *of_states]
        ]
        return [
            "",
            f"Wall time of the latest run, of which {self._evaluated} states were evaluated:",
            "",
            markdown_table(["what", "s", "s each"], rows),
        ]
