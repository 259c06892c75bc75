"""Arrays that behave as CuPy's do towards NumPy: its functions take them, but no mixture.

`StrictArrays` are those of a device, whose memory processes may be able to share.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_gpuenergy.devices import DeviceArrays
from pytest_gpuenergy.support import DeviceError


class StrictArray(np.lib.mixins.NDArrayOperatorsMixin):
    """As much of an array's interface as NumPy and CuPy share."""

    def __init__(self, values: Any, arrays: StrictArrays) -> None:
        self.values, self.arrays = np.asarray(values), arrays

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return self._applied(getattr(ufunc, method), inputs, named)

    def __array_function__(self, function: Any, types: Any, given: Any, named: Any) -> Any:
        if any(issubclass(one, np.ndarray) for one in types):
            return NotImplemented
        return self._applied(function, given, named)

    def _applied(self, function: Any, given: Any, named: Any) -> Any:
        self.arrays.check()
        if function is np.asarray:  # takes the host's too
            (value,) = given
            return self._wrapped(function(getattr(value, "values", value), **named))
        return self._wrapped(
            function(*map(_plain, given), **{name: _plain(one) for name, one in named.items()})
        )

    def _wrapped(self, result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(self._wrapped, result))
        return (
            StrictArray(result, self.arrays)
            if isinstance(result, np.ndarray | np.generic)
            else result
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.values, name)
        if not callable(value):
            return self._wrapped(value) if isinstance(value, np.ndarray) else value

        def method(*given: Any, **named: Any) -> Any:
            assert not {"initial", "where"} & set(named), f"CuPy's {name} has no such argument"
            return value(*given) if name == "tolist" else self._applied(value, given, named)

        return method

    def __getitem__(self, key: Any) -> Any:
        return self._applied(self.values.__getitem__, (key,), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self._applied(self.values.__setitem__, (key, value), {})

    def __float__(self) -> float:
        return float(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __bool__(self) -> bool:
        return bool(self.values)


def _plain(value: Any) -> Any:
    if isinstance(value, StrictArray):
        return value.values
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value


class StrictArrays(DeviceArrays):
    """A device's arrays, which may only be used where they are said to be."""

    def __init__(self, *, shared: bool = False) -> None:
        self.puts = 0
        self.memories = 0
        self._shared = shared
        self._users: Counter[int] = Counter()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        self._users[threading.get_ident()] += 1
        try:
            yield
        finally:
            self._users[threading.get_ident()] -= 1

    def put(self, array: Any) -> Any:
        self.check()
        if isinstance(array, StrictArray):
            return array
        assert isinstance(array, np.ndarray)
        self.puts += 1
        return StrictArray(array.copy(), self)

    def get(self, array: Any) -> Any:
        assert isinstance(array, StrictArray)
        return array.values.copy()

    def memory(self, nbytes: int) -> StrictMemory:
        if not self._shared:
            raise DeviceError("Processes cannot share the GPU's memory here.")
        self.memories += 1
        return StrictMemory(self, nbytes)

    def check(self) -> None:
        assert self._users[threading.get_ident()], "Another device may be the current one."


class StrictMemory:
    """Memory of such a device."""

    in_place = True

    def __init__(self, arrays: StrictArrays, nbytes: int) -> None:
        self.arrays = arrays
        self._image = StrictArray(np.zeros(nbytes, np.uint8), arrays)

    def image(self, *, writable: bool = False) -> Any:
        del writable
        return self._image
