"""Who put something on the emulated card, and whether that process still exists."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process: its number, and its start time since numbers are used again."""

    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return _owner(os.getpid())

    def alive(self) -> bool:
        """Whether the process still runs; a zombie does not."""
        return _started(self.pid) == self.started


@functools.cache  # by number, so that a forked child is not taken for its parent
def _owner(pid: int) -> Owner:
    return Owner(pid, _started(pid) or 0)


def _started(pid: int) -> int | None:
    # Fields after the parenthesized command: state is the 3rd of the line, start time the 22nd.
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
