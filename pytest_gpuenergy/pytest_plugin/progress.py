"""Shows the progress of a long run and the remaining time at intervals."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from time import monotonic
from typing import Any

import pytest

from pytest_gpuenergy.support import span

INTERVAL_S = 30.0
CI_INTERVAL_S = 300.0
"""CI logs are read afterwards and need fewer lines."""


class Progress:
    """Counts finished items and estimates the remaining time, at most once per interval.

    Args:
        interval_s: minimum time between two lines.
        clock: returns the time in seconds.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._started_s = self._shown_s = self._first_s = clock()
        self._finished = self._worked = 0

    def finish(self, total: int, *, skipped: bool) -> str | None:
        """Count one of ``total`` items; returns the line to show, if one is due.

        Skipped items take no time, so the estimate is based on the others, and as soon as possible
        on those after the first, which had to wait for compilers.
        """
        self._finished += 1
        self._worked += not skipped
        now_s = self._clock()
        if self._worked == 1 and not skipped:
            self._first_s = now_s
        left = total - self._finished
        if left <= 0 or not self._worked or now_s - self._shown_s < self._interval_s:
            return None
        self._shown_s = now_s
        since_s, count = (
            (self._first_s, self._worked - 1) if self._worked > 1 else (self._started_s, 1)
        )
        left_s = left * (now_s - since_s) / count
        return f"gpuenergy: {self._finished} of {total} items, about {span(left_s)} left"


def show_preheat(config: pytest.Config, left_s: float) -> None:
    """Show in the terminal for how long the card may still be heated up, unless output is quiet."""
    plugins = config.pluginmanager
    terminal: Any = plugins.get_plugin("terminalreporter")
    capture: Any = plugins.get_plugin("capturemanager")
    if terminal is None or config.get_verbosity() < 0:
        return
    with nullcontext() if capture is None else capture.global_and_fixture_disabled():
        terminal.ensure_newline()
        terminal.write_line(f"gpuenergy: heating up the GPU, up to {left_s:.0f} s")


class ProgressPlugin:
    """Shows `Progress` in the terminal, starting with the first item of ours."""

    def __init__(self, config: pytest.Config, is_ours: Callable[[pytest.TestReport], bool]) -> None:
        self._config = config
        self._is_ours = is_ours
        self._progress = Progress(CI_INTERVAL_S if os.environ.get("CI") else INTERVAL_S)
        self._ours = self._skipped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count an item after its last phase."""
        self._ours = self._ours or self._is_ours(report)
        self._skipped = report.skipped or (self._skipped and report.when != "setup")
        plugins = self._config.pluginmanager
        # It knows the number of items, even under pytest-xdist.
        session: pytest.Session | None = plugins.get_plugin("session")
        if report.when != "teardown" or session is None:
            return
        line = self._progress.finish(session.testscollected, skipped=self._skipped)
        terminal: Any = plugins.get_plugin("terminalreporter")
        if line and self._ours and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(line)
