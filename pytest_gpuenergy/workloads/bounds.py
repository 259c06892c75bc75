"""Bounds on the distance of a correct kernel's outputs from the float64 reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads.number_types import unit_roundoff

FLOAT8_PRODUCTS = 32
"""The products of 8-bit numbers that an instruction of Hopper's tensor cores adds to a sum."""
FLOAT8_SUM_BITS = 13
"""The bits that such an instruction keeps below the leading bit of its largest term."""


@dataclass(frozen=True)
class ErrorBound:
    """The largest errors a correct kernel may have relative to the float64 reference.

    ``ErrorBound(2e-6, 2e-6)`` is for floating-point numbers, ``ErrorBound(steps=1)`` for integers
    that a kernel rounds from floating-point numbers. Without arguments it demands exact results.

    Attributes:
        max_relative: bounds max|out - ref| / max|ref|.
        normwise: bounds ||out - ref|| / ||ref||.
        rounding: the part of ``max_relative`` that is a fraction of each element rather than of the
            largest, because it is from rounding the element to the output's type: each element
            satisfies |out - ref| <= (max_relative - rounding) max|ref| + rounding |ref|.
        steps: how far an integer may be off, in units of 1, in addition to the above.
        share: the largest fraction of elements that may be off by any steps. A value that lies
            between two integers rounds to the other one if its own rounding error carries it over
            the middle, which is rare; a kernel that truncates is off in half of all elements.

    Raises:
        InputError: a number is negative or not finite, or ``steps`` is not a whole number.
    """

    max_relative: float = 0.0
    normwise: float = 0.0
    rounding: float = 0.0
    steps: int = 0
    share: float = 0.125

    def __post_init__(self) -> None:
        for name in ("max_relative", "normwise", "rounding", "steps", "share"):
            value = getattr(self, name)
            number = float(value) if isinstance(value, Real) else math.nan
            if isinstance(value, bool) or not 0 <= number < math.inf:
                raise InputError(
                    f"An ErrorBound cannot have {name}={value!r}: give a number of at least 0."
                )
        if self.steps != int(self.steps):
            raise InputError(
                f"An ErrorBound cannot have {self.steps!r} steps: give a whole number."
            )

    @classmethod
    def of(cls, bound: object, whose: str) -> ErrorBound:
        """Return the bound that someone has given: one of these, or a number.

        Args:
            bound: a number stands for both ``max_relative`` and ``normwise``.
            whose: begins the message.

        Raises:
            InputError: it is neither, or a number of 1 or more, which bounds nothing.
        """
        if isinstance(bound, ErrorBound):
            return bound
        if isinstance(bound, Real) and not isinstance(bound, bool) and 0 <= float(bound) < 1:
            return cls(float(bound), float(bound))
        raise InputError(
            f"{whose} has the bound {bound!r}: give a number from 0 to less than 1, which is a "
            "fraction of the largest value and of the norm, or an ErrorBound, such as "
            "ErrorBound(steps=1) for integers that may be off by one."
        )

    @classmethod
    def for_reduction(
        cls, length: int, dtype: str = "float32", accumulator: str | None = None
    ) -> ErrorBound:
        """Return bound for sums of ``length`` products of standard normal values, in any order.

        Inputs have no part in it: they are rounded to their types when they are drawn, and the
        reference is computed from the rounded ones.

        Partial sums of zero-mean products are random walks: after k terms they are about sqrt(k)
        and each rounding error about u sqrt(k) (u = the accumulator's unit roundoff), so the sum of
        n terms is off by about u n / sqrt(6). Relative to a typical output, sqrt(n), that is u
        sqrt(n) / sqrt(6) (compare Higham and Mary, "Sharper Probabilistic Backward Error Analysis
        for Basic Linear Algebra Kernels with Random Data", SIAM J. Sci. Comput. 42(5), 2020). The
        bound is 8 u sqrt(n) for the worst element and 4 u sqrt(n) for the norm, plus 2 u for the
        product and the result. An output of a coarser type is rounded once more, by at most its own
        unit roundoff times each element. A missing term changes its output by about 1 / sqrt(n),
        which is far more.

        Args:
            length: number of products.
            dtype: the type of the output.
            accumulator: type in which the sum is computed; by default `default_accumulator`.
        """
        unit = unit_roundoff(accumulator or default_accumulator(dtype))
        own = unit_roundoff(dtype)
        rounding = own if own > unit else 0.0
        growth = math.sqrt(max(length, 1))
        return cls(
            max_relative=(8 * growth + 2) * unit + rounding,
            normwise=(4 * growth + 2) * unit + rounding,
            rounding=rounding,
        )

    @classmethod
    def for_float8(cls, length: int, dtype: str, *, one_sign: bool = False) -> ErrorBound:
        """Return bound for sums of products of 8-bit numbers that Hopper's tensor cores add.

        An instruction adds 32 products and the sum so far. It aligns them to the largest of them
        and cuts them off 13 bits below its leading bit, toward zero (DeepSeek-AI, "DeepSeek-V3
        Technical Report", arXiv:2412.19437, section 3.3.2: about 14 bits). Its error is a few T
        times the sum so far, with T = 2^-13. Over n instructions on standard normal values the sum
        is a random walk, and its error is about T sqrt(n) of the norm, and at most 2.5 T sqrt(n) of
        the largest: a simulation of such sums gives norms of 0.98, 2.7, 6.4 and 16.7 T for n of 4,
        16, 64 and 256. The bound is twice that and 2 T for the scales, with which the sums are
        multiplied, and the result is rounded once more to ``dtype``.

        Args:
            length: the number of products that the tensor cores add up before the sum is added to
                one in float32, whose own errors are smaller by far.
            dtype: the type of the output.
            one_sign: whether all terms of a sum may have the same sign. The sum then grows evenly,
                and half of T of it, on average, is cut off from each of the 33 terms: 8.25 n T in
                all, with steps of T that are up to twice as fine.
        """
        cut, own = 2.0**-FLOAT8_SUM_BITS, unit_roundoff(dtype)
        instructions = math.ceil(length / FLOAT8_PRODUCTS)
        worst, typical = 5 * math.sqrt(instructions), 2 * math.sqrt(instructions)
        if one_sign:
            worst = typical = (FLOAT8_PRODUCTS + 1) / 4 * instructions
        return cls(
            max_relative=(worst + 2) * cut + own,
            normwise=(typical + 2) * cut + own,
            rounding=own,
        )

    @classmethod
    def widest(cls, *bounds: ErrorBound) -> ErrorBound:
        """Return a bound that allows whatever one of ``bounds`` allows."""
        return cls(
            max(bound.max_relative for bound in bounds),
            max(bound.normwise for bound in bounds),
            min(bound.rounding for bound in bounds),
            max(bound.steps for bound in bounds),
            max(bound.share for bound in bounds),
        )


def default_accumulator(dtype: str) -> str:
    """Return the default type in which an output of type ``dtype`` is computed.

    float64 for float64, otherwise float32: tensor cores add products of half precision in float32
    (PTX ISA, ``mma`` with ``.f32`` accumulators), and so do libraries by default.
    """
    return "float64" if unit_roundoff(dtype) <= unit_roundoff("float64") else "float32"
