"""Other libraries' arrays as NumPy arrays, whichever device they are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pytest_gpuenergy.support import ResultError
from pytest_gpuenergy.workloads import BFLOAT16, Array

_CUDA = 2  # kDLCUDA of DLPack


def type_of(value: object) -> str:
    """The name of an array's type of elements, also where NumPy does not have it."""
    name = str(getattr(value, "dtype", ""))
    return BFLOAT16 if name.endswith(BFLOAT16) else name.rpartition(".")[2]


def copied(value: Any) -> Any:
    """``value`` with its arrays copied, also those in tuples, lists and dictionaries."""
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
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


def arrays_in(value: object, name: str) -> Iterator[tuple[str, Any]]:
    """The arrays in a value with their places, see `parts_of`."""
    return ((place, part) for place, part in parts_of(value, name) if is_array(part))


def contents_of(part: object) -> bytes:
    """The contents of an array; empty if it cannot be read."""
    try:
        return host_array(part, "An argument").tobytes()
    except ResultError:
        return b""


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
            f"({first_line(error)}): use a PyTorch, CuPy or NumPy array."
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


def first_line(error: Exception) -> str:
    """The first line of an error's message, without a period."""
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
