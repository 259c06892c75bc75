"""The journal of a search: a line on disk for every trial, and a line of progress now and then."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Literal

from pytest_gpuenergy.errors import InputError, Outcome

JOURNAL_FILE = "trials.jsonl"
_TELL_EVERY_S = 3.0

TrialOutcome = Outcome | Literal["timed"]
"""How a trial ended: ``timed``, which says nothing yet of its results, or a kernel's fault."""


class Journal:
    """Writes ``trials.jsonl`` and tells of the progress; a context manager.

    Every line is an object with ``index`` (from 0, over all searches of this folder), ``outcome``,
    ``time_ms`` or null, ``message`` or null, ``digest`` of the kernel or null, and ``elapsed_s``
    since the search began.

    Args:
        folder: where the file is; lines are added to it.
        wanted: how many trials there will be.
        tell: called with a line of progress every few seconds.
    """

    def __init__(self, folder: Path, name: str, wanted: int, tell: Callable[[str], None]) -> None:
        path = folder / JOURNAL_FILE
        self._name = name
        self._wanted = wanted
        self._tell = tell
        self._began_s = self._told_s = monotonic()
        self.faults: Counter[str] = Counter()
        self.timed = 0
        self.best_ms: float | None = None
        try:
            self._first = self._next = _count_lines(path)
            # Not buffered beyond a line, so that what is known survives a kill.
            self._stream = path.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}.") from None

    @property
    def tried(self) -> int:
        """Trials that have ended in this search."""
        return self._next - self._first

    @property
    def elapsed_s(self) -> float:
        """Wall time since the search began."""
        return monotonic() - self._began_s

    def add(
        self,
        outcome: TrialOutcome,
        *,
        time_ms: float | None = None,
        message: str | None = None,
        digest: str | None = None,
    ) -> None:
        """Write down how one trial ended."""
        line = {
            "index": self._next,
            "outcome": outcome,
            "time_ms": time_ms,
            "message": message,
            "digest": digest,
            "elapsed_s": round(self.elapsed_s, 3),
        }
        self._stream.write(json.dumps(line) + "\n")
        self._next += 1
        if time_ms is None:
            self.faults[outcome] += 1
        else:
            self.timed += 1
            self.best_ms = min(time_ms, self.best_ms or time_ms)
        if monotonic() - self._told_s >= _TELL_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Give the line of progress now."""
        self._told_s = monotonic()
        best = "none" if self.best_ms is None else f"{self.best_ms:.4g} ms"
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        rate = 60 * self.tried / max(self.elapsed_s, 1e-9)
        self._tell(
            f"{self._name}: {self.tried} of {self._wanted} trials, best {best}, "
            f"failed: {kinds or 'none'}, {rate:.0f} trials/min"
        )

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()


def _count_lines(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as stream:
        return sum(1 for _ in stream)
