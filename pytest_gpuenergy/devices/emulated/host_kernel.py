"""A kernel in a host process: run for each verification, and relaunched for a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

MOST = 10_000
BUDGET_S = 0.05
AFFORDABLE_S = BUDGET_S / 2


class HostProgram(Protocol):
    """A kernel's process, such as a `Program`."""

    def run(
        self, *, order_seed: int = 0, fresh: bool = True, most: int = 1, budget_s: float = 0.0
    ) -> tuple[int, float]: ...


class HostKernel:
    """A `Loaded` kernel on the host.

    A measurement on an emulated GPU launches nothing, so launches on the host stand in for its own:
    `MOST` of them, or as many as take `BUDGET_S` of processor time, and none if one takes more than
    `AFFORDABLE_S`.

    Args:
        before: called before each run.
        program: starts the process; entered at the first run.
        stack: on which it is entered.
    """

    def __init__(
        self,
        before: Callable[[], object],
        program: Callable[[], AbstractContextManager[HostProgram]],
        stack: ExitStack,
    ) -> None:
        self._before = before
        self._start = program
        self._stack = stack
        self._program: HostProgram | None = None
        self._launches = 0
        self._launch_s = 0.0

    def run(self, order_seed: int = 0) -> None:
        """Run once."""
        self._before()
        if self._program is None:
            self._program = self._stack.enter_context(self._start())
        count, self._launch_s = self._program.run(order_seed=order_seed)
        self._launches += count

    def relaunch(self, *, once: bool) -> Iterator[int]:
        """Launch again, unless that takes too long; yields the number of launches so far."""
        if self._program is None or self._launch_s > AFFORDABLE_S:
            return
        self._before()
        most, budget_s = (1, 0.0) if once else (MOST, BUDGET_S)
        count, _ = self._program.run(fresh=False, most=most, budget_s=budget_s)
        self._launches += count
        yield self._launches
