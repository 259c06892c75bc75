"""Measures reuse distances: how much memory a model uses before it uses a tensor again.

A cache of C bytes that evicts the least recently used data still holds data whose reuse distance
is below C: Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM
Systems Journal 9(2), 1970. So a replay that gives each tensor the reuse distance that it had in the
model finds the same data in the L2 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_COPIES = 256
"""The largest number of copies of a tensor that a replay should use in turn."""


class ReuseSpan(NamedTuple):
    """Consecutive bytes of memory."""

    address: int
    size_bytes: int


class Reuse(NamedTuple):
    """The reuse of a tensor by a call.

    Attributes:
        size_bytes: The size of the tensor.
        distance_bytes: The distinct memory that was used since the tensor was used last, the tensor
            included.
    """

    size_bytes: int
    distance_bytes: int


class ReuseStack:
    """Memory in the order of its last use.

    Args:
        limit_bytes: The largest distance that is measured; larger ones count as this.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        # Begin, end, and the number of the latest use, which several spans may share. Latest last.
        self._spans: list[tuple[int, int, int]] = []
        self._uses = 0

    def distance_bytes(self, span: ReuseSpan) -> int:
        """Return the mean distance over the bytes of a span, up to the limit; see `Reuse`."""
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
        """Record that a span is used."""
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
    """Return how many copies of each tensor a replay should use in turn.

    With k(i) copies of tensor i, whose size is s(i), a replay uses the same copy again after it has
    used sum over j of s(j) min(k(i), k(j)) bytes.

    Args:
        tensors: The reuse of each tensor of a call.
        most: The largest number of copies of a tensor.

    Returns:
        The numbers, at least 1, whose distances are nearest to those of the tensors.
    """
    found = [1] * len(tensors)
    settled_bytes, open_bytes = 0, sum(tensor.size_bytes for tensor in tensors)
    count = 1
    for index in sorted(range(len(tensors)), key=lambda index: tensors[index].distance_bytes):
        size_bytes, distance_bytes = tensors[index]
        if open_bytes:
            nearest = round((distance_bytes - settled_bytes) / open_bytes)
            count = min(most, max(count, nearest))
        found[index] = count
        settled_bytes += count * size_bytes
        open_bytes -= size_bytes
    return found
