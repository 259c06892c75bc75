"""The memory traffic of a CUDA kernel, and how often a thread waits for loads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuenergy.search.priors.averages import LOOPS, Averages
from pytest_gpuenergy.search.priors.work import WARP
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_text import CudaText
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import ancestors, field, inside, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

SECTOR_BYTES = 32
_BANKS, _WORD_BYTES = 32, 4
_Thread = tuple[int, int, int]
_Steps = tuple[float, float, float, float]


class Touched(NamedTuple):
    """Parts of a tensor.

    Attributes:
        sectors: their numbers.
        elements: where they begin, in bytes.
        size: of an element.
    """

    sectors: frozenset[int]
    elements: frozenset[int]
    size: int

    def __or__(self, other: Touched) -> Touched:
        return Touched(self.sectors | other.sectors, self.elements | other.elements, self.size)

    def bytes_after(self, rounds: float) -> float:
        """What as many rounds touch that are alike, if what they touch fills its sectors."""
        once = len(self.sectors) * SECTOR_BYTES
        return max(once, rounds * min(once, len(self.elements) * self.size))


class Places:
    """Places of an address, in bytes, in the threads of an average block."""

    def __init__(self, kernel: CudaKernel, averages: Averages) -> None:
        self._averages = averages
        width, height, _ = kernel.block
        self._threads: list[_Thread] = [
            (thread % width, thread // width % height, thread // width // height)
            for thread in range(kernel.threads)
        ]

    def of_warp(self, offset: Polynomial, size: int, wide: int) -> Touched | None:
        """What a warp touches with one access of ``wide`` elements of ``size`` bytes.

        None if the address is not known.
        """
        return self._touched(offset, size, wide, self._threads[:WARP])

    def of_block(self, offset: Polynomial, size: int, wide: int) -> Touched | None:
        """What a block touches with it."""
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
            frozenset(one // SECTOR_BYTES for one in elements), frozenset(elements), size
        )

    def wavefronts(self, offset: Polynomial, size: int, wide: int) -> float | None:
        """Parts that a warp's access to shared memory takes, because of its width and its banks."""
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
        """The address in thread 0 and what a step along each axis adds.

        None unless it is so linear, by the threads in the middle and at the end.
        """
        first, *nexts = (self._value(offset, one) for one in ((0, 0, 0), *_UNITS))
        if first is None:
            return None
        x, y, z = (0.0 if one is None else one - first for one in nexts)
        steps = first, x, y, z
        probes = threads[len(threads) // 2], threads[len(threads) * 2 // 3], threads[-1]
        linear = all(self._value(offset, one) == _linear(steps, one) for one in probes)
        return steps if linear else None

    def _value(self, offset: Polynomial, thread: _Thread) -> float | None:
        return self._averages.value(offset, dict(zip(_NAMES, thread, strict=True)), 0.0)


_UNITS = (1, 0, 0), (0, 1, 0), (0, 0, 1)
_NAMES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def _linear(steps: _Steps, thread: _Thread) -> float:
    first, x, y, z = steps
    return first + (x * thread[0] + y * thread[1] + z * thread[2])


BARRIERS = ("__syncthreads", "__syncwarp")
_IN_FLIGHT = 8
"""Loads of a thread at a time, as in the timing model of the emulated GPU; a guess."""
_ROUNDS_AHEAD = 4
"""Of a loop that nvcc repeats because its ends are not known, as machine code for sm_90 shows."""


class Waiting:
    """Rounds of loads, each of which takes their latency once.

    The compiler moves loads ahead within a straight piece of code. It repeats the body of an inner
    loop and moves its loads ahead, too, unless a branch, a barrier or another loop is in the way.

    Args:
        text: of the kernel.
        averages: of its loops.
    """

    def __init__(self, text: CudaText, averages: Averages) -> None:
        self._text = text
        self._averages = averages
        self._straight: dict[int, bool] = {}

    def rounds(self, loads: Iterable[Node]) -> float:
        """Of the thread that waits most, for loads at these places."""
        pieces: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
        around: dict[tuple[int, int], tuple[Node | None, Node | None]] = {}
        for load in loads:
            loop, branch = self._around(load)
            key = loop.id if loop else 0, branch.id if branch else 0
            pieces[key].append(load)
            around[key] = loop, branch
        return sum(self._of_piece(*around[key], some) for key, some in pieces.items())

    def _around(self, load: Node) -> tuple[Node | None, Node | None]:
        """The innermost loop that stays one, and the branch in it, if the load is in one."""
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
            inner = (one for one in nodes(loop, *LOOPS) if one != loop)
            self._straight[loop.id] = all(map(self._is_unrolled, inner)) and not any(
                True for _ in self._text.calls(loop, *BARRIERS)
            )
        return self._straight[loop.id]

    def _is_unrolled(self, loop: Node) -> bool:
        return loop.type == "for_statement" and self._averages.is_constant(loop)
