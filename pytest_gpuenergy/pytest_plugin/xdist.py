"""Assigns a GPU to each pytest-xdist worker, and notices workers that died."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from pytest_gpuenergy.pytest_plugin.names import FIGURES

RUN_ID, GPU = "gpuenergy_run_id", "gpuenergy_gpu"
"""Keys of a worker's ``workerinput``: the id of the run it writes to, and its GPU's number."""
BOARDS = "gpuenergy_boards"
"""Key of a worker's ``workerinput``: the number of GPUs in the run, if its controller knows it."""
PROBLEMS = "gpuenergy_problems"
"""Key of a worker's ``workeroutput``: sentences about problems, from a worker that measured."""


class WorkerPlugin:
    """The controller's part: gives each worker a GPU, and a dead worker's GPU to its replacement.

    A controller collects nothing. Unless one of our options is set, it learns that there are items
    of ours from the first report with figures or from a worker that ends.

    Args:
        load: loads the plugin that reports.

    Attributes:
        before_start: called once, before the first worker starts.
        lost: whether a worker died.
        problems: sentences from workers that ended.
    """

    NAME = "gpuenergy-workers"

    def __init__(self, load: Callable[[], object]) -> None:
        self.before_start: Callable[[], None] | None = None
        self.lost = False
        self.problems: list[str] = []
        self._load = load
        self._taken: dict[Any, int] = {}

    @cached_property
    def run_id(self) -> str:
        """Id of the run that all workers write to; projects without items of ours need none."""
        from pytest_gpuenergy.support.run_ids import new_run_id

        return new_run_id()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a starting worker the run id and the lowest GPU number that is free."""
        if self.before_start is not None:
            self.before_start()
            self.before_start = None
        free = set(range(len(self._taken) + 1)) - set(self._taken.values())
        self._taken[node] = min(free)
        node.workerinput |= {RUN_ID: self.run_id, GPU: self._taken[node]}

    def interrupt(self) -> None:
        """Interrupt the workers on this machine, which otherwise finish their items first.

        pytest-xdist waits 10 s for them and then kills them, before they have restored anything.
        """
        for node in self._taken:
            # execnet offers no other way to the process of a worker; others than its own have none.
            process = getattr(getattr(node.gateway, "_io", None), "popen", None)
            if isinstance(process, subprocess.Popen):
                process.terminate()  # SIGINT is ignored in what a script starts with &

    @pytest.hookimpl(tryfirst=True)  # before the terminal asks for an item's status
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Load the plugin that reports at the first item of ours."""
        if any(name == FIGURES for name, _ in report.user_properties):
            self._load()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Free the worker's GPU; ``error`` is not None when the worker died."""
        self._taken.pop(node, None)
        self.lost = self.lost or error is not None
        problems = getattr(node, "workeroutput", {}).get(PROBLEMS)
        self.problems += problems or ()
        if self.lost or problems is not None:  # a dead worker may have left a power limit behind
            self._load()
