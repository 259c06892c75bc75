"""The process that put something on the emulated card, and whether it is still alive."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from pytest_gpuenergy.support import start_ticks


@dataclass(frozen=True)
class Owner:
    """A process by its number and, because numbers are reused, its start time."""

    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return _owner(os.getpid())

    def alive(self) -> bool:
        """Whether the process still runs; a zombie does not."""
        return start_ticks(self.pid) == self.started


@functools.cache  # by number, so that a forked child is not taken for its parent
def _owner(pid: int) -> Owner:
    return Owner(pid, start_ticks(pid) or 0)
