"""A workload defined by its inputs, its outputs and a function that computes the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.number_types import (
    UNTOUCHED,
    Array,
    is_floating,
    is_known,
    stored_as,
)
from pytest_gpuenergy.workloads.workload import (
    Role,
    Scalar,
    Tensor,
    Workload,
    is_plain_name,
    whole_flops,
)

_EXACT = ErrorBound()
_DOUBLE_INTEGERS = 2.0**53
"""Up to here double precision has all integers."""
_ACCUMULATORS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Contract(Workload):
    """The workload of a kernel of your own.

    Args:
        name: the name in reports; letters, digits, ``-``, ``_`` and ``.``, starting with a letter
            or digit.
        contract: inputs, then outputs, each a `Tensor`; inputs and inouts are standard normal,
            integers over their whole type.
        compute: takes the inputs by name, floating-point ones as float64, and returns the outputs
            by name. Of an inout it takes the contents before a launch, and returns those after it.
            What is masked in a masked array of NumPy must be left as it was; infinities must be
            matched exactly.
        flops: floating-point operations of one run.
        values: arguments passed by value.
        reduction_length: how many products the kernel adds up for one output; sets the error
            bound of floating-point outputs, see `ErrorBound.for_reduction`. Others must be exact.
        init: ranges of inputs to draw uniformly instead, by tensor name; the second number of a
            range is excluded.
        accumulator: type in which floating-point outputs are computed: ``float16``, ``bfloat16``,
            ``float32`` or ``float64``; by default float64 for float64 outputs, otherwise float32.
        bound: the largest error allowed for floating-point outputs, instead of the above: an
            `ErrorBound`, or a number as in `ErrorBound.of`. A tensor's own ``bound`` comes first.

    Raises:
        InputError: a name cannot be used or is not unique, there is no output, a tensor has no
            elements or an unknown type, a range, accumulator or bound is invalid, or ``flops`` is
            not a whole number.
    """

    kind: ClassVar[str] = "contract"

    name: str
    contract: tuple[Tensor, ...]
    compute: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    flops: int = 0
    values: tuple[Scalar, ...] = ()
    reduction_length: int = 1
    init: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    bound: ErrorBound | float | None = None
    accumulator: str | None = None

    def __post_init__(self) -> None:
        if not is_plain_name(self.name):
            raise InputError(
                f"A workload cannot be called {self.name[:100]!r}: use at most 100 letters, "
                "digits, '-', '_' and '.', starting with a letter or digit."
            )
        object.__setattr__(self, "contract", tuple(self.contract))
        object.__setattr__(self, "values", tuple(self.values))
        names = [tensor.name for tensor in self.contract] + [value.name for value in self.values]
        if len(set(names)) != len(names):
            raise InputError(f"Two arguments of workload {self.name!r} share a name.")
        if not self.outputs:
            raise InputError(f"Workload {self.name!r} needs a tensor with the role 'output'.")
        for tensor in self.contract:
            check_tensor(tensor, self.name)
        object.__setattr__(self, "flops", whole_flops(self.flops, f"Workload {self.name!r}"))
        if self.bound is not None:
            bound = ErrorBound.of(self.bound, f"Workload {self.name!r}")
            if bound.steps:
                raise InputError(
                    f"Workload {self.name!r} has a bound in steps, which are for integers: give it "
                    "to the tensor, as in Tensor('q', (64,), 'int8', 'output', "
                    "bound=ErrorBound(steps=1))."
                )
            object.__setattr__(self, "bound", bound)
        if self.accumulator not in (None, *_ACCUMULATORS):
            raise InputError(
                f"Workload {self.name!r} has the accumulator {self.accumulator!r}: give "
                f"{', '.join(_ACCUMULATORS[:-1])} or {_ACCUMULATORS[-1]}."
            )
        for name, own in self.init.items():
            _check_range(name, own, {t.name: t for t in self.inputs}, self.name)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.contract

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.values

    @property
    def parameters(self) -> Mapping[str, int | str]:
        shapes = {t.name: f"{t.dtype}[{','.join(map(str, t.shape))}]" for t in self.contract}
        shapes |= {t.name: f"{shapes[t.name]} inout" for t in self.contract if t.role == "inout"}
        for name, (low, high) in self.init.items():
            shapes[name] += f" in [{low:g}, {high:g})"
        return {"kind": self.kind, **shapes, **{s.name: str(s.value) for s in self.values}}

    @property
    def error_bound(self) -> ErrorBound:
        """The widest of its outputs' bounds."""
        return ErrorBound.widest(*map(self.bound_of, self.outputs))

    def bound_of(self, tensor: Tensor) -> ErrorBound:
        if tensor.bound is not None:
            return ErrorBound.of(tensor.bound, f"Tensor {tensor.name!r}")
        if not is_floating(tensor.dtype):
            return _EXACT
        if self.bound is not None:
            return ErrorBound.of(self.bound, f"Workload {self.name!r}")
        return ErrorBound.for_reduction(self.reduction_length, tensor.dtype, self.accumulator)

    def is_judged_by_element(self, tensor: Tensor) -> bool:
        return self.bound is None and tensor.bound is None

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        return self.init

    @property
    def digest(self) -> None:
        """None: a function cannot be identified by a hash, so nothing is cached for it."""
        return

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        results = self.compute(self.widened(inputs))
        if not isinstance(results, Mapping):
            raise InputError(
                f"The reference of workload {self.name!r} returns {type(results).__name__} instead "
                "of a mapping of outputs by name."
            )
        outputs = {}
        for tensor in self.outputs:
            if tensor.name not in results:
                raise InputError(
                    f"The reference of workload {self.name!r} does not return {tensor.name!r}."
                )
            value = reference_values(results[tensor.name])
            if value.shape != tensor.shape:
                raise InputError(
                    f"The reference of workload {self.name!r} returns {tensor.name!r} with shape "
                    f"{value.shape} instead of {tensor.shape}."
                )
            outputs[tensor.name] = value
        return outputs


def reference_values(result: object) -> npt.NDArray[np.float64]:
    """Return a reference's result in double precision, with `UNTOUCHED` where NumPy's masks are.

    It stays where it is: not every library's arrays convert to NumPy's. Integers of NumPy that
    double precision cannot hold are returned in extended precision, which has all 64-bit ones.
    """
    if isinstance(result, np.ma.MaskedArray):
        values = np.array(np.ma.getdata(result), dtype=np.float64)
        values[np.ma.getmaskarray(result)] = UNTOUCHED
        return values
    if isinstance(result, np.ndarray) and result.dtype in (np.int64, np.uint64):
        doubles = result.astype(np.float64)
        if np.abs(doubles).max(initial=0.0) < _DOUBLE_INTEGERS:
            return doubles
        extended: npt.NDArray[Any] = result.astype(np.longdouble)
        return extended
    if hasattr(result, "__array_function__"):
        return np.asarray(result, dtype=np.float64, like=result)
    return np.asarray(result, dtype=np.float64)


def _check_range(
    name: str, own: tuple[float, float], inputs: Mapping[str, Tensor], workload: str
) -> None:
    where = f"init of workload {workload!r}"
    if name not in inputs:
        raise InputError(f"{where} has {name!r}: give names of inputs ({', '.join(inputs)}).")
    dtype = inputs[name].dtype
    number = Real if is_floating(dtype) else Integral
    least, most = (-math.inf, math.inf)
    if stored_as(dtype).kind in "iu" and not is_floating(dtype):
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    try:
        low, high = own
        good = isinstance(low, number) and isinstance(high, number)
        good = good and least <= low < high <= most and math.isfinite(high - low)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise InputError(
            f"{where} gives {name!r} the range {own!r}: give two numbers that {dtype} can "
            "represent, the smaller one first."
        )


def check_tensor(tensor: Tensor, workload: str) -> None:
    """Check the type, shape, role and bound of a workload's tensor.

    Raises:
        InputError: its type or role is unknown, it has no elements, or its bound cannot be used.
    """
    where = f"Tensor {tensor.name!r} of workload {workload!r}"
    if not is_known(tensor.dtype):
        raise InputError(
            f"{where} has type {shown(tensor.dtype)}: give one such as float32, bfloat16 or int32."
        )
    if any(type(size) is not int or size < 1 for size in tensor.shape):
        raise InputError(
            f"{where} has shape {tensor.shape!r}: give sizes that are integers of at least 1."
        )
    roles = get_args(Role)
    if tensor.role not in roles:
        raise InputError(f"{where} has the role {shown(tensor.role)}: give {', '.join(roles)}.")
    if tensor.bound is None:
        return
    if not tensor.is_written:
        raise InputError(f"{where} is an {tensor.role} and has a bound, which is for outputs.")
    if ErrorBound.of(tensor.bound, where).steps and is_floating(tensor.dtype):
        raise InputError(
            f"{where} is {tensor.dtype} and has a bound in steps, which are for integers: give a "
            "number such as 2e-6, or an ErrorBound of max_relative and normwise."
        )
