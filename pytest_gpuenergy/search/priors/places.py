"""Which memory the threads of a block touch together: sectors of tensors, and banks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pytest_gpuenergy.search.priors.averages import Averages
from pytest_gpuenergy.search.priors.work import WARP
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.polynomials import Polynomial

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
