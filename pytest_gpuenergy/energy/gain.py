"""From figures as measured to those of a card that has settled, within its power limit."""

from __future__ import annotations

import math
from typing import NamedTuple

from pytest_gpuenergy.energy.thermal import Settling
from pytest_gpuenergy.record import Metric

_SLOWED = 0.3
"""A card at its power limit that gets warmer leaks more, has less power left for its work, and
slows down: by so many per cent for a per cent of power. For a kernel that waits for the memory it
is nothing; for one that computes and whose power grows with the square of its clock or more, up to
0.5. One that computes showed 0.3 on an H100 (docs/notes/temperature.md)."""


class Gain(NamedTuple):
    """By which factor a figure changes until the card has settled; ``error`` is relative."""

    factor: float
    error: float


UNCHANGED = Gain(1.0, 0.0)


def gains(settling: Settling | None, headroom: float) -> dict[Metric, Gain]:
    """The gain of each metric.

    The power rises as far as the limit allows. How much longer a launch takes beyond that depends
    on the kernel, and is counted as an error.

    Args:
        settling: of the temperature; None if it is not known.
        headroom: by which fraction the power can rise before it reaches its limit; with 0 it stays
            there, also on a card that cools.
    """
    if settling is None:
        return dict.fromkeys(Metric, UNCHANGED)
    if 0 < headroom > settling.gain:
        free = Gain(1 + settling.gain, settling.gain_error)
        return {Metric.TIME: UNCHANGED, Metric.ENERGY: free, Metric.EDP: free}
    slowed = _SLOWED * math.hypot(settling.gain - headroom, settling.gain_error)
    return {
        Metric.TIME: Gain(1.0, slowed),
        Metric.ENERGY: Gain(1 + headroom, slowed),
        Metric.EDP: Gain(1 + headroom, 2 * slowed),
    }
