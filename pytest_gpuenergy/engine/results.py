"""Compares a callable's result with its reference, whichever library and device they are from."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gpuenergy.engine.comparison import Reference, compare
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import ResultError, ended_by_signals
from pytest_gpuenergy.workloads import (
    BFLOAT16,
    UNTOUCHED,
    Array,
    ErrorBound,
    Values,
    Workload,
    estimate_conditions,
    estimate_terms,
    is_untouched,
    likely_conditions,
    unit_roundoff,
)

USUAL = ErrorBound(1e-5, 1e-5)
"""The bound of a callable's result if neither the user nor a workload gives one."""

_HALVES = ("float16", "bfloat16")
_CUDA = 2  # kDLCUDA of DLPack


@dataclass(frozen=True)
class Expected:
    """The correct result of a callable.

    Attributes:
        arrays: float64 copies in host memory, by their places in the result: ``result``, or
            ``result[0]``, ``result['x']`` and so on.
        bounds: the largest error allowed for each array, see `compare`.
    """

    arrays: Reference
    bounds: Mapping[str, ErrorBound]

    def check(self, returned: object) -> Correctness:
        """Compare what the callable returned with this result.

        Raises:
            ResultError: a part is not an array of numbers, or parts or shapes differ.
            KernelFault: an error exceeds its bound, see `compare`.
        """
        parts = dict(parts_of(returned, "result"))
        if parts.keys() != self.arrays.keys():
            raise ResultError(
                f"The callable returned {', '.join(parts) or 'nothing'}, but reference= has "
                f"{', '.join(self.arrays)}: both must be arrays, or tuples, lists or dictionaries "
                "of the same structure."
            )
        numbers = {name: numbers_of(part, f"The callable's {name}") for name, part in parts.items()}
        for name, expected in self.arrays.items():
            if numbers[name].shape != expected.shape:
                raise ResultError(
                    f"The callable's {name} has shape {numbers[name].shape}, but its reference has "
                    f"shape {expected.shape}: they must be the same."
                )
        bounds = {name: _rounded(self.bounds[name], type_of(part)) for name, part in parts.items()}
        errors = compare(numbers, self.arrays, bounds, seed=0)
        widest = ErrorBound.widest(*bounds.values())
        return Correctness(
            errors.max_relative, errors.normwise, widest.max_relative, widest.normwise, ()
        )


@dataclass(frozen=True)
class Specification:
    """The specification of a callable's correct result for any arguments; see `expect`."""

    reference: object
    bound: ErrorBound | None = None
    workload: Workload | None = None

    @property
    def is_function(self) -> bool:
        """Whether it applies to other arguments than those of the item, too."""
        return callable(self.reference)

    def of(self, args: tuple[object, ...]) -> Expected:
        """Return the correct result for ``args``."""
        return expect(self.reference, args, self.bound, self.workload)


def expect(
    reference: object,
    args: tuple[object, ...],
    bound: ErrorBound | None,
    workload: Workload | None = None,
) -> Expected:
    """Make `Expected` from the user's ``reference=``.

    Args:
        reference: an array on any device, nested lists of numbers, a tuple, list or dictionary of
            arrays, or a function that returns one of these. Masked elements of a NumPy masked array
            are not compared; infinities must be equal. A function is called immediately, with
            copies of the arrays among ``args``, so that its changes do not affect the callable.
        args: the callable's arguments.
        bound: the bound of each part of the result; by default that of the workload's output, or
            `USUAL` without a workload.
        workload: what the callable computes, if that is known.

    Raises:
        ResultError: the function raises, or the reference has something other than numbers.
    """
    arrays = _arrays_of(_called(reference, args) if callable(reference) else reference)
    if bound is not None:
        return Expected(Reference(arrays), dict.fromkeys(arrays, bound))
    bounds = dict.fromkeys(arrays, USUAL) if workload is None else _bounds_of(workload, arrays)
    if workload is not None and not any(map(workload.is_judged_by_element, workload.outputs)):
        return Expected(Reference(arrays), bounds)
    finite = _finite(arrays)
    if not callable(reference):
        return Expected(Reference(arrays, likely_conditions(finite, bounds)), bounds)
    compute, inputs = _recomputed(reference, args)
    conditions = estimate_conditions(compute, inputs, finite, bounds)
    terms = partial(estimate_terms, compute, inputs, finite)
    return Expected(Reference(arrays, conditions, terms=terms), bounds)


def _rounded(bound: ErrorBound, dtype: str) -> ErrorBound:
    """Return `USUAL` with rounding added for a result in half precision; others as they are."""
    if bound is not USUAL or dtype not in _HALVES:
        return bound
    unit = unit_roundoff(dtype)
    return replace(
        bound,
        max_relative=bound.max_relative + unit,
        normwise=bound.normwise + unit,
        rounding=unit,
    )


def _bounds_of(workload: Workload, names: Iterable[str]) -> dict[str, ErrorBound]:
    """Return the bounds of a result's parts, which are the outputs if their numbers agree."""
    places = list(names)
    if len(places) == len(workload.outputs):
        by_name = {f"result[{tensor.name!r}]": tensor for tensor in workload.outputs}
        tensors = [by_name.get(p, t) for p, t in zip(places, workload.outputs, strict=True)]
        return {p: workload.bound_of(t) for p, t in zip(places, tensors, strict=True)}
    return dict.fromkeys(places, workload.error_bound)


def _recomputed(
    reference: Callable[..., object], args: tuple[object, ...]
) -> tuple[Callable[[Mapping[str, Array]], dict[str, Values]], dict[str, Array]]:
    """Return the reference as a function of the floating-point arguments, and those arguments."""
    inputs = {
        str(place): host
        for place, value in enumerate(args)
        if is_array(value)
        and copied(value) is not value
        and (host := host_array(value, "An argument")).dtype.kind == "f"
    }

    def compute(changed: Mapping[str, Array]) -> dict[str, Values]:
        arguments = [copied(value) for value in args]
        for place, values in changed.items():
            overwrite(arguments[int(place)], values.astype(inputs[place].dtype))
        with ended_by_signals():
            return _finite(_arrays_of(reference(*arguments)))

    return compute, inputs


def _finite(arrays: Mapping[str, Values]) -> dict[str, Values]:
    return {name: np.where(np.isfinite(value), value, 0.0) for name, value in arrays.items()}


def _arrays_of(reference: object) -> dict[str, Values]:
    arrays: dict[str, Values] = {}
    for name, part in parts_of(reference, "result"):
        what = f"The reference of {name}"
        # A copy, because the callable may write into the same memory.
        array = np.array(numbers_of(np.ma.getdata(part) if np.ma.isMA(part) else part, what), float)
        if np.ma.isMA(part):
            array[np.ma.getmaskarray(part)] = UNTOUCHED
        arrays[name] = array
        if not array.size:
            raise ResultError(f"{what} is empty: nothing can be compared with it.")
        compared = ~is_untouched(array)
        if not compared.any():
            raise ResultError(f"{what} is masked as a whole: nothing can be compared with it.")
        if (undefined := compared & np.isnan(array)).any():
            first = np.argwhere(undefined)[0].tolist()
            raise ResultError(
                f"{what} is NaN, first at {first}: nothing can be compared with it. Mask what the "
                "callable leaves open, see numpy.ma."
            )
    if not arrays:
        raise ResultError("reference= is empty: nothing can be compared with it.")
    return arrays


def _called(reference: Callable[..., object], args: tuple[object, ...]) -> object:
    try:
        with ended_by_signals():
            return reference(*map(copied, args))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:2]  # the user's, next to ours
        place = "".join(f" in {Path(at.filename).name}, line {at.lineno}" for at in frames)
        raise ResultError(
            "reference= was called with the callable's arguments and raised "
            f"{type(error).__name__}{place}: {first_line(error)}."
        ) from None


def type_of(value: object) -> str:
    """Return the name of an array's element type, which NumPy may not have."""
    name = str(getattr(value, "dtype", ""))
    return BFLOAT16 if name.endswith(BFLOAT16) else name.rpartition(".")[2]


def copied(value: Any) -> Any:
    """Return ``value`` with its arrays copied, also those in tuples, lists and dictionaries."""
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    if is_tensor(value):
        return value.detach().clone()
    return value.copy() if is_array(value) and hasattr(value, "copy") else value


def parts_of(value: Any, name: str) -> Iterator[tuple[str, object]]:
    """Yield the parts of a tuple, list or dictionary with their places; otherwise ``value``."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from parts_of(part, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list) and _has_arrays(value):
        for index, part in enumerate(value):
            yield from parts_of(part, f"{name}[{index}]")
    else:
        yield name, value


def arrays_in(value: object, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in a value with their places, see `parts_of`."""
    return ((place, part) for place, part in parts_of(value, name) if is_array(part))


def contents_of(part: object) -> bytes:
    """Return the bytes of an array; empty if it cannot be read."""
    try:
        return host_array(part, "An argument").tobytes()
    except ResultError:
        return b""


def _has_arrays(value: object) -> bool:
    """Return whether nested lists contain arrays, rather than numbers that make up one array."""
    if isinstance(value, tuple | list):
        return any(map(_has_arrays, value))
    return isinstance(value, Mapping) or is_array(value)


def is_array(value: object) -> bool:
    """Return whether a value is an array of some library."""
    if isinstance(value, np.generic):  # a number, although it has the interface of an array
        return False
    names = ("__array__", "__cuda_array_interface__", "__dlpack__")
    return is_tensor(value) or any(hasattr(value, name) for name in names)


def is_tensor(value: object) -> bool:
    """Return whether a value looks like a PyTorch tensor; PyTorch is not imported."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def numbers_of(value: Any, what: str) -> Array:
    """Return ``value`` as an array of real numbers in host memory, possibly a view.

    Raises:
        ResultError: the value is not an array of real numbers.
    """
    array = host_array(value, what)
    if not _is_real(array.dtype):
        raise ResultError(
            f"{what} has type {type(value).__name__} and dtype {array.dtype}: only real numbers "
            "can be compared."
        )
    return array


def host_array(value: Any, what: str) -> Array:
    """Return ``value`` as an array in host memory, possibly a view.

    Raises:
        ResultError: NumPy cannot read the value.
    """
    try:
        return np.asarray(_on_host(value))
    except Exception as error:
        raise ResultError(
            f"{what} has type {type(value).__name__}, which cannot be read as a NumPy array "
            f"({first_line(error)}): use a PyTorch, CuPy or NumPy array."
        ) from None


def _is_real(dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "biuf":
        return True
    if dtype.kind != "V" or dtype.names is not None:
        return False
    try:  # other packages add types such as bfloat16 to NumPy
        np.zeros(1, dtype).astype(np.float64)
    except (TypeError, ValueError):
        return False
    return True


def _on_host(value: Any) -> Any:
    """Return ``value`` in a form that NumPy can read."""
    if is_tensor(value):
        tensor = value.detach().cpu()
        try:
            return tensor.numpy()
        except TypeError:  # NumPy has no bfloat16
            return tensor.float().numpy()
    on_cuda = hasattr(value, "__cuda_array_interface__")
    if hasattr(value, "get") and (on_cuda or not hasattr(value, "__array__")):  # CuPy
        return value.get()
    if hasattr(value, "__array__"):
        return value
    if on_cuda:
        import cupy

        return cupy.asarray(value).get()
    if hasattr(value, "__dlpack__"):
        if value.__dlpack_device__()[0] != _CUDA:
            return np.from_dlpack(value)
        import cupy

        return cupy.from_dlpack(value).get()
    return value


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a period."""
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")


def overwrite(value: Any, content: Array) -> None:
    """Write ``content`` into an array, on the current stream of its library.

    Raises:
        Exception: whatever the array's library raises if the array cannot be written to.
    """
    if is_tensor(value):
        # PyTorch allows writes to an inference tensor only in this mode.
        inference = value.is_inference()
        with sys.modules["torch"].inference_mode() if inference else nullcontext():
            value.detach().copy_(value.new_tensor(content))
    elif hasattr(value, "__cuda_array_interface__"):
        import cupy

        cupy.asarray(value)[...] = cupy.asarray(content)
    else:
        value[...] = content


def overlap(one: Any, other: Any) -> bool:
    """Return whether two arrays may share memory."""
    (begin, end), (other_begin, other_end) = _addresses(one), _addresses(other)
    return begin < other_end and other_begin < end


def _addresses(value: Any) -> tuple[int, int]:
    """Return an array's first address and the one past its last; 0 for both if unknown."""
    if is_tensor(value):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    for name in ("__cuda_array_interface__", "__array_interface__"):
        if (interface := getattr(value, name, None)) is not None:
            return _addresses_in(interface)
    return 0, 0


def _addresses_in(interface: dict[str, Any]) -> tuple[int, int]:
    shape = interface["shape"]
    item = np.dtype(interface["typestr"]).itemsize
    start = interface["data"][0]
    if not math.prod(shape):
        return start, start
    strides = interface.get("strides") or [
        item * math.prod(shape[k + 1 :]) for k in range(len(shape))
    ]
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0) + item
