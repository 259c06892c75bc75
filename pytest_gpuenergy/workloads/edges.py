"""Inputs that tell kernels apart which agree on ordinary ones.

A *mixture* has values of every magnitude up to the reach, values near the numbers in a kernel's
text, and slices (rows, columns, blocks) of a kind of their own, such as one large value among
ordinary ones. A *sparse* drawing consists of such slices only, so that each decides its outputs. In
a *uniform* drawing a whole tensor is of one kind. Integers depend on their positions: indices form
one chain or tree of all elements, and weights one long path, as random ones never do.
Floating-point values are all tiny, all near one large value of either sign, or all zeros of both
signs, beginning with either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads.array_math import NUMPY, ArrayMath
from pytest_gpuenergy.workloads.number_types import (
    Array,
    is_floating,
    is_untouched,
    numbers,
    rounded_to,
    unit_roundoff,
)
from pytest_gpuenergy.workloads.slices import Palette, put_slices

_Floats = npt.NDArray[np.float64]

_REPEATED = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Sums and products of these are exact, so that their ties remain ties."""
_TINY = (-14, -6)  # exponents of two, so as to be normal numbers in every type
_FARTHEST = 1024.0
"""The largest number in a kernel's text that becomes an input, where values may be large."""
_SHORT_BITS = 7
"""The most digits of a number whose products with others of as few are exact in every type."""
_ODD = np.array([1, 3, 5, 7, 9, 11, 21, 43, 85, 127, 171, 255], dtype=np.float64)
_BORDERS = np.unique([*np.arange(1, 33) / 4, *np.exp2(np.arange(-6, 8))])
"""Quarters and powers of two, between which numbers fall into cells, bins or octaves."""
_BORDER_SHARE = 1 / 8
_LEAST_DIVISOR, _MULTIPLES = 32, 512
"""The smallest literal of which multiples are drawn, and the number of these multiples."""
_WIDE, _OCTAVES = 1 << 16, 512
"""The width of a range from which on integers of every length are drawn, and how many different."""
_BITS = (1 << 64) - 1

UNIFORM, UNIFORM_FLOATS = range(1, 9), (1, 2, 4, 7, 9, 10)
"""Numbers of uniform drawings, and of those that differ for floating-point values."""


@dataclass(frozen=True)
class Edges:
    """The reach and the kinds of the values that are drawn.

    Attributes:
        sign: -1 or 1, of all values of the first input; 0: of both signs.
        reach: the largest magnitude of a floating-point value.
        zeros: whether there are floating-point zeros.
        small: whether there are other floating-point values close to zero, which hide a maximum or
            minimum that starts at 0.
        equal: whether all values of a slice may be the same.
        literals: numbers near which there are values as well.
        sparse: number of a sparse drawing, from 1; 0: a mixture.
        whole: whether the first sparse drawing has a single extreme rather than one in each row,
            since there are few outputs.
        uniform: number of a uniform drawing, from 1; 0: none.
    """

    sign: int
    reach: float
    zeros: bool
    small: bool = True
    equal: bool = True
    literals: tuple[float, ...] = ()
    sparse: int = 0
    whole: bool = False
    uniform: int = 0


REACHES = (
    (128.0, True, True),
    (128.0, False, True),
    (128.0, False, False),
    (64.0, False, False),
    (32.0, False, False),
    (8.0, False, False),
    (2.0, False, False),
)
"""``reach``, ``zeros`` and ``equal``, from the most telling to the most harmless.

exp(x) overflows in single precision from 88.7 on. A workload for which 128 is too large is given
less, because its reference must be a finite number of the output's type.
"""


def draw_edges(
    generator: np.random.Generator,
    dtype: str,
    own: tuple[float, float] | None,
    edges: Edges,
    shape: tuple[int, ...],
) -> Array:
    """Draw a mix of ordinary and extreme values, or a sparse drawing.

    Args:
        generator: the source of random numbers.
        dtype: the type of the elements.
        own: the range that the workload gives the tensor, which is then kept.
        edges: the reach of the values; a ``sign`` of 0 stands for both signs.
        shape: the shape of the result.
    """
    starts = generator.random(2)
    if edges.uniform:
        if is_floating(dtype):
            return rounded_to(_uniform_floats(generator, dtype, own, edges, shape), dtype)
        return _uniform_wholes(generator, np.dtype(dtype), own, edges, shape)

    def with_slices(values: Array, palette: Palette) -> Array:
        put_slices(
            generator,
            values,
            palette,
            starts,
            sparse=edges.sparse,
            whole=edges.whole,
            equal=edges.equal,
            large_columns=edges.sign < 0,
        )
        return values

    if edges.sparse:  # successive ones differ in all but where their extremes started
        generator = np.random.default_rng((int(generator.integers(1 << 62)), edges.sparse))
    if is_floating(dtype):
        palette = _floating_palette(generator, own, edges)
        values: Array = (
            palette.quiet(shape) if edges.sparse else _mixture(generator, shape, own, edges)
        )
        if not edges.sparse:
            _plant(generator, values, _near(dtype, own, edges))
            _plant(generator, values, _beside_borders(dtype, own, edges), _BORDER_SHARE)
        rounded = rounded_to(with_slices(values, palette).astype(np.float64), dtype)
        if own is None:
            return rounded
        # Rounding may bring values to the end of their range, which is excluded.
        beyond = numbers(rounded, dtype).astype(np.float64) >= own[1]
        if not beyond.any():
            return rounded
        last = own[1] - max(abs(own[1]), 2.0 ** _TINY[0]) * 4 * unit_roundoff(dtype)
        return np.where(beyond, rounded_to(np.array(last), dtype), rounded)
    kind = np.dtype(dtype)
    low, high = _whole_range(kind, own, edges)
    palette = _whole_palette(generator, kind, low, high)
    if edges.sparse:
        values = palette.quiet(shape)
    else:
        values = generator.integers(low, high, shape, dtype=kind.type, endpoint=True)
        if high - low > _WIDE:
            _plant(generator, values, _octaves(generator, kind, low, high))
        special = [n for n in (low, high, 0, 1, -1, 2) if low <= n <= high]
        _plant(generator, values, np.array(special, dtype=kind))
        _plant(generator, values, _whole_near(kind, low, high, edges))
        _plant(generator, values, _multiples(generator, kind, low, high, values.size, edges))
    return with_slices(values, palette)


def _octaves(generator: np.random.Generator, kind: np.dtype[Any], low: int, high: int) -> Array:
    """Return integers that a uniform drawing of a wide range does not contain.

    They have any number of digits, or of zeros or ones at their ends. Some are the bits of ordinary
    floating-point numbers with as few digits: kernels take numbers apart, and rounding meets ties.
    """
    bits = 8 * kind.itemsize
    wide = generator.integers(1 << 63, size=_OCTAVES, dtype=np.uint64) << np.uint64(1)
    words = wide >> np.uint64(64 - bits)
    places = generator.integers(bits, size=_OCTAVES).astype(np.uint64)
    ends = (np.uint64(1) << places) - np.uint64(1)
    short, round_, odd = words >> places, words & ~ends, words | ends
    if bits in (16, 32, 64):
        real = np.dtype(f"f{kind.itemsize}")
        drawn = generator.standard_normal(_OCTAVES) * np.exp2(generator.uniform(-8, 8, _OCTAVES))
        round_[::2] = (drawn.astype(real).view(f"u{kind.itemsize}").astype(np.uint64) & ~ends)[::2]
    numbers = [
        number - (1 << bits) if low < 0 and number >> (bits - 1) else number
        for number in np.concatenate([short, round_, odd]).tolist()
    ]
    numbers += [-number for number in short.tolist() if low < 0]
    return np.array([number for number in numbers if low <= number <= high], dtype=kind)


def _whole_near(kind: np.dtype[Any], low: int, high: int, edges: Edges) -> Array:
    """Return the integers just below, at and above the literals."""
    near = {
        sign * round(number) + step
        for number in edges.literals
        for sign in (-1, 1)
        for step in (-1, 0, 1)
    }
    inside = [number for number in sorted(near) if low <= number <= high]
    return np.array(inside, dtype=kind)


def _multiples(
    generator: np.random.Generator,
    kind: np.dtype[Any],
    low: int,
    high: int,
    size: int,
    edges: Edges,
) -> Array:
    """Return integers that are just below, at or above a multiple, once shifted by a literal.

    A kernel that computes ``(days + 719468) / 146097`` may be wrong for the last day of a cycle,
    which one number in 146097 is. The multiples of numbers well below ``size`` are drawn anyway.
    """
    wholes = [int(each) for each in edges.literals if each >= _LEAST_DIVISOR and each % 1 == 0]
    divisors = [each for each in wholes if size // 8 < each <= high - low]
    if not divisors:
        return np.empty(0, kind)
    shifts = [0, *wholes, *(-each for each in wholes)]
    numbers = []
    for divisor, shift, part, step in zip(
        generator.choice(divisors, _MULTIPLES).tolist(),
        generator.choice(len(shifts), _MULTIPLES).tolist(),
        generator.random(_MULTIPLES).tolist(),
        generator.integers(-1, 2, _MULTIPLES).tolist(),
        strict=True,
    ):
        start = low + int(part * (high - low)) + shifts[shift]
        numbers.append(start // divisor * divisor - shifts[shift] + step)
    return np.array([number for number in numbers if low <= number <= high], dtype=kind)


def end_of_range(uniform: int, *, first: bool) -> Literal[-1, 1]:
    """Return the end of its range at which a uniform drawing has a tensor's values.

    Sums of products of two tensors are then all close to their lowest value, or to their highest.
    """
    return 1 if uniform == 7 or first == (uniform == 1) else -1


def _uniform_floats(
    generator: np.random.Generator,
    dtype: str,
    own: tuple[float, float] | None,
    edges: Edges,
    shape: tuple[int, ...],
) -> _Floats:
    """Draw by `Edges.uniform`: 1 all tiny, 2 near a large value, 7 zeros, otherwise ordinary.

    With 4 they are far below zero, where a maximum that starts at zero leaves no exponential.
    With 8 they are positive: all may be added to one place, and the sum must not be zero by chance.
    With 9 those of the first input are closer to a large value, see `_spreads`.
    With 10 they are zeros as with 7, but the first one is negative: of equal numbers the first
    counts, and a kernel that compares bits takes zeros for different.
    Values in a range of their own are all near one of its ends, by `Edges.sign`.
    """
    values = _floating_palette(generator, own, edges).quiet(shape).astype(np.float64)
    if own is not None:
        if edges.uniform not in (1, 2, 7):
            return values
        part = generator.uniform(1 / 256, 1 / 8, shape)
        return own[0] + (own[1] - own[0]) * (1 - part if edges.sign > 0 else part)
    if edges.uniform == 1:
        return values * 2.0 ** _TINY[0]
    if edges.uniform == 2:
        return edges.reach / 2 + values
    if edges.uniform == 4:
        return values - edges.reach * 15 / 16
    if edges.uniform == 9 and edges.sign:
        return edges.sign * edges.reach / 2 + values * _spreads(dtype, edges.reach / 2, shape)
    if edges.uniform == 8:
        return (edges.sign or 1) * (0.5 + np.abs(values))
    if edges.uniform in (7, 10) and edges.zeros:
        values = np.copysign(0.0, values)
        values.flat[:1] = 0.0 if edges.uniform == 7 else -0.0
    return values


def _spreads(dtype: str, centre: float, shape: tuple[int, ...]) -> _Floats:
    """Return how far values lie from a large one, by their index in the first dimension.

    Mean square minus squared mean loses all digits where values are close together. That holds for
    groups of any size, which the shape need not show. The type has 32 values within each distance.
    """
    if len(shape) < 2:
        return np.ones(())
    closest = min(1.0, 32 * centre * unit_roundoff(dtype))
    spreads: _Floats = np.maximum(np.exp2(-4.0 * (np.arange(shape[0]) % 3)), closest)
    return spreads.reshape(-1, *[1] * (len(shape) - 1))


def _uniform_wholes(
    generator: np.random.Generator,
    kind: np.dtype[Any],
    own: tuple[float, float] | None,
    edges: Edges,
    shape: tuple[int, ...],
) -> Array:
    """Integers that follow from their places.

    By `Edges.uniform`: 1 the number of the next element, 2 that of the next row, 3 that of the row
    before, each modulo the range; 4 rows of one value, the lowest or the highest; 5 a path, which
    goes from each row to the next: the highest value but there, where values are low or near a
    literal; 6 the same with one value all along the path; 7 the lowest value only, 8 the highest.
    """
    low, high = _whole_range(kind, own, edges)
    start = min(max(0, low), high)
    span = min(high - start + 1, 1 << 62)
    size = math.prod(shape)
    if not size:
        return np.empty(shape, kind)
    if edges.uniform >= 7:  # no flag is set or all are, all rows are empty or full
        return np.full(shape, low if edges.uniform == 7 else high, kind)
    rows = np.arange(size)[: shape[0] if shape else 1].reshape(shape[:1] + (1,) * (len(shape) - 1))
    if edges.uniform <= 3:
        flat = np.arange(1, size + 1).reshape(shape)
        number = (flat, rows + 1, np.maximum(rows - 1, 0))[edges.uniform - 1] % span
        return np.broadcast_to(start + number, shape).astype(kind)
    if edges.uniform == 4 or len(shape) < 2:
        lines = shape[:-1] or shape
        ends = np.where(generator.random(lines) < 0.5, kind.type(high), kind.type(low))
        return np.broadcast_to(ends[..., None] if shape[:-1] else ends, shape).copy()
    near = _whole_near(kind, low, high, edges)
    steps = np.full(shape[-2], low, kind)
    if near.size and edges.uniform == 5:
        _plant(generator, steps, near)
    elif near.size:
        steps[:] = near[int(generator.integers(near.size))]
    values = np.full(shape, high, kind)
    line = np.arange(shape[-2])
    values[..., line, (line + 1) % shape[-1]] = steps
    return values


def _mixture(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    own: tuple[float, float] | None,
    edges: Edges,
) -> _Floats:
    if own is not None:
        values = generator.uniform(*own, shape)
        few = generator.uniform(*own, 4)
        if own[0] or edges.zeros:
            few[0] = own[0]
        chosen = few[generator.integers(len(few), size=shape)]
        return np.where(generator.random(shape) < 0.5, chosen, values)
    kinds = generator.integers(0, 8, shape)
    repeated = (*_REPEATED, *((0.0,) if edges.zeros and edges.small else ()))
    octaves = math.log2(edges.reach)
    size = np.select(
        [kinds < 1, kinds < 2, kinds < 4, kinds < 6],
        [
            generator.uniform(edges.reach / 2, edges.reach, shape),
            np.exp2(generator.uniform(*_TINY, shape)) + (not edges.small),
            np.array(repeated)[generator.integers(len(repeated), size=shape)],
            np.exp2(generator.uniform(_TINY[1] if edges.small else -1, octaves, shape)),
        ],
        np.maximum(np.abs(generator.standard_normal(shape)), 0 if edges.small else 0.5),
    )
    signs = _signs(generator, shape)
    if edges.sign:
        signs = np.where(size == 0, signs, edges.sign)
    return np.asarray(signs * size, dtype=np.float64)


def _signs(generator: np.random.Generator, shape: int | tuple[int, ...]) -> _Floats:
    return np.where(generator.random(shape) < 0.5, -1.0, 1.0)


def _near(dtype: str, own: tuple[float, float] | None, edges: Edges) -> _Floats:
    """Return values just below, at and above the literals, and some functions of them."""
    literals = np.abs(np.array(edges.literals, dtype=np.float64))
    if not literals.size:
        return literals
    with np.errstate(all="ignore"):
        guesses = [1 / literals, np.exp(literals), np.log(literals), np.sqrt(literals)]
    bases = np.concatenate([np.repeat(literals, 4), *guesses])
    bases = np.concatenate([bases, -bases])
    steps = np.array([0, 3, -3, 2.0**16, -(2.0**16)]) * unit_roundoff(dtype)
    if steps[-1] < -1:  # of half precision
        steps = np.array([0, 3, -3, 16, -16]) * unit_roundoff(dtype)
    if steps[-1] <= -1:  # of 8 bits
        steps = np.array([0, 1, -1, 2, -2]) * unit_roundoff(dtype)
    values = np.concatenate([(bases[:, None] * (1 + steps)).reshape(-1), _ties(literals)])
    if own is not None:
        return values[(values >= own[0]) & (values < own[1])]
    farthest = _FARTHEST if edges.reach >= REACHES[0][0] else edges.reach
    size = np.abs(values)
    least = 2.0 ** _TINY[0] if edges.small else 0.5
    return (edges.sign or np.sign(values)) * np.where(
        (size >= least) & (size <= farthest), size, 1.0
    )


def _ties(literals: _Floats) -> _Floats:
    """Values that products with literals, or quotients by 1/2, 1/4 ..., bring between integers.

    They are exactly in the middle, so that no rounding error takes a right kernel to the other one.
    """
    mantissas, exponents = np.frexp(literals[literals > 0])
    short = mantissas * 2**_SHORT_BITS % 1 == 0
    digits = mantissas[short] * 2**_SHORT_BITS
    trailing = np.log2(np.bitwise_and(digits.astype(np.int64), -digits.astype(np.int64)))
    halves = np.exp2(_SHORT_BITS - 1 - trailing - exponents[short])
    powers = literals[np.isin(literals, np.exp2(-np.arange(1.0, 64.0)))]
    units = np.concatenate([halves, powers / 2])
    ties = np.multiply.outer(units, _ODD).reshape(-1)
    return np.concatenate([ties, -ties])


def _beside_borders(dtype: str, own: tuple[float, float] | None, edges: Edges) -> _Floats:
    """Return the numbers next to `_BORDERS`, on both sides.

    A kernel that adds the length of a period before it rounds down, or rounds a logarithm, may
    take the number below a border for the border.
    """
    # Below a power of two, numbers lie twice as close as above.
    steps = np.array([-1, -2, 2]) * unit_roundoff(dtype)
    sizes = np.multiply.outer(_BORDERS, 1 + steps).reshape(-1)
    values = np.concatenate([sizes, -sizes])
    if own is not None:
        return values[(values >= own[0]) & (values < own[1])]
    if edges.sign:
        values = edges.sign * sizes
    size = np.abs(values)
    least = 2.0 ** _TINY[0] if edges.small else 0.5
    inside: _Floats = values[(size >= least) & (size <= edges.reach)]
    return inside


def _plant(
    generator: np.random.Generator, values: Array, chosen: Array, share: float = 0.25
) -> None:
    """Replace a share of the values by some of ``chosen``."""
    if not chosen.size:
        return
    places = generator.random(values.shape) < share
    drawn = chosen[generator.integers(chosen.size, size=int(places.sum()))]
    values[places] = drawn


def _floating_palette(
    generator: np.random.Generator, own: tuple[float, float] | None, edges: Edges
) -> Palette:
    if own is not None:
        low, high = own
        least = low if low or edges.zeros else low + (high - low) / 256

        def bounds(count: int) -> tuple[Array, Array]:
            return np.full(count, least), np.full(count, low + (high - low) * 255 / 256)

        def within(shape: tuple[int, ...]) -> Array:
            return generator.uniform(low + (high - low) / 4, high - (high - low) / 4, shape)

        def near_bounds(shape: tuple[int, int]) -> tuple[Array, Array]:
            up = generator.integers(0, 2, shape[0])
            part = generator.uniform(1 / 256, 1 / 8, shape)
            part = np.where(up[:, None], 1 - part, part)
            return low + (high - low) * part, np.where(up, *bounds(shape[0]))

        return Palette(within, bounds, near_bounds, np.array([least, (low + high) / 2]))

    def quiet(shape: tuple[int, ...]) -> Array:
        if edges.sign:
            return edges.sign * generator.uniform(0.5, 2, shape)
        return np.asarray(generator.standard_normal(shape))

    def ends(count: int) -> tuple[Array, Array]:
        # Some are beyond what exp(x) can take, some are not, and so are their sums.
        reach = np.where(generator.random(count) < 0.75, edges.reach, min(edges.reach, 16.0))
        large = reach * generator.uniform(13 / 16, 1, (2, count))
        if not edges.sign:
            return -large[0], large[1]
        little = np.full(count, 2.0**-7 if edges.small else 0.5)
        return (-large[0], -little) if edges.sign < 0 else (little, large[1])

    def far(shape: tuple[int, int]) -> tuple[Array, Array]:
        signs = np.full(shape[0], edges.sign) if edges.sign else _signs(generator, shape[0])
        width = np.where(generator.random(shape[0]) < 0.5, 1 / 8, 1 / 64)[:, None]
        values = signs[:, None] * edges.reach * (1 - width * generator.random(shape))
        return values, np.where(signs > 0, *ends(shape[0]))

    equals = np.array([*_REPEATED, *((0.0,) if edges.zeros and edges.small else ())])
    return Palette(
        quiet,
        ends,
        far,
        (edges.sign or 1) * equals,
        ((edges.sign or 1) * (2.0**-12 if edges.small else 0.5), float(edges.sign or 1)),
        shrinks=edges.small,
        cancels=not edges.sign,
    )


def _whole_range(
    kind: np.dtype[Any], own: tuple[float, float] | None, edges: Edges
) -> tuple[int, int]:
    """Return the lowest and highest integer."""
    if own is not None:
        return int(own[0]), int(own[1]) - 1
    if kind.kind == "b":
        return 0, 1
    low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    if low < 0 and edges.sign:
        return (low, -1) if edges.sign < 0 else (0, high)
    return low, high


def _whole_palette(
    generator: np.random.Generator, kind: np.dtype[Any], low: int, high: int
) -> Palette:
    middle = min(max(0, low), high)
    few = max(low, middle - 3), min(high, middle + 3)

    def quiet(shape: tuple[int, ...]) -> Array:
        return generator.integers(*few, shape, dtype=kind.type, endpoint=True)

    def ends(count: int) -> tuple[Array, Array]:
        return np.full(count, low, kind), np.full(count, high, kind)

    def far(shape: tuple[int, int]) -> tuple[Array, Array]:
        up = generator.integers(0, 2, shape[0])
        values = generator.integers(0, (high - low) // 16, shape, dtype=np.uint64, endpoint=True)
        shifted = np.where(
            up[:, None], np.uint64(high & _BITS) - values, np.uint64(low & _BITS) + values
        )
        return shifted.astype(kind), np.where(up, *ends(shape[0]))

    equals = [middle, low, high, middle, *few] if kind.kind != "b" else [low, high]
    nearest = None if kind.kind == "b" else (middle, few[0] or few[1])
    return Palette(quiet, ends, far, np.array(equals, dtype=kind), nearest)


def fits(
    outputs: Mapping[str, _Floats],
    limits: Mapping[str, tuple[float, float]],
    *,
    infinite: bool = False,
    tiny: Mapping[str, float] | None = None,
    arrays: ArrayMath = NUMPY,
) -> bool:
    """Return whether a kernel can return all values.

    Args:
        outputs: the outputs of a reference, see `Workload.reference`.
        limits: the least and largest finite value of each output.
        infinite: whether values may also be infinite.
        tiny: the magnitude by output up to which values other than 0 lose digits; of each output,
            one value must be larger, or all be 0.
        arrays: computes where the outputs are.
    """
    for name, (low, high) in limits.items():
        values = outputs[name]
        if tiny is not None:
            size = np.abs(values[~is_untouched(values)]).max(initial=0.0)
            if 0 < size < tiny.get(name, 0.0):
                return False
        extremes = arrays.extremes(values)
        if extremes.all_finite:
            if extremes.low < low or extremes.high > high:
                return False
            continue
        good = (values >= low) & (values <= high)
        good |= is_untouched(values) | (np.isinf(values) & infinite)
        if not good.all():
            return False
    return True
