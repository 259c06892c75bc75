"""Under pytest-xdist: which GPU each worker has, and what a worker that died has left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RUN_ID, GPU = "gpuenergy_run_id", "gpuenergy_gpu"
"""What a worker is told, in its ``workerinput``: the run it writes to, and its GPU's number."""
PROBLEMS = "gpuenergy_problems"
"""What a worker tells at its end, in its ``workeroutput``: sentences."""


class WorkerPlugin:
    """Gives each worker a GPU of its own, and that of one that died to its successor.

    Args:
        run_id: of the run that all workers write to.
        on_start: called before the first worker starts.

    Attributes:
        lost: whether a worker died.
        problems: that workers had at their ends.
    """

    def __init__(self, run_id: str, on_start: Callable[[], None]) -> None:
        self._run_id = run_id
        self._on_start: Callable[[], None] | None = on_start
        self._taken: dict[Any, int] = {}
        self.lost = False
        self.problems: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker before it starts; the lowest number that no living one has is its GPU's."""
        if self._on_start is not None:
            self._on_start()
            self._on_start = None
        free = set(range(len(self._taken) + 1)) - set(self._taken.values())
        self._taken[node] = min(free)
        node.workerinput |= {RUN_ID: self._run_id, GPU: self._taken[node]}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take its GPU back; ``error`` tells that the worker died."""
        self._taken.pop(node, None)
        self.problems += getattr(node, "workeroutput", {}).get(PROBLEMS, ())
        self.lost = self.lost or error is not None
