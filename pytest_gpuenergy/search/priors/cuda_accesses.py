"""The sectors and banks that the accesses of a CUDA kernel touch, and the waiting for its loads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.priors.averages import LOOPS, Averages
from pytest_gpuenergy.search.priors.work import WARP
from pytest_gpuenergy.search.source.cuda_text import CudaText
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import ancestors, field, inside, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

SECTOR_BYTES = 32
_BANKS, _WORD_BYTES = 32, 4
_Thread = tuple[int, int, int]
_Steps = tuple[float, float, float, float]
_UNITS = (1, 0, 0), (0, 1, 0), (0, 0, 1)
_NAMES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
BARRIERS = ("__syncthreads", "__syncwarp")
_IN_FLIGHT = 8
"""Loads of a thread at a time; a guess of the emulated GPU's timing model."""
_ROUNDS_AHEAD = 4
"""Times that nvcc repeats the body of a loop with unknown ends, as in machine code for sm_90."""


class Touched(NamedTuple):
    """The parts of a tensor that an access touches.

    Attributes:
        sectors: the numbers of the sectors.
        elements: the addresses of the elements, in bytes.
        size: the bytes of an element.
    """

    sectors: frozenset[int]
    elements: frozenset[int]
    size: int

    def __or__(self, other: Touched) -> Touched:
        return Touched(self.sectors | other.sectors, self.elements | other.elements, self.size)

    def bytes_after(self, rounds: float) -> float:
        """Return the bytes that so many equal rounds touch, if together they fill the sectors."""
        once = len(self.sectors) * SECTOR_BYTES
        return max(once, rounds * min(once, len(self.elements) * self.size))


class Places:
    """The addresses, in bytes, that the threads of an average block access."""

    def __init__(self, kernel: CudaKernel, averages: Averages) -> None:
        self._averages = averages
        width, height, _ = kernel.block
        self._threads: list[_Thread] = [
            (thread % width, thread // width % height, thread // width // height)
            for thread in range(kernel.threads)
        ]

    def of_warp(self, offset: Polynomial, size: int, wide: int) -> Touched | None:
        """Return what a warp touches with one access of ``wide`` elements of ``size`` bytes.

        None means that the address is unknown.
        """
        return self._touched(offset, size, wide, self._threads[:WARP])

    def of_block(self, offset: Polynomial, size: int, wide: int) -> Touched | None:
        """Return what a block touches with such an access."""
        return self._touched(offset, size, wide, self._threads)

    def _touched(
        self, offset: Polynomial, size: int, wide: int, threads: list[_Thread]
    ) -> Touched | None:
        elements: set[int] = set()
        for first in self._addresses(offset, size, threads):
            if first is None:
                return None
            elements.update(range(first, first + size * wide, size))
        return Touched(
            frozenset(address // SECTOR_BYTES for address in elements), frozenset(elements), size
        )

    def wavefronts(self, offset: Polynomial, size: int, wide: int) -> float | None:
        """Return the number of parts that a warp's access to shared memory takes."""
        words: defaultdict[int, set[int]] = defaultdict(set)
        for first in self._addresses(offset, size, self._threads[:WARP]):
            if first is None:
                return None
            for word in range(first // _WORD_BYTES, (first + size * wide - 1) // _WORD_BYTES + 1):
                words[word % _BANKS].add(word)
        return float(max(len(some) for some in words.values()))

    def _addresses(
        self, offset: Polynomial, size: int, threads: list[_Thread]
    ) -> Iterator[int | None]:
        steps = self._steps(offset, threads)
        for thread in threads:
            value = self._value(offset, thread) if steps is None else _linear(steps, thread)
            yield None if value is None else int(value) * size

    def _steps(self, offset: Polynomial, threads: list[_Thread]) -> _Steps | None:
        """Return the address in thread 0 and what a step along each axis adds.

        None means that the address is not linear, by the threads in the middle and at the end.
        """
        first, *nexts = (self._value(offset, one) for one in ((0, 0, 0), *_UNITS))
        if first is None:
            return None
        x, y, z = (0.0 if one is None else one - first for one in nexts)
        steps = first, x, y, z
        probes = threads[len(threads) // 2], threads[len(threads) * 2 // 3], threads[-1]
        linear = all(self._value(offset, thread) == _linear(steps, thread) for thread in probes)
        return steps if linear else None

    def _value(self, offset: Polynomial, thread: _Thread) -> float | None:
        return self._averages.value(offset, dict(zip(_NAMES, thread, strict=True)), 0.0)


def _linear(steps: _Steps, thread: _Thread) -> float:
    first, x, y, z = steps
    return first + (x * thread[0] + y * thread[1] + z * thread[2])


class Waiting:
    """The rounds of loads for which a thread waits; each takes the latency of a load once.

    The compiler moves loads ahead within a straight piece of code. It also repeats the body of an
    inner loop and moves its loads ahead, unless a branch, a barrier or another loop is in the way.

    Args:
        text: the text of the kernel.
        averages: the rounds of its loops.
    """

    def __init__(self, text: CudaText, averages: Averages) -> None:
        self._text = text
        self._averages = averages
        self._straight: dict[int, bool] = {}

    def rounds(self, loads: Iterable[Node]) -> float:
        """Return the rounds of the thread that waits most, for loads at these places."""
        pieces: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
        around: dict[tuple[int, int], tuple[Node | None, Node | None]] = {}
        for load in loads:
            loop, branch = self._around(load)
            key = loop.id if loop else 0, branch.id if branch else 0
            pieces[key].append(load)
            around[key] = loop, branch
        return sum(self._of_piece(*around[key], some) for key, some in pieces.items())

    def _around(self, load: Node) -> tuple[Node | None, Node | None]:
        """Return the innermost loop that is not unrolled, and the branch in it, around a load."""
        branch = None
        for outer in ancestors(load):
            if outer.type in LOOPS and not self._is_unrolled(outer):
                return outer, branch
            condition = field(outer, "condition") if outer.type == "if_statement" else None
            if branch is None and condition is not None and not inside(load, condition):
                branch = outer
        return None, branch

    def _of_piece(self, loop: Node | None, branch: Node | None, loads: list[Node]) -> float:
        passes = 1.0
        if loop is not None:
            passes = self._averages.times(loop).most * self._averages.rounds(loop).most
        count = sum(self._averages.times(load).most for load in loads)
        if not passes:
            return 0.0
        each = count / passes
        ahead = 1.0
        if loop is not None and branch is None and self._is_straight(loop):
            ahead = min(_ROUNDS_AHEAD, max(1.0, _IN_FLIGHT / each))
        return max(min(1.0, passes), passes / ahead) * max(1.0, each / _IN_FLIGHT)

    def _is_straight(self, loop: Node) -> bool:
        if loop.id not in self._straight:
            inner = (inner_loop for inner_loop in nodes(loop, *LOOPS) if inner_loop != loop)
            self._straight[loop.id] = all(map(self._is_unrolled, inner)) and not any(
                True for _ in self._text.calls(loop, *BARRIERS)
            )
        return self._straight[loop.id]

    def _is_unrolled(self, loop: Node) -> bool:
        return loop.type == "for_statement" and self._averages.is_constant(loop)
