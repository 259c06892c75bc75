"""How strongly outputs react to their inputs, which tells what errors rounding can cause.

An algorithm that rounds to nearest computes the exact outputs of inputs that are off by a few units
in the last place of their norm (normwise backward stability; N. J. Higham, "Accuracy and Stability
of Numerical Algorithms", 2nd ed., SIAM 2002, sections 1.5 and 7.1). Its error is therefore near u
K, where u is the unit roundoff and K = (sum over the inputs x_j of (s_j df/dx_j)^2)^(1/2), with s_j
the larger of |x_j| and the root mean square of the tensor: for a sum of products about the root of
the sum of the squares of its own terms, for exp(x) some multiple of exp(x). K is estimated by
changing each x_j by the same small fraction of s_j, with random signs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.number_types import Array, unit_roundoff

Values = npt.NDArray[np.float64]
Compute = Callable[[Mapping[str, Array]], Mapping[str, Values]]

_FRACTION = 2.0**-20
_FEW = 64
"""Outputs of at most this many elements may all be much smaller than their terms by chance."""
_DRAWS = 6
_SAMPLE = 1 << 16
_BLIND = 0.01
_SLICE, _PIECES = 16, 64
"""The fewest elements of a slice, and the most pieces of a vector: by chance all elements of a
smaller one may be close to zero."""
_STEPS, _ORDER, _GROWTH, _NEIGHBOURS = 7, 4, 4.0, 4
"""The reference is called on inputs at so many tiny steps, and its values are differenced so many
times. In double precision, such a difference is four to eight times the rounding error of a value.
That of one element may be small by chance, so those of its neighbours in magnitude count as well.
"""
_GOLDEN = (math.sqrt(5) - 1) / 2
_COEFFICIENT = 4.0
"""How much larger than the product of the largest inputs a term may be, by the constants in it."""
_SUBSETS = 6
"""How many sets of inputs of one size get the other sign: all of them, with up to four inputs."""
_LIKELY = 64
"""What multiplies errors of an element that is not a difference of larger terms, at most: in exp(x)
it is |x|, which is not much more as long as float32 can represent the result."""


@dataclass(frozen=True)
class Condition:
    """What errors of an output are measured against, in addition to its largest value.

    Attributes:
        scale: at least the largest value that the output could as well have had.
        own: shape of the output; for outputs of wide range the scale of each element's own terms,
            for uneven ones that of its slice.
            Then each element that is not zero satisfies, with the parts of its `ErrorBound`,
            |out - ref| <= (max_relative - rounding) (|ref| + own) + rounding |ref|.
        exempt: the fraction of elements that need not.
    """

    scale: float
    own: Values | None = None
    exempt: float = 0.0


def estimate_conditions(
    compute: Compute,
    inputs: Mapping[str, Array],
    right: Mapping[str, Values],
    bounds: Mapping[str, ErrorBound],
) -> dict[str, Condition]:
    """Return the conditions of those outputs that need one, by name.

    These are outputs of few elements, outputs of wide range, and uneven ones. In an output of wide
    range more than one element in a hundred is smaller than what the bound allows relative to the
    largest, and could as well be 0. In an uneven one this holds, for errors of one in a hundred, of
    all elements of a row or other slice.

    Args:
        compute: the reference; called several times if an output needs it, otherwise never.
        inputs: the floating-point ones as float64.
        right: what ``compute`` returns for them.
        bounds: the error bounds of the outputs to look at.
    """
    wide = [name for name, bound in bounds.items() if _is_wide(right[name], bound)]
    uneven = []
    for name, bound in bounds.items():
        if name not in wide and bound.max_relative:
            slices = _largest_of_slices(np.abs(right[name]))
            largest = float(max(right[name].max(), -right[name].min()))
            if ((slices > 0) & (slices < bound.max_relative / _BLIND * largest)).any():
                uneven.append(name)
    few = [
        name
        for name, bound in bounds.items()
        if bound.max_relative and right[name].size <= _FEW and name not in (*wide, *uneven)
    ]
    names = [*wide, *uneven, *few]
    if not names:
        return {}
    floating = [name for name, value in inputs.items() if value.dtype.kind == "f"]
    # The scale of a whole output needs no more than a few changes of everything together.
    groups = [[name] for name in floating] if wide or uneven else [floating]
    own: dict[str, Values] = {name: np.zeros_like(right[name]) for name in names}
    for group in groups:
        reactions = _reactions(compute, inputs, {name: right[name] for name in names}, group)
        for name in names:
            own[name] += reactions[name]
    conditions = {name: Condition(_largest_finite(own[name])) for name in names}
    for name in wide:
        conditions[name] = replace(conditions[name], own=own[name])
    for name in uneven:
        slices = _largest_of_slices(np.abs(right[name]) + own[name])
        conditions[name] = replace(conditions[name], own=slices)
    return conditions


def estimate_scales(
    compute: Compute, inputs: Mapping[str, Array], right: Mapping[str, Values]
) -> dict[str, Condition]:
    """Return the scale of each output as a whole, for inputs that may make it react strongly.

    Here each x_j is changed relative to itself, because the inputs are of very different size.

    Args:
        compute: the reference; called twice.
        inputs: the floating-point ones as float64.
        right: what ``compute`` returns for them.
    """
    floating = [name for name, value in inputs.items() if value.dtype.kind == "f"]
    reactions = _reactions(compute, inputs, right, floating, draws=2, of_norm=False)
    return {name: Condition(_largest_finite(reactions[name])) for name in right}


def estimate_terms(
    compute: Compute, inputs: Mapping[str, Array], right: Mapping[str, Values], needed: float
) -> dict[str, Values]:
    """Estimate the magnitude of the terms that cancel in each element, from the reference alone.

    For large negative x, 0.5 x (1 + erf(x / sqrt(2))) is the difference of two terms of the size of
    x, so that its rounding errors are relative to x and no sign of a mistake. Two things show this:
    what the element is for inputs of the other sign, where the terms add up; and the rounding
    errors of the reference, of which high differences of its values over tiny steps consist.
    Neither makes a small row large whose inputs are scaled by a small number. What exceeds the
    product of the largest inputs does not count: exp(-x) says nothing of the terms of exp(x), nor
    a reference that computes in single precision of rounding in double.

    Args:
        compute: the reference; called several times.
        inputs: the floating-point ones as float64.
        right: what ``compute`` returns for them.
        needed: a size that would explain an error. If no term can be as large, nothing is computed.

    Returns:
        The sizes by output, or nothing.
    """
    wide = {n: v.astype(np.float64) for n, v in inputs.items() if v.dtype.kind == "f"}
    most = _COEFFICIENT * math.prod(max(1.0, _largest_finite(value)) for value in wide.values())
    if not needed <= most:
        return {}
    terms = {name: np.zeros_like(value) for name, value in right.items()}

    def called(changed: Mapping[str, Array]) -> dict[str, Values]:
        try:
            with np.errstate(all="ignore"):
                results = compute({**inputs, **changed})
                return {name: results[name] for name in right}
        except Exception:  # the reference is someone else's, and not made for these inputs
            return {}

    def add(sizes: Mapping[str, Values]) -> None:
        for name, size in sizes.items():
            size = np.abs(size)
            terms[name] = np.where(size <= most, np.maximum(terms[name], size), terms[name])

    # Several at once, since x may be a sum: with two equal parts, changing the sign of one gives 0.
    for count in range(1, len(wide) + 1):
        for names in itertools.islice(itertools.combinations(wide, count), _SUBSETS):
            add(called({name: -wide[name] for name in names}))
    changed: dict[str, Any] = next(_changes(wide, of_norm=True))
    steps: dict[str, Any] = {}  # of different size, since many inputs may be equal
    for name, value in wide.items():
        part = 0.5 + np.arange(value.size, dtype=np.float64, like=value) * _GOLDEN % 1 / 2
        steps[name] = (changed[name] - value) * part.reshape(value.shape)
    stepped: list[Mapping[str, Values]] = [right]
    stepped += [
        called({n: v + step * steps[n] for n, v in wide.items()}) for step in range(1, _STEPS + 1)
    ]
    for name, value in right.items() if all(stepped) else ():
        with np.errstate(all="ignore"):
            noise = np.diff(np.stack([one[name] for one in stepped]), _ORDER, axis=0)
        sizes = np.abs(noise).max(axis=0).reshape(-1) / (_GROWTH * unit_roundoff("float64"))
        sizes = np.where(sizes <= most, sizes, 0.0)
        order = np.argsort(np.abs(value.reshape(-1)))
        row, around = sizes[order], sizes.copy()
        for distance in range(1, min(_NEIGHBOURS, row.size - 1) + 1):
            around[order[distance:]] = np.maximum(around[order[distance:]], row[:-distance])
            around[order[:-distance]] = np.maximum(around[order[:-distance]], row[distance:])
        add({name: around.reshape(value.shape)})
    return terms


def likely_conditions(
    right: Mapping[str, Values], bounds: Mapping[str, ErrorBound]
) -> dict[str, Condition]:
    """As `estimate_conditions`, where nobody can say what other inputs would give.

    Most elements of an output of wide range are then expected to be about as accurate as they are
    large; some may be differences of large terms.
    """
    return {
        name: Condition(0.0, _LIKELY * np.abs(right[name]), _BLIND)
        for name, bound in bounds.items()
        if _is_wide(right[name], bound)
    }


def _is_wide(right: Values, bound: ErrorBound) -> bool:
    if not bound.max_relative:
        return False
    sample = np.abs(right.reshape(-1)[:: max(1, right.size // _SAMPLE)])
    largest = float(max(right.max(), -right.min()))
    limit = bound.max_relative * (largest if math.isfinite(largest) else _largest_finite(right))
    return float(((sample > 0) & (sample < limit)).mean()) > _BLIND


def _largest_of_slices(sizes: Values) -> Values:
    """Return, for each element, the largest value in the slice through it where that is least.

    Slices are perpendicular to an axis, such as rows and columns; those of a vector are pieces.
    """
    largest = np.full_like(sizes, float(sizes.max()))
    if sizes.ndim == 1:
        length = max(_SLICE, sizes.size // _PIECES)
        pieces = sizes[: sizes.size // length * length].reshape(-1, length)
        largest[: pieces.size] = np.repeat(pieces.max(axis=1), length)
        return largest
    for axis, count in enumerate(sizes.shape):
        if sizes.size // count >= _SLICE:
            others = tuple(other for other in range(sizes.ndim) if other != axis)
            largest = np.minimum(largest, sizes.max(axis=others, keepdims=True))
    return largest


def _largest_finite(values: Values) -> float:
    return float(np.where(np.isfinite(values), np.abs(values), 0.0).max())


def _reactions(
    compute: Compute,
    inputs: Mapping[str, Array],
    right: Mapping[str, Values],
    group: list[str],
    *,
    draws: int = _DRAWS,
    of_norm: bool = True,
) -> dict[str, Values]:
    """Return the largest relative reaction of each element to several changes of inputs."""
    reactions: dict[str, Values] = {}
    changes = _changes({name: inputs[name] for name in group}, of_norm=of_norm)
    for changed in itertools.islice(changes, draws):
        try:
            with np.errstate(all="ignore"):
                results = compute({**inputs, **changed})
                now = {n: np.abs(results[n] - value) / _FRACTION for n, value in right.items()}
        except Exception:  # the reference is someone else's, and not made for these inputs
            now = {name: np.full_like(value, np.inf) for name, value in right.items()}
        # Of tensors without dimensions, NumPy's arithmetic makes numbers that are no arrays.
        now = {name: np.where(np.isfinite(one), one, np.inf) for name, one in now.items()}
        if reactions and all(np.allclose(now[name], reactions[name], rtol=0.01) for name in right):
            break  # no element depends on more than one of the signs
        reactions = {name: np.maximum(now[name], reactions.get(name, 0.0)) for name in right}
    return reactions


def _changes(values: Mapping[str, Array], *, of_norm: bool) -> Iterator[dict[str, Array]]:
    wide = {name: value.astype(np.float64) for name, value in values.items()}
    steps = {
        name: _FRACTION
        * np.maximum(np.abs(value), np.sqrt(np.mean(value * value)) if of_norm else 0.0)
        for name, value in wide.items()
    }
    draw = np.random.default_rng(0)

    def signs(value: Values) -> Values:
        """Draw -1 or 1 for each element, as bits, because there are many."""
        drawn = np.frombuffer(draw.bytes(-(-value.size // 8)), np.uint8)
        bits = np.unpackbits(np.asarray(drawn, like=value))[: value.size]
        return bits.reshape(value.shape).astype(np.float64) * 2 - 1

    while True:
        # A zero that stays one keeps its sign: -0.0 + 0.0 is 0.0.
        yield {
            name: np.where(steps[name] > 0, value + steps[name] * signs(value), value)
            for name, value in wide.items()
        }
