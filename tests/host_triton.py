"""The part of Triton that our kernels use, on NumPy arrays: one program after another."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices.cuda import binders


class Block(np.ndarray[Any, Any]):
    """A block of values."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


class Pointer:
    """Addresses of elements of an array."""

    def __init__(self, memory: Any, at: Any = 0) -> None:
        self.memory, self.at = memory, at
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, offsets: Any) -> Pointer:
        return Pointer(self.memory, self.at + offsets)

    def load(self, mask: Any, other: float) -> Any:
        shape = np.shape(self.at)
        mask = np.broadcast_to(mask, shape)
        block = np.full(shape, other, self.memory.dtype).view(Block)
        block[mask] = self.memory[self._inside(mask)]
        return block

    def store(self, value: Any, mask: Any) -> None:
        mask = np.broadcast_to(mask, self.at.shape)
        self.memory[self._inside(mask)] = value[mask]

    def _inside(self, mask: Any) -> Any:
        at = np.asarray(self.at)[mask]
        assert not at.size or (at.min() >= 0 and at.max() < self.memory.size)
        return at


class Jit:
    """A decorated function; ``function[grid](*arguments, **constants)`` runs all of its programs.

    Arguments are flat arrays and numbers.
    """

    program = programs = (0, 0, 0)

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def run(*arguments: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
            del num_warps, num_stages
            values = [Pointer(one) if isinstance(one, np.ndarray) else one for one in arguments]
            Jit.programs = grid
            for Jit.program in product(*map(range, grid)):
                with np.errstate(over="ignore"):  # masked elements may overflow
                    self._function(*values, **constants)

        return run


LANGUAGE = SimpleNamespace(
    constexpr=lambda value: value,
    float16=np.float16,
    float32=np.float32,
    program_id=lambda axis: Jit.program[axis],
    num_programs=lambda axis: Jit.programs[axis],
    cdiv=lambda a, b: -(-a // b),
    range=range,
    arange=np.arange,
    zeros=lambda shape, dtype: np.zeros(shape, dtype).view(Block),
    load=lambda pointer, mask=True, other=0.0: pointer.load(mask, other),
    store=lambda pointer, value, mask: pointer.store(value, mask),
    where=np.where,
    maximum=np.maximum,
    exp=np.exp,
    erf=lambda block: np.vectorize(math.erf, otypes=["f4"])(block).view(Block),
    sqrt=np.sqrt,
    max=lambda block, axis: block.max(axis=axis),
    sum=lambda block, axis: block.sum(axis=axis),
    dot=lambda a, b, total=0, **_: total + a.astype("f4") @ b.astype("f4"),
)


@contextmanager
def host_triton() -> Iterator[None]:
    """Within the context, replace Triton by this stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton", SimpleNamespace(jit=Jit, language=LANGUAGE))
        patch.setitem(sys.modules, "triton.language", LANGUAGE)
        binders._triton_function.cache_clear()
        yield
        binders._triton_function.cache_clear()
