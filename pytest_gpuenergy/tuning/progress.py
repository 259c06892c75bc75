"""The progress of a search: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from time import monotonic
from typing import Any, TextIO

from pytest_gpuenergy.support import span
from pytest_gpuenergy.tuning.trial import Trial

_TELL_EVERY_S = 3.0


class SearchProgress:
    """Counts the trials of one workload's search and reports progress; a context manager.

    Args:
        name: of the workload.
        wanted: total number of trials, including earlier ones.
        before: trials of earlier searches in the same folder.
        tell: called with plain lines.
        live: terminal on which to draw a display instead; None for plain lines only.
    """

    def __init__(
        self,
        name: str,
        wanted: int,
        before: Sequence[Trial],
        tell: Callable[[str], None],
        live: TextIO | None = None,
    ) -> None:
        self._name = name
        self._wanted = wanted
        self._before = len(before)
        self._tell = tell
        self._began_s = self._told_s = monotonic()
        self._faults: Counter[str] = Counter()
        self._timed = 0
        times_ms = (trial.time_ms for trial in before if trial.good)
        self._best_ms = min((time for time in times_ms if time is not None), default=None)
        self._display = _Display(live, wanted, self._before) if live is not None else None

    @property
    def elapsed_s(self) -> float:
        """Wall time since the search began."""
        return monotonic() - self._began_s

    @property
    def tried(self) -> int:
        """Trials that have ended in this search."""
        return self._timed + self._faults.total()

    def add(self, trial: Trial) -> None:
        """A trial has ended."""
        if trial.time_ms is None:
            self._faults[trial.outcome] += 1
        else:
            self._timed += 1
            self._best_ms = min(trial.time_ms, self._best_ms or trial.time_ms)
        if self._display is not None:
            self._display.update(self._before + self.tried, self._line())
        elif monotonic() - self._told_s >= _TELL_EVERY_S:
            self.tell_now()

    def tell_now(self) -> None:
        """Report progress now, as a plain line."""
        self._told_s = monotonic()
        self._tell(self._line())

    def _line(self) -> str:
        best = "none" if self._best_ms is None else f"{self._best_ms:.4g} ms"
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._faults.items()))
        rate = 60 * self.tried / max(self.elapsed_s, 1e-9)
        done = self._before + self.tried
        left_s = (self._wanted - done) / rate * 60 if rate else 0.0
        return (
            f"{self._name}: {done} of {self._wanted} trials, best {best}, "
            f"failed: {kinds or 'none'}, {rate:.0f} trials/min, {span(left_s)} left"
        )

    def __enter__(self) -> SearchProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.close()
        self.tell_now()


def live_stream() -> TextIO | None:
    """Standard error, if it is a terminal that a display can be drawn on."""
    return sys.stderr if sys.stderr.isatty() and find_spec("rich") else None


class _Display:
    """A bar followed by the line of progress, drawn by rich."""

    def __init__(self, stream: TextIO, wanted: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns: list[Any] = [BarColumn(bar_width=24), TextColumn("{task.description}")]
        self._bars = Progress(*columns, console=Console(file=stream), transient=True)
        self._task = self._bars.add_task("", total=wanted, completed=done)
        self._bars.start()

    def update(self, done: int, text: str) -> None:
        self._bars.update(self._task, completed=done, description=text)

    def close(self) -> None:
        self._bars.stop()
