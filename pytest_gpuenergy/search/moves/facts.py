"""Values of a kernel's scalars and grid for each set of sizes of its spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, LaunchPlan
from pytest_gpuenergy.search.spec.sizes import evaluate
from pytest_gpuenergy.support import InputError

_Names = Sequence[dict[str, int | float]]
"""For each set of sizes, the values of all names that expressions can use."""


@dataclass(frozen=True)
class Facts:
    """Each tuple has a number for each set of sizes.

    Attributes:
        cases: number of sets.
        scalars: integers, by name.
        grid: in x, y and z.
        shapes: of tensors, by name: a tuple of dimensions for each set of sizes.
    """

    cases: int
    scalars: dict[str, tuple[int, ...]]
    grid: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    shapes: dict[str, tuple[tuple[int, ...], ...]]

    @classmethod
    def of(cls, launch: LaunchPlan, spec: KernelSpec) -> Facts | None:
        """None if an expression of the launch or the spec cannot be computed."""
        threads = (*launch.block, 1, 1, 1)
        block = {f"block_{axis}": threads[place] for place, axis in enumerate("xyz")}
        around = {**launch.constants, **block}
        named = [{**around, **sizes} for sizes in spec.sizes]
        grid = (*launch.grid, 1, 1, 1)[:3]
        try:
            x, y, z = (tuple(evaluate(size, names) for names in named) for size in grid)
            return cls(len(named), _scalars(spec, named), (x, y, z), _shapes(spec, named))
        except InputError:
            return None


def _scalars(spec: KernelSpec, named: _Names) -> dict[str, tuple[int, ...]]:
    return {
        scalar.name: tuple(evaluate(scalar.value, names) for names in named)
        for scalar in spec.scalars
        if not isinstance(scalar.value, float) and "int" in scalar.dtype
    }


def _shapes(spec: KernelSpec, named: _Names) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {
        tensor.name: tuple(tuple(evaluate(size, names) for size in tensor.shape) for names in named)
        for tensor in spec.tensors
    }
