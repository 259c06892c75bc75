"""The types of tensors' elements: those of NumPy, and those floating-point types that it lacks.

Arrays of bfloat16 hold its bits as unsigned integers of 16 bits: the upper half of a float32. Those
of the 8-bit types, which are named as in PyTorch, hold unsigned integers of 8 bits.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

BFLOAT16 = "bfloat16"
_BFLOAT16_DIGITS = 8  # binary ones, of which the first is implicit


class _Float8(NamedTuple):
    """A floating-point type of 8 bits.

    Attributes:
        digits: the binary digits of its numbers, of which the first is implicit.
        least_exponent: the exponent of its smallest normal number.
        largest: the bits of its largest finite number.
        infinite: whether it has infinities; without them, its only NaN has all bits set.
    """

    digits: int
    least_exponent: int
    largest: int
    infinite: bool


FLOAT8: Mapping[str, _Float8] = {
    "float8_e4m3fn": _Float8(4, -6, 0x7E, False),
    "float8_e5m2": _Float8(3, -14, 0x7B, True),
}
"""The floating-point types of 8 bits (Micikevicius et al., "FP8 Formats for Deep Learning",
arXiv:2209.05433)."""
_NAN8, _SIGN8 = 0x7F, 0x80
_TYPE = re.compile(r"[<=|]?\w+", re.ASCII)
_LONGEST_NAME, _MAX_BYTES = 20, 8
_UNTOUCHED_BITS = 0x7FF8_4C45_4156_4521
UNTOUCHED = float(np.array(_UNTOUCHED_BITS, np.int64).view(np.float64))
"""NaN in a reference where a kernel must leave an output as it is; no computed NaN has its bits."""

FLOATS = ("float16", BFLOAT16, "float32", "float64")


def whole(value: object) -> Any:
    """Return an integer of any library, such as NumPy's, as an int; anything else unchanged.

    A boolean is left as it is, too: whoever takes integers refuses it by name.
    """
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # an array of several
        return value


def whole_sizes(sizes: object) -> tuple[Any, ...]:
    """Sizes from a tuple, list, array or single integer, each as of `whole`."""
    several = whole(sizes)
    if isinstance(several, str | bytes) or not isinstance(several, Sequence | np.ndarray):
        return (several,)
    return tuple(map(whole, several))


def is_known(dtype: object) -> bool:
    """Return whether tensors and scalars can have this type: the text is not to be trusted.

    NumPy reads many texts as types, among them records (``f4,f8``), arrays (``(2,)f4``), bytes of
    no type (``V16``), objects (``O``) and numbers that no GPU has (``>f4``, ``float128``).
    """
    if not isinstance(dtype, str) or len(dtype) > _LONGEST_NAME:
        return False
    if dtype == BFLOAT16 or dtype in FLOAT8:
        return True
    if not _TYPE.fullmatch(dtype):
        return False
    try:
        found = np.dtype(dtype)
    except Exception:  # NumPy's parser raises TypeError, ValueError, SyntaxError, OverflowError ...
        return False
    return found.kind in "fiub" and found.isnative and found.itemsize <= _MAX_BYTES


def stored_as(dtype: str) -> np.dtype[Any]:
    """NumPy's type of the arrays that hold elements of type ``dtype``."""
    if dtype in FLOAT8:
        return np.dtype(np.uint8)
    return np.dtype(np.uint16) if dtype == BFLOAT16 else np.dtype(dtype)


def is_floating(dtype: str) -> bool:
    """Return whether it is a type of floating-point numbers."""
    return dtype == BFLOAT16 or dtype in FLOAT8 or np.dtype(dtype).kind == "f"


def rounded_to(values: npt.NDArray[np.float64], dtype: str) -> Array:
    """``values`` rounded to the nearest of type ``dtype``, ties to even, as they are stored.

    What is too large for an 8-bit type becomes its largest number (PTX ISA, ``cvt.satfinite``).
    """
    if dtype in FLOAT8:
        return _rounded_to_float8(values, FLOAT8[dtype])
    if dtype != BFLOAT16:
        return values.astype(dtype)
    single = values.astype(np.float32)
    # float64 to float32 to bfloat16 would round twice: keep what the first step drops as a sticky
    # bit, which only decides ties.
    bits = single.view(np.uint32)
    exact = single.astype(np.float64) == values
    away = np.abs(single.astype(np.float64)) > np.abs(values)
    bits = np.where(exact, bits, (bits - away) | 1).astype(np.uint32)
    whole = bits + (0x7FFF + ((bits >> 16) & 1))
    rounded: Array = np.where(np.isnan(single), 0x7FC0, whole >> 16).astype(np.uint16)
    return rounded


def nearest_float8(values: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[np.float64]:
    """Return the numbers of an 8-bit type that are nearest to ``values``, see `rounded_to`."""
    exponents, steps = _float8_steps(values, FLOAT8[dtype])
    nearest: npt.NDArray[np.float64] = np.copysign(np.ldexp(steps, exponents), values)
    return nearest


def _float8_steps(
    values: npt.NDArray[np.float64], kind: _Float8
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return nearest magnitudes, as exponents of two and the whole numbers they multiply."""
    top = float(_float8_numbers(kind)[kind.largest])
    sizes = np.minimum(np.abs(np.where(np.isnan(values), 0.0, values)), top)
    leading = np.where(sizes > 0, np.frexp(sizes)[1] - 1, kind.least_exponent)
    exponents = np.maximum(leading, kind.least_exponent) - (kind.digits - 1)
    return exponents, np.rint(np.ldexp(sizes, -exponents))


def _rounded_to_float8(values: npt.NDArray[np.float64], kind: _Float8) -> Array:
    exponents, steps = _float8_steps(values, kind)
    fraction_bits = kind.digits - 1
    fields = exponents + fraction_bits - kind.least_exponent
    bits = (fields << fraction_bits) + steps.astype(np.int64)
    signs = np.where(np.signbit(values), _SIGN8, 0)
    return np.asarray((np.where(np.isnan(values), _NAN8, bits) | signs).astype(np.uint8))


@functools.cache
def _float8_numbers(kind: _Float8) -> npt.NDArray[np.float32]:
    """Return the numbers of an 8-bit type, by their bits."""
    bits = np.arange(256, dtype=np.int64)
    fraction_bits = kind.digits - 1
    field, fraction = (bits & _NAN8) >> fraction_bits, bits & ((1 << fraction_bits) - 1)
    steps = fraction + np.where(field > 0, 1 << fraction_bits, 0)
    sizes = np.ldexp(1.0 * steps, np.maximum(field, 1) - 1 + kind.least_exponent - fraction_bits)
    sizes[bits & _NAN8 > kind.largest] = np.nan
    if kind.infinite:
        sizes[bits & _NAN8 == kind.largest + 1] = np.inf
    signed: npt.NDArray[np.float32] = np.where(bits & _SIGN8, -sizes, sizes).astype(np.float32)
    return signed


def numbers(array: Array, dtype: str) -> Array:
    """Return the numbers in an array of type ``dtype``; those that NumPy lacks as float32."""
    if dtype in FLOAT8:
        every = np.asarray(_float8_numbers(FLOAT8[dtype]), like=array)
        found: Array = every[array]
        return found
    if dtype != BFLOAT16:
        return array
    wide = array.astype(np.uint32)
    wide <<= 16  # in place, since the shifted number of a tensor without dimensions is no array
    return wide.view(np.float32)


def stored(values: Array, dtype: str) -> Array:
    """Return the inverse of `numbers`."""
    lacking = dtype == BFLOAT16 or dtype in FLOAT8
    return rounded_to(values.astype(np.float64), dtype) if lacking else values


def is_untouched(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return, by element, whether a reference is `UNTOUCHED`."""
    if values.dtype == np.longdouble:  # of integers, without a mask
        return np.zeros(values.shape, np.bool_)
    found: npt.NDArray[np.bool_] = values.reshape(-1).view(np.int64) == _UNTOUCHED_BITS
    return found.reshape(values.shape)


def unit_roundoff(dtype: str) -> float:
    """Return half the distance from 1 to the next larger number of a floating-point type."""
    if dtype in FLOAT8:
        return float(2.0 ** -FLOAT8[dtype].digits)
    if dtype == BFLOAT16:
        return 2.0**-_BFLOAT16_DIGITS
    return float(np.finfo(np.dtype(dtype)).eps) / 2


def largest(dtype: str) -> float:
    """Return the largest finite number of a type."""
    if dtype in FLOAT8:
        return float(_float8_numbers(FLOAT8[dtype])[FLOAT8[dtype].largest])
    if dtype == BFLOAT16:
        return (2.0 - 2.0 ** (1 - _BFLOAT16_DIGITS)) * 2.0**127
    kind = np.dtype(dtype).kind
    if kind == "b":
        return 1.0
    return float(np.finfo(dtype).max if kind == "f" else np.iinfo(dtype).max)


def least(dtype: str) -> float:
    """Return the smallest finite number of a type."""
    kind = "f" if is_floating(dtype) else np.dtype(dtype).kind
    if kind == "b":
        return 0.0
    return -largest(dtype) if kind == "f" else float(np.iinfo(dtype).min)
