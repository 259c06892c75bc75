"""A callable's result and its reference as NumPy arrays, whichever device they are on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.engine.comparison import compare
from pytest_gpuenergy.record.correctness import Correctness
from pytest_gpuenergy.support.errors import ResultError
from pytest_gpuenergy.workloads.workload import Array, ErrorBound

_CUDA = 2  # kDLCUDA of DLPack


@dataclass(frozen=True)
class Expected:
    """What a callable must return.

    Attributes:
        arrays: float64 copies in host memory, by their places in the result: ``result``, or
            ``result[0]``, ``result['x']`` and so on.
        bound: the largest error allowed for each, see `compare`.
    """

    arrays: Mapping[str, npt.NDArray[np.float64]]
    bound: ErrorBound

    def check(self, returned: object) -> Correctness:
        """Compare what the callable returned.

        Raises:
            ResultError: it is not an array of numbers, or has other parts or shapes.
            KernelFault: its error exceeds the bound, see `compare`.
        """
        parts = dict(parts_of(returned, "result"))
        if parts.keys() != self.arrays.keys():
            raise ResultError(
                f"The callable returned {', '.join(parts) or 'nothing'}, but reference= has "
                f"{', '.join(self.arrays)}: both must be arrays, or tuples, lists or dictionaries "
                "of the same structure."
            )
        found = {name: numbers_of(part, f"The callable's {name}") for name, part in parts.items()}
        for name, expected in self.arrays.items():
            if found[name].shape != expected.shape:
                raise ResultError(
                    f"The callable's {name} has shape {found[name].shape}, but its reference has "
                    f"shape {expected.shape}: they must be the same."
                )
        errors = compare(found, self.arrays, dict.fromkeys(found, self.bound), seed=0)
        return Correctness(
            errors.max_relative, errors.normwise, self.bound.max_relative, self.bound.normwise, ()
        )


def expect(reference: object, args: tuple[object, ...], bound: ErrorBound) -> Expected:
    """Make `Expected` from the user's ``reference=``.

    Args:
        reference: an array on any device, nested lists of numbers, a tuple, list or dictionary of
            arrays, or a function that returns one of these. A function is called immediately, with
            copies of the arrays among ``args``, so that the callable sees none of its changes.
        args: the callable's arguments.
        bound: see `Expected`.

    Raises:
        ResultError: the function raises, or the reference has something other than finite numbers.
    """
    if callable(reference):
        reference = _called(reference, args)
    arrays = {}
    for name, part in parts_of(reference, "result"):
        what = f"The reference of {name}"
        # A copy, because the callable may write into the same memory.
        arrays[name] = array = np.array(numbers_of(part, what), dtype=np.float64)
        if not array.size:
            raise ResultError(f"{what} is empty: nothing can be compared with it.")
        if not (finite := np.isfinite(array)).all():
            first = np.argwhere(~finite)[0].tolist()
            raise ResultError(
                f"{what} is NaN or infinite, first at {first}: nothing can be compared with it."
            )
    if not arrays:
        raise ResultError("reference= is empty: nothing can be compared with it.")
    return Expected(arrays, bound)


def _called(reference: Callable[..., object], args: tuple[object, ...]) -> object:
    try:
        return reference(*map(_copied, args))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:2]  # the user's, next to ours
        place = "".join(f" in {Path(at.filename).name}, line {at.lineno}" for at in frames)
        raise ResultError(
            "reference= was called with the callable's arguments and raised "
            f"{type(error).__name__}{place}: {_first_line(error)}."
        ) from None


def _copied(value: Any) -> Any:
    """``value`` with its arrays copied, also those in tuples, lists and dictionaries."""
    if type(value) in (tuple, list):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(part) for key, part in value.items()}
    if is_tensor(value):
        return value.detach().clone()
    return value.copy() if is_array(value) and hasattr(value, "copy") else value


def parts_of(value: Any, name: str) -> Iterator[tuple[str, object]]:
    """The arrays of a tuple, list or dictionary with their places; otherwise ``value`` itself."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from parts_of(part, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list) and _has_arrays(value):
        for index, part in enumerate(value):
            yield from parts_of(part, f"{name}[{index}]")
    else:
        yield name, value


def _has_arrays(value: object) -> bool:
    """Whether nested lists hold arrays, rather than numbers that make up one array."""
    if isinstance(value, tuple | list):
        return any(map(_has_arrays, value))
    return isinstance(value, Mapping) or is_array(value)


def is_array(value: object) -> bool:
    """Whether it is an array of some library."""
    if isinstance(value, np.generic):  # a number with the interface of an array
        return False
    names = ("__array__", "__cuda_array_interface__", "__dlpack__")
    return is_tensor(value) or any(hasattr(value, name) for name in names)


def is_tensor(value: object) -> bool:
    """Whether it has the methods of PyTorch's tensors, which need not be installed."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def numbers_of(value: Any, what: str) -> Array:
    """``value`` as an array of real numbers in host memory, which the two may share.

    Raises:
        ResultError: it is not one.
    """
    array = host_array(value, what)
    if not _is_real(array.dtype):
        raise ResultError(
            f"{what} has type {type(value).__name__} and dtype {array.dtype}: only real numbers "
            "can be compared."
        )
    return array


def host_array(value: Any, what: str) -> Array:
    """``value`` as an array in host memory, which the two may share.

    Raises:
        ResultError: NumPy cannot read it.
    """
    try:
        return np.asarray(_on_host(value))
    except Exception as error:
        raise ResultError(
            f"{what} has type {type(value).__name__}, which cannot be read as a NumPy array "
            f"({_first_line(error)}): use a PyTorch, CuPy or NumPy array."
        ) from None


def _is_real(dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "biuf":
        return True
    if dtype.kind != "V" or dtype.names is not None:
        return False
    try:  # bfloat16 and the like are types that other packages add to NumPy
        np.zeros(1, dtype).astype(np.float64)
    except (TypeError, ValueError):
        return False
    return True


def _on_host(value: Any) -> Any:
    """``value`` in a form that NumPy can read."""
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


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
