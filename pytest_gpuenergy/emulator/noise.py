"""Noise that depends only on a card's seed and its virtual time."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_SQRT3 = 3**0.5


def noise(seed: int, stream: int, index: int) -> float:
    """A value of mean 0 and standard deviation 1, bounded by +-3.47.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014) hashes the arguments; the sum of its four 16-bit parts is nearly normal.
    """
    x = (seed + stream * 0xD1B54A32D192ED03 + index * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    x ^= x >> 31
    total = (x & 0xFFFF) + (x >> 16 & 0xFFFF) + (x >> 32 & 0xFFFF) + (x >> 48)
    return (total / 65535 - 2) * _SQRT3
