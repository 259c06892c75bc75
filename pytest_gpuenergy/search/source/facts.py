"""The values of a kernel's scalars, grid and shapes for each set of sizes of its spec."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, LaunchPlan
from pytest_gpuenergy.search.spec.sizes import evaluate
from pytest_gpuenergy.support import InputError


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
        threads = (*launch.block, 1, 1, 1)
        block = {f"block_{axis}": threads[place] for place, axis in enumerate("xyz")}
        around = {**launch.constants, **block}
        named = [{**around, **sizes} for sizes in spec.sizes]
        grid = (*launch.grid, 1, 1, 1)[:3]
        try:
            x, y, z = (tuple(evaluate(size, names) for names in named) for size in grid)
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
