"""The `Workload` base class: what every computation under test can tell of itself."""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support.errors import InputError

Array = npt.NDArray[np.generic]

_MOST_FLOPS = 1 << 63
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_plain_name(name: str) -> bool:
    """Whether a workload's name can be part of file names and of ids of items."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Tensor:
    """One buffer a kernel reads or writes: dense, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["input", "output", "workspace"]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Scalar:
    """One kernel argument passed by value.

    Raises:
        InputError: the type is not understood, or does not hold the value.
    """

    name: str
    dtype: str
    value: bool | int | float

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "fiub":
            raise InputError(
                f"Scalar {self.name!r} has the type {self.dtype!r}: give one such as float32 or "
                "int32."
            )
        if dtype.kind == "f":
            good = isinstance(self.value, Real)
        else:
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            good = isinstance(self.value, Integral) and low <= self.value <= high
        if not good:
            raise InputError(
                f"Scalar {self.name!r} has the value {self.value!r}: give a number that {dtype} "
                "holds."
            )


@dataclass(frozen=True)
class ErrorBound:
    """The largest errors a correct kernel may show against the float64 reference.

    ``max_relative`` bounds max|out - ref| / max|ref|, ``normwise`` bounds ||out - ref|| / ||ref||.
    """

    max_relative: float
    normwise: float

    @classmethod
    def for_reduction(cls, length: int, dtype: str = "float32") -> ErrorBound:
        """Bound for sums of ``length`` products of standard normal values, in any order.

        Partial sums of zero-mean products walk at random: after k terms they are near sqrt(k),
        their rounding errors near u sqrt(k) (u = unit roundoff), and the sum of n terms is off by
        about u n / sqrt(6), which is u sqrt(n) / sqrt(6) of a typical output, sqrt(n) (compare
        Higham and Mary, "Sharper Probabilistic Backward Error Analysis for Basic Linear Algebra
        Kernels with Random Data", SIAM J. Sci. Comput. 42(5), 2020). The bound is 8 u sqrt(n) for
        the worst element and 4 u sqrt(n) for the norm, and 2 u more for the product and the
        result. A dropped term changes its output by about 1 / sqrt(n), far more.
        """
        unit_roundoff = float(np.finfo(np.dtype(dtype)).eps) / 2
        growth = math.sqrt(max(length, 1))
        return cls(
            max_relative=(8 * growth + 2) * unit_roundoff,
            normwise=(4 * growth + 2) * unit_roundoff,
        )


@dataclass(frozen=True)
class IoContract:
    """What a workload says of its arguments and its amount of work, as data without functions.

    Attributes:
        name: of the workload.
        tensors: inputs, then outputs.
        scalars: arguments passed by value.
        flops: floating-point operations of one run; 0 when not known.
        bytes_moved: least traffic of one run, in bytes; 0 when not known.
        bounds: the largest errors of each output, by its name.
    """

    name: str
    tensors: tuple[Tensor, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    flops: int = 0
    bytes_moved: int = 0
    bounds: Mapping[str, ErrorBound] = field(default_factory=dict, hash=False)


class Workload(ABC):
    """What is computed. Knows nothing of kernels, devices or pytest.

    Attributes:
        name: what it is called; workloads that differ in nothing else compute the same.
        kind: the name of its kind, such as ``conv2d``; see `workloads.registry`.
    """

    name: str
    kind: ClassVar[str]

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Inputs, then outputs, in the order of the computation's signature."""

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """Arguments passed by value; none by default."""
        return ()

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, int | str]:
        """Its ``kind``, and what distinguishes it from others of that kind."""

    @property
    def signature(self) -> str:
        """Kind and parameters as part of a file name: equal for workloads that compute the same."""
        rest = (f"{name}_{value}" for name, value in self.parameters.items() if name != "kind")
        return "_".join([self.kind, *rest])

    def called(self, name: str) -> Self:
        """The same under another name."""
        me: Any = self
        renamed: Self = replace(me, name=name)
        return renamed

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations of one run."""

    @property
    @abstractmethod
    def error_bound(self) -> ErrorBound:
        """The largest errors a correct kernel may show."""

    def bound_of(self, _tensor: Tensor) -> ErrorBound:
        """The largest errors of one output; those of all, unless a workload tells them apart."""
        return self.error_bound

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """From where up to where inputs are uniform that are not drawn as usual, by name."""
        return {}

    @abstractmethod
    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        """The outputs computed in float64 from ``inputs``, by tensor name."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that are only read."""
        return tuple(t for t in self.tensors if t.role == "input")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that are written."""
        return tuple(t for t in self.tensors if t.role == "output")

    @property
    def bytes_moved(self) -> int:
        """Least traffic of one run: every input read once, every output written once, in bytes."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def io(self) -> IoContract:
        """All of the above that is data."""
        bounds = {tensor.name: self.bound_of(tensor) for tensor in self.outputs}
        return IoContract(
            self.name, self.tensors, self.scalars, self.flops, self.bytes_moved, bounds
        )

    def make_inputs(self, seed: int) -> dict[str, Array]:
        """Inputs drawn from ``seed``, by tensor name; the same on every machine.

        Floating-point tensors are standard normal, integers uniform from 0 to 127 and booleans
        either, but for those that have a range of their own.
        """
        streams = np.random.SeedSequence(seed).spawn(len(self.inputs))
        return {
            tensor.name: _draw(np.random.default_rng(stream), tensor, self.ranges.get(tensor.name))
            for tensor, stream in zip(self.inputs, streams, strict=True)
        }

    @property
    def digest(self) -> str | None:
        """Hash of the kind, the parameters and the tensors, not of the name.

        None when a workload cannot be told by those: nothing about it is then remembered.
        """
        content = [
            type(self).__name__,
            sorted(self.parameters.items()),
            [(t.name, t.shape, t.dtype, t.role) for t in self.tensors],
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _draw(generator: np.random.Generator, tensor: Tensor, own: tuple[float, float] | None) -> Array:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind != "f":
        low, high = own or (0, 2 if dtype.kind == "b" else 128)
        return generator.integers(int(low), int(high), tensor.shape).astype(dtype)
    if own is None:
        return generator.standard_normal(tensor.shape).astype(dtype)
    return generator.uniform(*own, tensor.shape).astype(dtype)


def whole_flops(flops: object, whose: str) -> int:
    """A number of operations as an int, also of NumPy's types and of ``2e6``.

    Raises:
        InputError: it is no whole number from 0 up, or one that nothing can do.
    """
    number: Any = flops if isinstance(flops, Real) and not isinstance(flops, bool) else math.nan
    if 0 <= number < _MOST_FLOPS and number == int(number):
        return int(number)
    shown = f"{number:.3g}" if isinstance(flops, float) else type(flops).__name__
    raise InputError(
        f"{whose} cannot have that as flops ({shown}): give how many operations one run takes."
    )
