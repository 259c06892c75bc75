"""Under pytest-xdist: which GPU each worker has, and what a worker that died has left behind."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pytest_gpuenergy.pytest_plugin.names import FIGURES

RUN_ID, GPU = "gpuenergy_run_id", "gpuenergy_gpu"
"""What a worker is told, in its ``workerinput``: the run it writes to, and its GPU's number."""
PROBLEMS = "gpuenergy_problems"
"""What a worker that measured says at its end, in its ``workeroutput``: sentences."""


def new_run_id() -> str:
    """Sortable by time, and unique."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


class WorkerPlugin:
    """The controller's part: gives each worker a GPU, and that of one that died to its successor.

    A controller collects nothing. It learns that there are items of ours from the first report that
    has figures or from a worker's end, unless an option of ours has told it before.

    Args:
        load: loads what measures and reports.

    Attributes:
        run_id: of the run that all workers write to.
        lost: whether a worker died.
        problems: that workers had at their ends.
    """

    NAME = "gpuenergy-workers"

    def __init__(self, load: Callable[[], object]) -> None:
        self.run_id = new_run_id()
        self.before_start: Callable[[], None] | None = None
        self.lost = False
        self.problems: list[str] = []
        self._load = load
        self._taken: dict[Any, int] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker before it starts; the lowest number that no living one has is its GPU's."""
        if self.before_start is not None:
            self.before_start()
            self.before_start = None
        free = set(range(len(self._taken) + 1)) - set(self._taken.values())
        self._taken[node] = min(free)
        node.workerinput |= {RUN_ID: self.run_id, GPU: self._taken[node]}

    @pytest.hookimpl(tryfirst=True)  # before the terminal asks for an item's status
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Load what reports at the first item of ours."""
        if any(name == FIGURES for name, _ in report.user_properties):
            self._load()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take its GPU back; ``error`` tells that the worker died."""
        self._taken.pop(node, None)
        self.lost = self.lost or error is not None
        problems = getattr(node, "workeroutput", {}).get(PROBLEMS)
        self.problems += problems or ()
        if self.lost or problems is not None:  # one that died may have left a power limit behind
            self._load()
