"""Compares outputs with their float64 reference, and describes what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices import DeviceArrays
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import (
    NUMPY,
    Allowance,
    Array,
    ArrayMath,
    Condition,
    Distance,
    ErrorBound,
    Values,
    is_untouched,
)


class Reference(Mapping[str, Values]):
    """The correct outputs in float64, by name, and what their errors are measured against.

    Args:
        values: the outputs.
        conditions: the `Condition` of each output that has one.
        arrays: the device that has the outputs and conditions in its memory; None for the host.
        terms: calls `estimate_terms` for the outputs with the size needed. It is called only if
            errors are too large otherwise.
    """

    def __init__(
        self,
        values: Mapping[str, Values],
        conditions: Mapping[str, Condition] | None = None,
        arrays: DeviceArrays | None = None,
        terms: Callable[[float], Mapping[str, Values]] = lambda _: {},
    ) -> None:
        self._values = dict(values)
        self.conditions = dict(conditions or {})
        self.arrays = arrays
        self.terms = terms
        self.sizes: dict[str, tuple[float, float]] = {}
        """The largest absolute value and the norm of the outputs that were compared so far."""

    def __getitem__(self, name: str) -> Values:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def on_host(self) -> Reference:
        """Return the reference with its outputs and conditions in the host's memory."""
        arrays = self.arrays
        if arrays is None:
            return self
        values: dict[str, Values] = {}
        conditions = dict(self.conditions)
        with arrays.used():
            for name, value in self.items():
                values[name] = arrays.get(value).astype(np.float64, copy=False)
            for name, condition in self.conditions.items():
                if condition.own is not None:
                    own = arrays.get(condition.own).astype(np.float64, copy=False)
                    conditions[name] = replace(condition, own=own)
        return Reference(values, conditions)


def compare(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Values],
    bounds: Mapping[str, ErrorBound],
    seed: int,
    before: Callable[[str], Array | None] = lambda _: None,
    distances: Mapping[str, Callable[[], Distance]] | None = None,
) -> ErrorBound:
    """Return the errors of ``outputs``, as fractions of the reference's largest value and norm.

    Steps that a bound allows do not count as errors. Infinite values must be equal, and where the
    reference is `UNTOUCHED`, an output must be as it was before.

    Args:
        outputs: the outputs by name.
        reference: the correct outputs.
        bounds: the largest errors allowed, by name.
        seed: the seed of the inputs, for messages.
        before: returns an output before the launch by its name; None if that is unknown.
        distances: functions that return the outputs' `Distance` by name, as far as these have begun
            to be computed where the reference is.

    Raises:
        InputError: the reference is NaN, or the output's type cannot represent it.
        KernelFault: an element was not written, is not finite or is off by more than its bound, or
            the norm of all errors exceeds its bound. The message gives the number of wrong elements
            and the position and error of the worst.
    """
    arrays = reference.arrays if isinstance(reference, Reference) else None
    if arrays is None:
        return _compared(outputs, reference, bounds, seed, before, distances or {}, NUMPY)

    def before_on_device(name: str) -> Array | None:
        return None if (value := before(name)) is None else arrays.put(value)

    with arrays.used():
        on_device = {name: arrays.put(outputs[name]) for name in reference}
        return _compared(
            on_device, reference, bounds, seed, before_on_device, distances or {}, arrays
        )


def _compared(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Values],
    bounds: Mapping[str, ErrorBound],
    seed: int,
    before: Callable[[str], Array | None],
    distances: Mapping[str, Callable[[], Distance]],
    arrays: ArrayMath,
) -> ErrorBound:
    """Return what `compare` does, for arrays that are all on the host or all on one device."""
    conditions = reference.conditions if isinstance(reference, Reference) else {}
    worst = ErrorBound()
    for name, expected in reference.items():
        output, bound, condition = outputs[name], bounds[name], conditions.get(name, Condition(0.0))
        if output.dtype.kind == "b":
            odd = (output.reshape(-1).view("u1") > 1).reshape(expected.shape)
            odd &= ~is_untouched(expected)
            if odd.any():
                raise KernelFault(
                    "correctness",
                    f"{places(name, odd)} neither 0 nor 1 as bytes (seed {seed}): never written, "
                    "or not as a bool; other programs may take such a byte for true, for false or "
                    "for both.",
                )
        sizes = reference.sizes if isinstance(reference, Reference) else {}
        begun = distances.get(name) or arrays.begin_distance(
            output, expected, bound.steps, sizes.get(name)
        )
        largest, norm, scale, expected_norm = begun()
        sizes[name] = scale, expected_norm
        if not math.isfinite(scale):
            output, expected = _finite_part(name, output, expected, seed, before(name))
            largest, norm, scale, expected_norm = arrays.distance(output, expected, bound.steps)
        if (limit := _out_of_range(output.dtype, expected, scale)) is not None:
            raise InputError(
                f"The reference of {name} goes up to {limit:.6g} with seed {seed}, which no "
                f"{output.dtype} is: give inputs for which it fits, for example with "
                "init={'x': (0, 100)} of a Contract, or let the reference overflow as the kernel "
                "does."
            )
        scale = max(scale, condition.scale)
        expected_norm = max(expected_norm, condition.scale)
        sums = bound.max_relative - bound.rounding
        least = _smallest(output.dtype) + bound.steps
        allowance = Allowance(sums, bound.rounding, least, scale, condition.own)
        judge = _Judge(bound, condition, allowance, arrays)
        if sums > 0 and isinstance(reference, Reference) and math.isfinite(largest):
            good = largest <= bound.max_relative * scale and norm <= bound.normwise * expected_norm
            if not good or judge.finds_more(output, expected):
                needed = (largest - bound.rounding * scale) / sums
                allowance = replace(allowance, terms=reference.terms(needed).get(name))
                judge = replace(judge, allowance=allowance)
        if allowance.terms is not None:
            error = np.abs(output.astype(expected.dtype) - expected).reshape(-1)
            terms, typical = allowance.terms.reshape(-1), expected_norm / math.sqrt(error.size)
            largest = scale * float((error / np.maximum(terms, scale)).max())
            norm = typical * float(np.linalg.norm(error / np.maximum(terms, typical)))
        largest, norm = largest / scale, norm / expected_norm
        if not largest <= bound.max_relative or judge.finds_more(output, expected):
            raise KernelFault("correctness", _describe(name, output, expected, judge, seed))
        if bound.steps:
            _check_share(name, output, expected, bound, seed)
        if not norm <= bound.normwise:
            raise KernelFault(
                "correctness",
                f"{name} is off by {norm:.2e} of its norm (bound {bound.normwise:.1e}, "
                f"seed {seed}).",
            )
        worst = ErrorBound(max(worst.max_relative, largest), max(worst.normwise, norm))
    return worst


def _finite_part(
    name: str, output: Array, expected: Values, seed: int, before: Array | None
) -> tuple[Array, Values]:
    """Return an output and its reference with 0 for infinite and untouched elements.

    Raises:
        InputError: the reference is NaN, or infinite for an output of integers.
        KernelFault: an output differs where the reference is infinite, or has changed where it must
            be untouched.
    """
    special, untouched = ~np.isfinite(expected), is_untouched(expected)
    infinite = special & ~untouched
    undefined = infinite & np.isnan(expected)
    if undefined.any() or (infinite.any() and output.dtype.kind != "f"):
        first = np.argwhere(undefined if undefined.any() else infinite)[0].tolist()
        raise InputError(
            f"The reference is NaN or infinite, first at {_place(name, first)} with seed {seed}, "
            "so nothing can be compared with it: give inputs for which it is finite, for example "
            "with init={'x': (0.1, 1.0)} of a Contract, or the init uniform in a kernel spec. What "
            "a kernel leaves as it is can be masked, see numpy.ma."
        )
    wrong = infinite & (output != expected)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise KernelFault(
            "correctness",
            f"{places(name, wrong)} wrong (seed {seed}): {_place(name, place)} = "
            f"{float(output[place]):.6g} instead of {float(expected[place]):g}.",
        )
    if before is not None:
        bits = f"u{output.dtype.itemsize}"
        now, then = (value.reshape(-1).view(bits) for value in (output, before))
        written = untouched & (now != then).reshape(untouched.shape)
        if written.any():
            raise KernelFault(
                "correctness",
                f"{places(name, written)} written (seed {seed}), although the reference masks "
                "what the kernel must leave as it was.",
            )
    return np.where(special, np.zeros_like(output), output), np.where(special, 0.0, expected)


def _check_share(name: str, output: Array, expected: Values, bound: ErrorBound, seed: int) -> None:
    """Check that no more elements use the steps of a bound than its share allows."""
    off = output.astype(expected.dtype) != expected
    if int(off.sum()) > 1 + bound.share * off.size:
        raise KernelFault(
            "correctness",
            f"{places(name, off)} off by up to {bound.steps} (seed {seed}), and only "
            f"{bound.share:.3g} of all may be: round as the reference does, or give the tensor "
            f"bound=ErrorBound(steps={bound.steps}, share=1).",
        )


@dataclass(frozen=True)
class _Judge:
    """Judges the elements of an output.

    Attributes:
        bound: the bound, which is relative to the sizes of the allowance.
        condition: the output's condition, which may give each element a size of its own.
        allowance: the largest error allowed for each element.
        arrays: computes where the output is.
    """

    bound: ErrorBound
    condition: Condition
    allowance: Allowance
    arrays: ArrayMath

    def finds_more(self, output: Array, expected: Values) -> bool:
        """Return whether elements are wrong although their errors are small relative to scale."""
        if self.condition.own is None and not self.bound.rounding:
            return False
        right = self.arrays.count_within(output, expected, self.allowance)
        return right < output.size - self.condition.exempt * output.size


def _out_of_range(dtype: np.dtype[Any], expected: Values, scale: float) -> float | None:
    """Return an extreme value of the reference that the output's type cannot represent, if any.

    Args:
        dtype: the output's type.
        expected: the reference.
        scale: the reference's largest absolute value.
    """
    if dtype.kind == "f":  # slightly larger values are rounded to the largest number
        with np.errstate(over="ignore"):
            return None if np.isfinite(dtype.type(scale)) else scale
    if dtype.kind not in "iu":
        return None
    limits = np.iinfo(dtype)
    extremes = expected.min(), expected.max()
    beyond = (float(value) for value in extremes if not limits.min <= int(value) <= limits.max)
    return next(beyond, None)


def _smallest(dtype: np.dtype[Any]) -> float:
    """Return the absolute error that underflow can cause: GPUs may flush subnormals to zero.

    In half precision, whose range is small, GPUs keep subnormals, so that only rounding remains.
    """
    if dtype.kind != "f":
        return 0.0
    limits = np.finfo(dtype)
    return float(limits.smallest_subnormal if dtype.itemsize == 2 else limits.tiny)


def _describe(name: str, output: Array, expected: Values, judge: _Judge, seed: int) -> str:
    values = output.astype(expected.dtype)
    unset = np.isnan(values)
    if unset.any():
        return f"{places(name, unset)} never written or NaN."
    scale = judge.allowance.scale
    most = judge.bound.max_relative * scale + judge.bound.steps
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(values - expected)
        allowed = judge.allowance.of(expected)
        if judge.allowance.terms is None:
            allowed = np.minimum(allowed, most)
        by_own = judge.condition.own is not None and bool((error <= most).all())
        sizes = np.abs(expected) if by_own else np.full_like(error, scale)
        wrong = ~(error <= allowed)
        relative = np.where(wrong, error / sizes, 0.0)
    place = tuple(int(i) for i in np.unravel_index(int(relative.argmax()), error.shape))
    value, right = float(output[place]), float(expected[place])
    digits = 6 if f"{value:.6g}" != f"{right:.6g}" else 17
    told, meant = f"{value:.{digits}g}", f"{right:.{digits}g}"
    if told == meant:  # integers that differ in digits which double precision does not have
        told, meant = str(output[place]), str(int(expected[place]))
    if output.dtype.kind in "iub":
        off = f" (may be off by {judge.bound.steps})" if judge.bound.steps else ""
    else:
        whose = "its own value" if by_own else "the largest value"
        limit = float(allowed[place] / sizes[place])
        off = f", off by {float(relative[place]):.2e} of {whose} (bound {limit:.1e})"
    return (
        f"{places(name, wrong)} wrong (seed {seed}); the worst is "
        f"{_place(name, place)} = {told} instead of {meant}{off}."
    )


def places(name: str, mask: npt.NDArray[np.bool_]) -> str:
    """Return the subject of a message: ``3 of 100 elements of output (first output[0, 1]) are``."""
    first = [int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape)]
    count = int(mask.sum())
    verb = "is" if count == 1 else "are"
    return f"{count} of {mask.size} elements of {name} (first {_place(name, first)}) {verb}"


def _place(name: str, index: Sequence[int]) -> str:
    """Return an element's name: ``output[0, 1]``, or ``total`` for a tensor without dimensions."""
    return f"{name}{list(index)}" if len(index) else name
