"""How far a kernel's outputs deviate from the reference."""

from __future__ import annotations

from msgspec import Struct


class Correctness(Struct, frozen=True):
    """The largest errors over all seeds, and their bounds.

    ``max_relative_error`` is max|out - ref| / max|ref|, ``normwise_error`` ||out - ref|| / ||ref||.
    """

    max_relative_error: float
    normwise_error: float
    max_relative_bound: float
    normwise_bound: float
    seeds: tuple[int, ...]
