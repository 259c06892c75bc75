"""A kernel in a host process: it runs for each verification and is relaunched for measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices import Arena, Threshold
from pytest_gpuenergy.emulator.host.kernel_process import KernelProcess
from pytest_gpuenergy.emulator.translation.spin_loops import may_wait, occurs
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.workloads import Array

Places = npt.NDArray[np.intp]

_MOST = 10_000  # launches that stand in for those of a measurement
_BUDGET_S = 0.05  # the processor time for these launches
_AFFORDABLE_S = _BUDGET_S / 2  # above it, a launch is only repeated in part
_WHOLE_S = 1.0  # above it, a launch of blocks that depend on one another is not repeated
_PERIOD = 32  # repeated launches of a part of the blocks, within `_AFFORDABLE_S`
_INSPECTED_BYTES = 8e6  # the accesses of the runs that are inspected after the first
_LAST_SEED = 2  # the greatest seed of the order of threads that verification asks for
_TOGETHER = r"\b__threadfence|\bcooperative_groups\b"


def is_divisible(kernel: Kernel) -> bool:
    """Return whether some blocks may run without the others, as far as the text shows."""
    text = kernel.source
    return len(kernel.launches) == 1 and not (occurs(text, _TOGETHER) or may_wait(text))


class HostKernel:
    """A `Loaded` kernel on the host.

    A measurement on an emulated GPU launches nothing, so launches on the host stand in for its own:
    10,000 of them, or as many as fit in 50 ms of processor time. If one launch takes more than
    25 ms, only so many of its blocks are launched that it takes that long. The outputs of the other
    blocks are those of the latest run; an extra launch after two runs finds out which elements the
    launched part writes. If blocks depend on one another, the whole kernel is launched once, if
    that takes at most 1 s.

    Args:
        before: a function to call before each run.
        program: a function that starts the process, at the first run.
        stack: the stack on which the process is entered.
        outputs: the arenas that the kernel writes.
        divisible: whether some blocks may run without the others, see `is_divisible`.
        inspect: a function that starts a process whose runs check every access, on a copy of the
            arenas.
        traffic_bytes: a function that returns the bytes that a run accesses. Runs after the first
            are inspected beforehand, up to 8 MB in all: other inputs may lead to other accesses.
    """

    def __init__(
        self,
        before: Callable[[], object],
        program: Callable[[], AbstractContextManager[KernelProcess]],
        stack: ExitStack,
        outputs: Sequence[Arena] = (),
        *,
        divisible: bool = False,
        inspect: Callable[[], AbstractContextManager[KernelProcess]] | None = None,
        traffic_bytes: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._before = before
        self._start = program
        self._stack = stack
        self._outputs = outputs
        self._divisible = divisible
        self._inspect = inspect
        self._inspector: KernelProcess | None = None
        self._traffic_bytes = traffic_bytes
        self._left_bytes = _INSPECTED_BYTES
        self._program: KernelProcess | None = None
        self._launches = 0
        self._launch_s = 0.0
        self._interrupted = _LAST_SEED
        self._stride = 0
        self._results: list[Array] = []
        self._earlier: list[Array] = []
        self._written: list[Places] = []
        self._unwritten: list[Places] = []

    @property
    def thresholds(self) -> Collection[Threshold]:
        """The numbers with which the inspected runs compared."""
        return self._inspector.compared if self._inspector is not None else ()

    @property
    def unread(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """The bytes of each input that no inspected run has read, see `Loaded.unread`."""
        return self._inspector.unread if self._inspector is not None else {}

    def run(self, order_seed: int = 0) -> None:
        """Run the kernel once."""
        self._before()
        if order_seed and self._inspect is not None:
            self._left_bytes -= self._traffic_bytes()
            if self._left_bytes > 0:
                if self._inspector is None:
                    self._inspector = self._stack.enter_context(self._inspect())
                self._inspector.run(order_seed=order_seed % 2)
        if self._program is None:
            self._program = self._stack.enter_context(self._start())
        if self._stride or not self._divisible:
            self._keep(self._earlier)
        self._written = []
        self._launch_s = self._launch(order_seed=order_seed)
        if self._divisible and self._launch_s > _AFFORDABLE_S and not self._stride:
            # A power of two, so that it hardly depends on how fast the host is.
            self._stride = 2 ** math.ceil(math.log2(self._launch_s / _AFFORDABLE_S))
        if self._stride or self._launch_s > _AFFORDABLE_S:  # a later run may be faster
            self._keep(self._results)

    def _find_written(self) -> None:
        """Find out by a launch which elements the part writes; the outputs are as before."""
        contents = [arena.words().copy() for arena in self._outputs]
        for arena, old in zip(self._outputs, self._earlier, strict=True):
            arena.words(writable=True)[:] = old
        self._launch(fresh=False, stride=self._stride)
        self._written, self._unwritten = [], []
        parts = zip(self._outputs, self._earlier, self._results, contents, strict=True)
        for arena, old, result, content in parts:
            words = arena.words(writable=True)
            self._written.append(written := np.flatnonzero(old != words))
            # Where a part writes what was there before, so may the others.
            self._unwritten.append(np.flatnonzero(old == result) if written.size else written)
            words[:] = content

    def relaunch(self, *, once: bool) -> Iterator[int]:
        """Launch the kernel or a part of it again; yield the number of launches so far."""
        if self._program is None:
            return
        if self._stride and self._earlier and not self._written:
            self._find_written()
        if self._divisible and not once and self._launch_s * _PERIOD > _BUDGET_S:
            # Repeat a small part to find launches that differ from the others.
            stride = 2 ** math.ceil(math.log2(self._launch_s * _PERIOD / _AFFORDABLE_S))
            changed = [arena for arena in self._outputs if arena.tensor.role == "inout"]
            contents = [arena.words().copy() for arena in changed]
            self._launch(fresh=False, most=_PERIOD, budget_s=_AFFORDABLE_S, stride=stride)
            for arena, content in zip(changed, contents, strict=True):
                arena.words(writable=True)[:] = content  # what the next launch begins with
        if self._stride:
            if not self._written:
                return
            self._before()
            self._launch(fresh=False, stride=self._stride)
            # Elsewhere the outputs are those of the latest run, but for what it left as it was.
            parts = zip(self._outputs, self._written, self._unwritten, self._results, strict=True)
            for arena, written, unwritten, result in parts:
                words = arena.words(writable=True)
                new, old = words[written], words[unwritten]
                words[:] = result
                words[unwritten] = old
                words[written] = new
        elif self._launch_s > _WHOLE_S:
            return
        elif self._launch_s > _AFFORDABLE_S and not once:
            # For the single launch that follows. What the latest run left as it was stays.
            both = zip(self._outputs, self._earlier, self._results, strict=True)
            for arena, earlier, result in both:
                np.copyto(arena.words(writable=True), result, where=earlier != result)
        else:
            self._before()
            most, budget_s = (1, 0.0) if once else (_MOST, _BUDGET_S)
            self._interrupted += 2 * once  # even seeds interrupt atomics, each at other places
            order_seed = self._interrupted if once else 0
            self._launch(order_seed=order_seed, fresh=False, most=most, budget_s=budget_s)
        yield self._launches

    def _launch(self, **options: Any) -> float:
        """Run the started process, see `KernelProcess.run`; return the processor time in s."""
        assert self._program is not None
        count, spent_s = self._program.run(**options)
        self._launches += count
        return spent_s

    def _keep(self, copies: list[Array]) -> None:
        """Copy the outputs; memory that was touched before is several times as fast."""
        if copies:
            for arena, copied in zip(self._outputs, copies, strict=True):
                copied[:] = arena.words()
        else:
            copies += [arena.words().copy() for arena in self._outputs]
