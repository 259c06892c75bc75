"""A Triton function with its constants, as data: the worker process compiles and launches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuenergy.kernels.kernel import AnyKernel, Dim3, check_source
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import whole, whole_sizes

Constant = bool | int | float | str
_MOST_WARPS = 32  # of a block


@dataclass(frozen=True)
class TritonKernel(AnyKernel):
    """A function in a Python module, decorated with ``triton.jit``.

    The module is executed in the worker process, on real GPUs only. It is arbitrary Python: only
    use modules that you would run yourself.

    Attributes:
        source: text of the module, with its imports.
        function: name of the function.
        grid: programs in x, y and z.
        arguments: names of tensors, workspaces and scalars, in the order of the parameters.
        constants: values of all other parameters, ``tl.constexpr`` or not, by name.
        num_warps: warps of a program; a power of two.
        num_stages: stages of software pipelines.

    Raises:
        InputError: an attribute cannot be used.
    """

    kind = "triton"
    source: str
    function: str
    grid: Dim3
    arguments: tuple[str, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict, hash=False)
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        check_source(self.source)
        if not self.function.isidentifier():
            raise InputError(f"A Triton kernel cannot have the function name {self.function!r}.")
        object.__setattr__(self, "grid", whole_sizes(self.grid))
        for name in ("num_warps", "num_stages"):
            object.__setattr__(self, name, whole(getattr(self, name)))
        constants = {name: whole(value) for name, value in self.constants.items()}
        object.__setattr__(self, "constants", constants)
        if len(self.grid) != 3 or any(type(d) is not int or d < 1 for d in self.grid):
            raise InputError(
                f"The grid of {self.function!r} must be three positive integers, not {self.grid!r}."
            )
        if self.num_warps not in [1 << k for k in range(_MOST_WARPS.bit_length())]:
            raise InputError(
                f"num_warps of {self.function!r} must be a power of two up to {_MOST_WARPS}, not "
                f"{self.num_warps!r}."
            )
        if type(self.num_stages) is not int or self.num_stages < 1:
            raise InputError(
                f"num_stages of {self.function!r} must be a positive integer, not "
                f"{self.num_stages!r}."
            )
        for name, value in self.constants.items():
            if not isinstance(value, Constant):
                raise InputError(
                    f"The constant {name!r} of {self.function!r} must be a number or string, not "
                    f"{value!r}."
                )

    @property
    def label(self) -> str:
        return self.function

    @property
    def content(self) -> Mapping[str, object]:
        return {
            "kind": self.kind,
            "source": self.source,
            "function": self.function,
            "grid": list(self.grid),
            "arguments": list(self.arguments),
            "constants": dict(self.constants),
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }

    @property
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        return {self.function: self.arguments}

    @property
    def modules(self) -> tuple[str, ...]:
        return ("triton", "torch")
