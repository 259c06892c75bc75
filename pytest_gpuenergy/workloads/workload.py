"""The `Workload` base class: what is known about every computation under test."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.array_math import NUMPY, ArrayMath
from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.edges import Edges, draw_edges, end_of_range
from pytest_gpuenergy.workloads.inputs import NORMAL, beginning, draw_from, repeated
from pytest_gpuenergy.workloads.number_types import (
    Array,
    is_floating,
    is_known,
    largest,
    numbers,
    rounded_to,
    stored_as,
    whole_sizes,
)

_MAX_FLOPS = 1 << 63
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_plain_name(name: str) -> bool:
    """Return whether a workload's name can be part of file names and item ids."""
    return _NAME.fullmatch(name) is not None


Role = Literal["input", "output", "inout", "workspace"]


@dataclass(frozen=True)
class Tensor:
    """One buffer a kernel reads or writes: dense, row-major.

    Attributes:
        name: the name of the kernel's argument.
        shape: the sizes in elements; a list, an array or a single integer is accepted.
        dtype: the type of the elements: NumPy's name of a type of real numbers or booleans, or
            ``bfloat16``, whose arrays hold its bits as uint16.
        role: what a launch does with the tensor. An ``inout`` is drawn like an input, and has these
            contents before each launch, which may read them and writes the result there.
        bound: the largest error of this output; by default that of its workload.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    bound: ErrorBound | float | None = None

    @property
    def is_read(self) -> bool:
        """Whether it has contents before a launch."""
        return self.role in ("input", "inout")

    @property
    def is_written(self) -> bool:
        """Whether a launch leaves a result in it."""
        return self.role in ("output", "inout")

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", whole_sizes(self.shape))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * stored_as(self.dtype).itemsize


@dataclass(frozen=True)
class Scalar:
    """One kernel argument passed by value.

    Attributes:
        name: the name of the kernel's argument.
        dtype: the type, as of a `Tensor`.
        value: the number; a number of NumPy's is accepted.

    Raises:
        InputError: the type is unknown, or cannot represent the value.
    """

    name: str
    dtype: str
    value: bool | int | float

    def __post_init__(self) -> None:
        if isinstance(self.value, np.generic):
            object.__setattr__(self, "value", self.value.item())
        if not is_known(self.dtype):
            raise InputError(
                f"Scalar {self.name!r} has type {shown(self.dtype)}: give one such as float32 or "
                "int32."
            )
        if is_floating(self.dtype):
            limit = largest(self.dtype)
            good = isinstance(self.value, Real) and not limit < abs(self.value) < math.inf
        elif stored_as(self.dtype).kind == "b":
            good = isinstance(self.value, Integral) and self.value in (0, 1)
        else:
            limits = np.iinfo(self.dtype)
            good = isinstance(self.value, Integral) and limits.min <= self.value <= limits.max
        if not good:
            raise InputError(
                f"Scalar {self.name!r} has value {self.value!r}: give a number that {self.dtype} "
                "can represent."
            )

    @property
    def stored(self) -> np.generic:
        """The value that a launch passes: rounded to the type, and for bfloat16 its bits."""
        if is_floating(self.dtype):
            only: np.generic = rounded_to(np.array([self.value], np.float64), self.dtype)[0]
            return only
        of_type: np.generic = np.dtype(self.dtype).type(self.value)
        return of_type

    @property
    def rounded(self) -> bool | int | float:
        """The number that the kernel gets."""
        number: bool | int | float = numbers(np.array([self.stored]), self.dtype)[0].item()
        return number


@dataclass(frozen=True)
class IoContract:
    """A workload's arguments and amount of work, as plain data.

    Attributes:
        name: the name of the workload.
        tensors: inputs, then outputs.
        scalars: arguments passed by value.
        flops: floating-point operations of one run; 0 if unknown.
        bytes_moved: least memory traffic of one run, in bytes; 0 if unknown.
        bounds: the largest errors allowed for each output, by name.
    """

    name: str
    tensors: tuple[Tensor, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    flops: int = 0
    bytes_moved: int = 0
    bounds: Mapping[str, ErrorBound] = field(default_factory=dict, hash=False)


class Workload(ABC):
    """A computation, independent of kernels, devices and pytest.

    Attributes:
        name: its name; workloads that differ only in name compute the same.
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
        """Its ``kind`` and everything that distinguishes it from others of that kind."""

    @property
    def signature(self) -> str:
        """Kind and parameters for use in file names: equal for workloads that compute the same."""
        rest = (f"{name}_{value}" for name, value in self.parameters.items() if name != "kind")
        return "_".join([self.kind, *rest])

    def called(self, name: str) -> Self:
        """Return the same workload under another name."""
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
        """The largest errors a correct kernel may have."""

    def bound_of(self, _tensor: Tensor) -> ErrorBound:
        """Return the largest errors allowed for one output; by default the same for all outputs."""
        return self.error_bound

    @property
    def allows_tensor_cores(self) -> bool:
        """Whether a kernel may use them: a workload may declare a precision that excludes them."""
        return True

    @property
    def operand_types(self) -> frozenset[str] | None:
        """The types of operands that a kernel may use on tensor cores; None: any."""
        return None

    def is_judged_by_element(self, _tensor: Tensor) -> bool:
        """Return whether errors of an output are also judged by element where it has a wide range.

        True by default; see `workloads.sensitivity`. Not for a bound that someone has chosen, which
        refers to the largest element alone.
        """
        return True

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """Ranges, by name, of inputs that are drawn uniformly instead of as usual."""
        return {}

    @property
    def distribution(self) -> str:
        """The distribution of real inputs without a range; see `distributions.draw_from`."""
        return NORMAL

    @property
    def twins(self) -> tuple[Workload, ...]:
        """Others that the same kernel computes, and is verified on too; none by default."""
        return ()

    @abstractmethod
    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        """Return the outputs computed in float64 from ``inputs``, by tensor name.

        The floating-point ones of these may also be float64, whatever the tensor's type. NaN stands
        for an element that a kernel must leave as it is.
        """

    def widened(self, inputs: Mapping[str, Array], arrays: ArrayMath = NUMPY) -> dict[str, Array]:
        """Return copies of ``inputs``, the floating-point ones as float64; see `ArrayMath`."""
        wide: dict[str, Array] = {}
        for tensor in self.inputs:
            value = inputs[tensor.name]
            if is_floating(tensor.dtype) and value.dtype != np.float64:
                wide[tensor.name] = arrays.widened(value, tensor.dtype)
            else:
                wide[tensor.name] = arrays.copy(value)
        return wide

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that have contents before a launch: inputs, and inouts."""
        return tuple(t for t in self.tensors if t.is_read)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that are written: outputs, and inouts."""
        return tuple(t for t in self.tensors if t.is_written)

    @property
    def bytes_moved(self) -> int:
        """Least memory traffic of one run in bytes: each input read once, each output written."""
        return sum(t.nbytes * (2 if t.role == "inout" else 1) for t in self.tensors)

    @property
    def io(self) -> IoContract:
        """The workload's arguments and amount of work, as plain data."""
        bounds = {tensor.name: self.bound_of(tensor) for tensor in self.outputs}
        return IoContract(
            self.name, self.tensors, self.scalars, self.flops, self.bytes_moved, bounds
        )

    def make_inputs(self, seed: int) -> dict[str, Array]:
        """Return inputs drawn from ``seed``, by tensor name; the same on every machine.

        Floating-point tensors have the `distribution`, integers are uniform over their whole type,
        and booleans equally likely true or false, except for tensors in `ranges`. Large ones repeat
        their beginning, see `repeated`.
        """
        beginnings = self._beginnings(seed, None)
        return {one.name: repeated(beginnings[one.name], one.shape) for one in self.inputs}

    def draw_inputs(self, seed: int, edges: Edges | None = None) -> dict[str, Array]:
        """Return the beginnings of inputs, see `repeated`: as of `make_inputs`, or with edges.

        With ``edges`` they mix ordinary values with extreme ones, and keep to `ranges`. A workload
        that has a `make_inputs` of its own has these in both cases.
        """
        if type(self).make_inputs is not Workload.make_inputs:
            return self.make_inputs(seed)
        return self._beginnings(seed, edges)

    def _beginnings(self, seed: int, edges: Edges | None) -> dict[str, Array]:
        free = [tensor.name for tensor in self.inputs if tensor.name not in self.ranges][:1]
        limited = [tensor.name for tensor in self.inputs if tensor.name in self.ranges][:1]

        def draw(one: Tensor, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
            own = self.ranges.get(one.name)
            if edges is None:
                return _draw(generator, one.dtype, own or self.distribution, shape)
            mine = edges if one.name in free else replace(edges, sign=0)
            if own is not None and edges.uniform:
                mine = replace(edges, sign=end_of_range(edges.uniform, first=one.name in limited))
            return draw_edges(generator, one.dtype, own, mine, shape)

        streams = np.random.SeedSequence(seed).spawn(len(self.inputs))
        return {
            one.name: beginning(
                one.shape, functools.partial(draw, one, np.random.default_rng(stream))
            )
            for one, stream in zip(self.inputs, streams, strict=True)
        }

    @property
    def digest(self) -> str | None:
        """Hash of the kind, parameters and tensors, but not the name.

        None if these do not identify the computation; nothing is then cached for the workload.
        """
        content = [
            type(self).__name__,
            sorted(self.parameters.items()),
            [(t.name, t.shape, t.dtype, t.role) for t in self.tensors],
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _draw(
    generator: np.random.Generator,
    dtype: str,
    own: tuple[float, float] | str,
    shape: tuple[int, ...],
) -> Array:
    """Return values of a range or, without one, of a distribution."""
    if not is_floating(dtype):
        kind = np.dtype(dtype)
        if isinstance(own, str) and kind.kind != "b":
            limits = np.iinfo(kind)
            whole = (limits.min, limits.max, shape, kind.type)
            return generator.integers(*whole, endpoint=True).astype(kind)
        low, high = (0, 2) if isinstance(own, str) else own
        return generator.integers(int(low), int(high), shape).astype(kind)
    if isinstance(own, str):
        return draw_from(own, generator, dtype, shape)
    return rounded_to(generator.uniform(*own, shape), dtype)


class WorkloadKind(ABC):
    """A kind of workload.

    Attributes:
        name: the name of the kind, as in `Workload.kind`.
        grammar: human-readable form of the text that `parse` accepts.
        example: a text that `parse` accepts.
        networks: bundled workloads, by the name of their network, which is unique across kinds.
    """

    name: ClassVar[str]
    grammar: ClassVar[str]
    example: ClassVar[str]
    networks: ClassVar[Mapping[str, tuple[Workload, ...]]]

    @abstractmethod
    def parse(self, text: str) -> Workload | None:
        """Return the workload with the sizes in ``text``, named after them; None for another form.

        Raises:
            InputError: a size is out of range.
        """

    @abstractmethod
    def format_sizes(self, workload: Workload) -> str:
        """Return the text from which `parse` makes such a workload, but for its name."""

    @abstractmethod
    def from_sizes(self, name: str, sizes: Sequence[int]) -> Workload:
        """Return the workload with a list of sizes, as in pyproject.toml; named, or after them.

        Raises:
            InputError: there are too few or too many, or one is out of range.
        """

    @abstractmethod
    def from_parameters(self, name: str, parameters: Mapping[str, object]) -> Workload:
        """Return the workload with `Workload.parameters` (without ``kind``), as read from a file.

        Raises:
            InputError: a parameter is missing, unknown or out of range.
        """


def whole_flops(flops: object, whose: str) -> int:
    """Return a number of operations as an int; NumPy's numbers and ``2e6`` are accepted.

    Raises:
        InputError: it is not a whole number, or negative or absurdly large.
    """
    number: Any = flops if isinstance(flops, Real) and not isinstance(flops, bool) else math.nan
    if 0 <= number < _MAX_FLOPS and number == int(number):
        return int(number)
    shown = f"{number:.3g}" if isinstance(flops, float) else type(flops).__name__
    raise InputError(
        f"{whose} cannot have these flops ({shown}): give the number of operations of one run."
    )


def check_parameter_names(
    kind: str, known: Collection[Field[Any]], parameters: Collection[str]
) -> None:
    """Check that all parameters without a default are given, and no unknown ones.

    Raises:
        InputError: one is missing or unknown.
    """
    names = [field.name for field in known]
    missing = [f.name for f in known if f.default is MISSING and f.name not in parameters]
    unknown = [name for name in parameters if name not in names]
    if missing or unknown:
        wrong = f"{missing[0]} is missing" if missing else f"it does not take {unknown[0]!r:.40}"
        raise InputError(f"{kind} takes {', '.join(names)}; {wrong}.")
