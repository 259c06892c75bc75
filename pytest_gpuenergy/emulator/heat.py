"""The temperature of an emulated card: a die on a heat sink in the air."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DIE_S = 0.35


@dataclass(frozen=True)
class Cooling:
    """How a model of card is cooled.

    Attributes:
        air_c: temperature of the air, in degrees Celsius.
        die_k: by how much the die is warmer than its heat sink at the default power limit.
        sink_k: by how much the heat sink is then warmer than the air.
        sink_s: time constant of the heat sink.
        leakage_per_k: by which fraction the power grows per kelvin.
    """

    air_c: float
    die_k: float
    sink_k: float
    sink_s: float
    leakage_per_k: float

    def at_rest(self, load: float) -> Warmth:
        """The warmth after a long time at a power, given as a fraction of the default limit."""
        return Warmth(load, load)

    def temperature_c(self, warmth: Warmth) -> float:
        """The temperature of the die."""
        return self.air_c + self.die_k * warmth.die + self.sink_k * warmth.sink

    def after(self, warmth: Warmth, load: float, seconds: float) -> Warmth:
        """The warmth after some seconds at a constant power."""
        die, sink = (-math.expm1(-seconds / constant_s) for constant_s in (_DIE_S, self.sink_s))
        return Warmth(
            warmth.die + (load - warmth.die) * die, warmth.sink + (load - warmth.sink) * sink
        )


@dataclass(frozen=True)
class Warmth:
    """The power as smoothed by die and heat sink, as fractions of the default limit.

    Raises:
        ValueError: one is not finite, negative or absurdly large.
    """

    die: float
    sink: float

    def __post_init__(self) -> None:
        if not (0 <= self.die <= 100 and 0 <= self.sink <= 100):
            raise ValueError("warmth")
