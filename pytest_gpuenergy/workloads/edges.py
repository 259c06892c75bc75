"""Inputs that tell kernels apart which agree on ordinary ones: large, tiny, negative, repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads.number_types import (
    Array,
    is_floating,
    is_untouched,
    rounded_to,
)

_Floats = npt.NDArray[np.float64]

_REPEATED = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Sums and products of these are exact, so that their ties remain ties."""
_NEAR = 8  # kind of value, beside 0 to 7, which are drawn
_TINY = (-14, -6)  # exponents of two, so as to be normal numbers in every type


@dataclass(frozen=True)
class Edges:
    """How far the values go.

    Attributes:
        sign: -1 or 1, of all values of the first input.
        reach: the largest magnitude of a floating-point value.
        zeros: whether there are floating-point zeros.
        small: whether there are other floating-point values close to zero, which hide a maximum or
            minimum that starts at 0.
    """

    sign: int
    reach: float
    zeros: bool
    small: bool = True


REACHES = ((128.0, True), (128.0, False), (32.0, False), (8.0, False), (2.0, False))
"""``reach`` and ``zeros``, from the most telling to the most harmless.

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
    """Values of which a part are ordinary, and the others are not.

    Args:
        generator: draws them.
        dtype: of the elements.
        own: the range that the workload gives the tensor, which is then kept.
        edges: how far they go; a ``sign`` of 0 stands for both.
        shape: of the result.
    """
    if is_floating(dtype):
        if own is not None:
            return rounded_to(_within(generator, shape, own, edges), dtype)
        return rounded_to(_floats(generator, shape, edges), dtype)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(kind)
    if own is not None:
        low, high = int(own[0]), int(own[1]) - 1
    else:
        low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    special = [n for n in (low, high, 0, 1, -1, 2) if low <= n <= high]
    values = generator.integers(low, high, shape, dtype=kind.type, endpoint=True)
    chosen = np.array(special, dtype=kind)[generator.integers(len(special), size=shape)]
    values = np.where(generator.random(shape) < 0.25, chosen, values)
    if own is None and low < 0 and edges.sign:
        values = np.where((values < 0) == (edges.sign < 0), values, ~values)
    return np.asarray(values.astype(kind))


def _floats(generator: np.random.Generator, shape: tuple[int, ...], edges: Edges) -> _Floats:
    kinds = generator.integers(0, 8, shape)
    for axis in {0, len(shape) - 1} if len(shape) > 1 else ():
        # Whole rows and columns near the reach: a maximum may start too low for them only.
        chosen = generator.random(shape[axis]) < 0.25
        kinds[(slice(None),) * axis + (chosen,)] = _NEAR
    repeated = (*_REPEATED, *((0.0,) if edges.zeros and edges.small else ()))
    size = np.select(
        [kinds == _NEAR, kinds < 2, kinds < 3, kinds < 5],
        [
            generator.uniform(edges.reach * 7 / 8, edges.reach, shape),
            generator.uniform(edges.reach / 2, edges.reach, shape),
            np.exp2(generator.uniform(*_TINY, shape)) + (not edges.small),
            np.array(repeated)[generator.integers(len(repeated), size=shape)],
        ],
        np.maximum(np.abs(generator.standard_normal(shape)), 0 if edges.small else 0.5),
    )
    signs: Any = edges.sign or generator.integers(0, 2, shape) * 2 - 1
    return np.asarray(signs * size, dtype=np.float64)


def _within(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    own: tuple[float, float],
    edges: Edges,
) -> _Floats:
    low, high = own
    values = generator.uniform(low, high, shape)
    few = generator.uniform(low, high, 4)
    if low or edges.zeros:
        few[0] = low
    chosen = few[generator.integers(len(few), size=shape)]
    return np.where(generator.random(shape) < 0.5, chosen, values)


def fits(
    outputs: Mapping[str, _Floats],
    limits: Mapping[str, tuple[float, float]],
    *,
    infinite: bool = False,
) -> bool:
    """Whether a kernel can return all values.

    Args:
        outputs: a reference, see `Workload.reference`.
        limits: of each output's finite values.
        infinite: whether values may also be infinite.
    """
    for name, (low, high) in limits.items():
        values = outputs[name]
        good = (values >= low) & (values <= high)
        good |= is_untouched(values) | (np.isinf(values) & infinite)
        if not good.all():
            return False
    return True
