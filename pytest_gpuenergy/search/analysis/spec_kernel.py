"""The facts that kernels of both languages share: numbers from the launch plan and the spec."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuenergy.search.source.polynomials import Atom, Interval, Polynomial
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, LaunchPlan
from pytest_gpuenergy.search.spec.sizes import evaluate
from pytest_gpuenergy.search.spec.spec_workload import block_names
from pytest_gpuenergy.support import InputError

MAX_DEPTH = 40
"""The limit on definitions within definitions that are followed."""


@dataclass(frozen=True)
class Facts:
    """The numbers in a launch plan and a spec; tuples have one for each set of sizes.

    Attributes:
        cases: the number of sets of sizes.
        scalars: the values of integer scalars, by name.
        grid: the sizes of the grid in x, y and z.
        shapes: the dimensions of tensors, by name.
    """

    cases: int
    scalars: dict[str, tuple[int, ...]]
    grid: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    shapes: dict[str, tuple[tuple[int, ...], ...]]

    @classmethod
    def of(cls, launch: LaunchPlan, spec: KernelSpec) -> Facts | None:
        """Return the facts; None if an expression of the launch or the spec has no value."""
        around = {**launch.constants, **block_names(launch.block)}
        named = [{**around, **sizes} for sizes in spec.sizes]
        try:
            x, y, z = (
                tuple(evaluate(size, names) for names in named)
                for size in (*launch.grid, 1, 1, 1)[:3]
            )
            scalars = {
                scalar.name: tuple(evaluate(scalar.value, names) for names in named)
                for scalar in spec.scalars
                if not isinstance(scalar.value, float) and "int" in scalar.dtype
            }
            shapes = {
                tensor.name: tuple(
                    tuple(evaluate(size, names) for size in tensor.shape) for names in named
                )
                for tensor in spec.tensors
            }
            return cls(len(named), scalars, (x, y, z), shapes)
        except InputError:
            return None


class SpecKernel(ABC):
    """A kernel with the numbers of its launch and its spec.

    Attributes:
        launch: the launch plan.
        spec: the spec of what the kernel computes.
        facts: the values of scalars and of the grid for each set of sizes.
    """

    def __init__(self, launch: LaunchPlan, spec: KernelSpec, facts: Facts) -> None:
        self.launch = launch
        self.spec = spec
        self.facts = facts

    def interval(self, polynomial: Polynomial, case: int) -> Interval | None:
        """Return the range of an expression over all threads, for one set of sizes."""
        return self._interval(polynomial, case, MAX_DEPTH)

    def is_never_negative(self, polynomial: Polynomial) -> bool:
        """Return whether an expression is zero or more in all threads for all sets of sizes."""
        found = [self.interval(polynomial, case) for case in range(self.facts.cases)]
        return all(interval is not None and interval[0] >= 0 for interval in found)

    def _interval(self, polynomial: Polynomial, case: int, depth: int) -> Interval | None:
        return polynomial.interval(lambda atom: self._range(atom, case, depth))

    @abstractmethod
    def _range(self, atom: Atom, case: int, depth: int) -> Interval | None:
        """Return the range of an atom over all threads; None if it is not known."""

    def _range_of_quotient(self, atom: Atom, case: int, depth: int) -> Interval | None:
        """Return the range of a quotient or, for ``%``, a remainder; None if it is not known.

        It is not known of negative numbers, for which C and Python round differently.
        """
        parts = (atom.left, atom.right)
        left, right = (part and self._interval(part, case, depth - 1) for part in parts)
        if not left or not right or left[0] < 0 or right[0] < 1:
            return None
        if atom.operator == "%":
            return left if left[1] < right[0] else (0, min(left[1], right[1] - 1))
        return left[0] // right[1], left[1] // right[0]

    def _range_of_loop(
        self, ends: Iterable[Polynomial | None], case: int, depth: int
    ) -> Interval | None:
        """Return the range of the variable of a loop from its start, bound and step."""
        known = [end and self._interval(end, case, depth - 1) for end in ends]
        start, stop, step = known
        if not start or not stop or not step or step[0] < 1:
            return None
        low, last = start[0], stop[1] - 1
        if low == start[1] and step[0] == step[1] and stop[1] > low:
            last = low + (stop[1] - 1 - low) // step[0] * step[0]
        return low, max(last, low)
