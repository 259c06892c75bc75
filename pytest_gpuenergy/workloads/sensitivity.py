"""Measures how strongly outputs react to inputs, and so what errors rounding can cause.

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

from pytest_gpuenergy.workloads.array_math import NUMPY, ArrayMath, Values, largest_of_slices
from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.number_types import Array, unit_roundoff

Compute = Callable[[Mapping[str, Array]], Mapping[str, Values]]

_FRACTION = 2.0**-20
_FEW = 64
"""Outputs of at most this many elements may all be much smaller than their terms by chance."""
_DRAWS = 6
_SAMPLE = 1 << 16
_BLIND = 0.01
_STEPS, _ORDER, _GROWTH, _NEIGHBOURS = 7, 4, 4.0, 4
"""The reference is called on inputs at so many tiny steps, and its values are differenced so many
times. In double precision, such a difference is four to eight times the rounding error of a value.
That of one element may be small by chance, so those of its neighbours in magnitude count as well.
"""
_GOLDEN = (math.sqrt(5) - 1) / 2
_COEFFICIENT = 4.0
"""How much larger than the product of the largest inputs a term may be, by the constants in it."""
_SUBSETS = 6
"""The most sets of inputs of one size that get the other sign: all, with up to four inputs."""
_LIKELY = 64
"""What multiplies errors of an element that is not a difference of larger terms, at most: in exp(x)
it is |x|, which is not much more as long as float32 can represent the result."""


@dataclass(frozen=True)
class Condition:
    """The scales, besides its largest value, against which errors of an output are measured.

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
    arrays: ArrayMath = NUMPY,
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
        arrays: computes where the arrays are.
    """
    wide = [name for name, bound in bounds.items() if _is_wide(right[name], bound, arrays)]
    uneven = []
    for name, bound in bounds.items():
        if name not in wide and bound.max_relative:
            limit = bound.max_relative / _BLIND * arrays.extremes(right[name]).peak
            if arrays.has_small_slice(right[name], limit):
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
    groups = [[name] for name in floating] if floating and (wide or uneven) else [floating]
    own: dict[str, Values] = {}
    for group in groups:
        of_names = {name: right[name] for name in names}
        reactions = _reactions(compute, inputs, of_names, group, arrays)
        for name in names:
            more = reactions[name]
            own[name] = arrays.added(own[name], more) if name in own else more
    conditions = {name: Condition(arrays.extremes(own[name]).largest) for name in names}
    for name in wide:
        conditions[name] = replace(conditions[name], own=own[name])
    for name in uneven:
        slices = largest_of_slices(np.abs(right[name]) + own[name])
        conditions[name] = replace(conditions[name], own=slices)
    return conditions


def estimate_scales(
    compute: Compute,
    inputs: Mapping[str, Array],
    right: Mapping[str, Values],
    arrays: ArrayMath = NUMPY,
) -> dict[str, Condition]:
    """Return the scale of each output as a whole, for inputs that may make it react strongly.

    Here each x_j is changed relative to itself, because the inputs are of very different size.

    Args:
        compute: the reference; called twice.
        inputs: the floating-point ones as float64.
        right: what ``compute`` returns for them.
        arrays: computes where the arrays are.
    """
    floating = [name for name, value in inputs.items() if value.dtype.kind == "f"]
    reactions = _reactions(compute, inputs, right, floating, arrays, draws=2, of_norm=False)
    return {name: Condition(arrays.extremes(reactions[name]).largest) for name in right}


def estimate_terms(
    compute: Compute,
    inputs: Mapping[str, Array],
    right: Mapping[str, Values],
    needed: float,
    arrays: ArrayMath = NUMPY,
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
        arrays: computes where the arrays are.

    Returns:
        The sizes by output, or nothing.
    """
    wide = {n: v.astype(np.float64) for n, v in inputs.items() if v.dtype.kind == "f"}
    most = _COEFFICIENT * math.prod(
        max(1.0, arrays.extremes(value).largest) for value in wide.values()
    )
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
    changed: dict[str, Any] = next(_changes(wide, arrays, of_norm=True))
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
    """Guess what `estimate_conditions` would return, where no other inputs can be computed.

    Most elements of an output of wide range are then expected to be about as accurate as they are
    large; some may be differences of large terms.
    """
    return {
        name: Condition(0.0, _LIKELY * np.abs(right[name]), _BLIND)
        for name, bound in bounds.items()
        if _is_wide(right[name], bound, NUMPY)
    }


def _is_wide(right: Values, bound: ErrorBound, arrays: ArrayMath) -> bool:
    if not bound.max_relative:
        return False
    sample = np.abs(arrays.sample(right, max(1, right.size // _SAMPLE)))
    limit = bound.max_relative * arrays.extremes(right).largest
    return float(((sample > 0) & (sample < limit)).mean()) > _BLIND


def _reactions(
    compute: Compute,
    inputs: Mapping[str, Array],
    right: Mapping[str, Values],
    group: list[str],
    arrays: ArrayMath,
    *,
    draws: int = _DRAWS,
    of_norm: bool = True,
) -> dict[str, Values]:
    """Return the largest relative reaction of each element to several changes of inputs."""
    reactions: dict[str, Values] = {}
    changes = _changes({name: inputs[name] for name in group}, arrays, of_norm=of_norm)

    def larger(results: Mapping[str, Values]) -> dict[str, tuple[Values, bool]]:
        with np.errstate(all="ignore"):
            return {
                name: arrays.larger_reaction(results[name], value, _FRACTION, reactions.get(name))
                for name, value in right.items()
            }

    for changed in itertools.islice(changes, draws):
        try:
            with np.errstate(all="ignore"):
                results = compute({**inputs, **changed})
            found = larger(results)
        except Exception:  # the reference is someone else's, and not made for these inputs
            found = larger({name: np.full_like(value, np.inf) for name, value in right.items()})
        if all(is_same for _, is_same in found.values()):
            break  # no element depends on more than one of the signs
        reactions = {name: reaction for name, (reaction, _) in found.items()}
    return reactions


def _changes(
    values: Mapping[str, Array], arrays: ArrayMath, *, of_norm: bool
) -> Iterator[dict[str, Array]]:
    wide = {name: value.astype(np.float64) for name, value in values.items()}
    floors = {
        name: arrays.root_mean_square(value) if of_norm else 0.0 for name, value in wide.items()
    }
    draw = np.random.default_rng(0)

    def bits(value: Values) -> npt.NDArray[np.uint8]:
        """Draw a sign for each element, as bits, because there are many."""
        return np.frombuffer(draw.bytes(-(-value.size // 8)), np.uint8)

    while True:
        yield {
            name: arrays.changed(value, floors[name], _FRACTION, bits(value))
            for name, value in wide.items()
        }
