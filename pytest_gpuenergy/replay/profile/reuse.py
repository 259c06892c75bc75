"""How much other memory is used before the same memory is used again, in a model and in a replay.

A cache of C bytes that drops what was used least recently still holds what comes back at a reuse
distance below C: Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies",
IBM Systems Journal 9(2), 1970. A replay that gives each tensor the distance that it had in the
model thus finds in the L2 cache what the model found there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ReuseSpan(NamedTuple):
    """Consecutive bytes of memory."""

    address: int
    size_bytes: int


class Reuse(NamedTuple):
    """What a call does with one of its tensors.

    Attributes:
        size_bytes: of the tensor.
        distance_bytes: of distinct memory that has been used since the tensor's was used last, the
            tensor included.
    """

    size_bytes: int
    distance_bytes: int


class ReuseStack:
    """Memory in the order in which it was used last.

    Args:
        limit_bytes: beyond this, distances are not told apart.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        # Begin, end and number of the latest use, which other parts may share; latest at the end.
        self._spans: list[tuple[int, int, int]] = []
        self._uses = 0

    def distance_bytes(self, span: ReuseSpan) -> int:
        """See `Reuse`; the mean over the bytes of the span, at most the limit."""
        begin, end = span.address, span.address + span.size_bytes
        if begin == end:
            return 0
        others, same_use, left, weighted = 0, 0, span.size_bytes, 0
        present = self._uses
        for first, last, use in reversed(self._spans):
            if use != present:
                others, same_use, present = others + same_use, 0, use
            if not left or others >= self._limit_bytes:
                break
            inside = max(0, min(last, end) - max(first, begin))
            weighted += inside * others
            left -= inside
            same_use += last - first - inside
        weighted += left * self._limit_bytes
        return min(self._limit_bytes, span.size_bytes + weighted // span.size_bytes)

    def use(self, span: ReuseSpan) -> None:
        """Note that a span is used."""
        begin, end = span.address, span.address + span.size_bytes
        if begin == end:
            return
        kept: list[tuple[int, int, int]] = []
        held_bytes = 0
        for first, last, use in reversed(self._spans):
            if held_bytes >= self._limit_bytes:
                break
            held_bytes += last - first
            parts = ((max(first, end), last, use), (first, min(last, begin), use))
            kept += [part for part in parts if part[0] < part[1]]
        self._uses += 1
        self._spans = [*reversed(kept), (begin, end, self._uses)]


def copies(tensors: Sequence[Reuse], most: int) -> list[int]:
    """Of each tensor, how many copies a replay should use in turn.

    With k(i) copies of tensor i, whose size is s(i), a replay comes back to a copy after it has
    used sum over j of s(j) min(k(i), k(j)) bytes.

    Args:
        tensors: of a call.
        most: copies of a tensor.

    Returns:
        The numbers that come nearest to the tensors' distances; at least 1.
    """
    found = [1] * len(tensors)
    settled_bytes, open_bytes = 0, sum(one.size_bytes for one in tensors)
    count = 1
    for index in sorted(range(len(tensors)), key=lambda one: tensors[one].distance_bytes):
        size_bytes, distance_bytes = tensors[index]
        if open_bytes:
            nearest = round((distance_bytes - settled_bytes) / open_bytes)
            count = min(most, max(count, nearest))
        found[index] = count
        settled_bytes += count * size_bytes
        open_bytes -= size_bytes
    return found
