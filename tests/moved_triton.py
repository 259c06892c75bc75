"""Triton kernels that moves rewrite, and as much of Triton as they use, on NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_triton import Block, Pointer
from move_checks import spec_of

from pytest_gpuenergy.search import KernelSpec, State, evaluate

_HEAD = """
import triton
import triton.language as tl

@triton.jit
"""

ADD = f"""{_HEAD}
def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)  # one
    y = tl.load(
        y_ptr + offs,
        mask=(offs < n),
        other=0.0,  # beyond the end
    )
    tl.store(out_ptr + offs, x + y, mask=mask)
"""

SOFTMAX = f"""{_HEAD}
def kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, mask=(c < cols), other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    total = tl.sum(e, axis=0)
    tl.store(y_ptr + row * cols + c, (e + 0.0) / total, mask=(c < cols))
"""

LOOPED_SOFTMAX = f"""{_HEAD}
def kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0) * cols
    largest = -float("inf")
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x_ptr + row + at, mask=at < cols, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(values, axis=0))
    total = 0.0
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x_ptr + row + at, mask=at < cols, other=-float("inf"))
        total += tl.sum(tl.exp(values - largest), axis=0)
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x_ptr + row + at, mask=at < cols, other=0.0)
        tl.store(y_ptr + row + at, tl.exp(values - largest) / total, mask=at < cols)
"""

NORM = f"""{_HEAD}
def kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, c < cols, 0.0)
    squares = tl.sum(x * x, axis=0)
    scale = 1.0 / tl.sqrt(squares / cols + 1e-6)
    tl.store(y_ptr + row * cols + c, x * scale + x / tl.sqrt(squares), c < cols)
"""

GEMM = f"""{_HEAD}
def kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m = tl.program_id(1)
    pid_n = tl.program_id(0)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, k, BK):
        inner = k0 + rk
        a = tl.load(
            a_ptr + rm[:, None] * k + inner[None, :],
            mask=(rm[:, None] < m) & (inner[None, :] < k),
            other=0.0,
        )
        b = tl.load(
            b_ptr + inner[:, None] * n + rn[None, :],
            mask=(inner[:, None] < k) & (rn[None, :] < n),
            other=0.0,
        ).to(tl.float32)
        acc += tl.sum(a.to(tl.float32)[:, :, None] * b[None, :, :], axis=1)
    tl.store(c_ptr + rm[:, None] * n + rn[None, :], acc, mask=(rm[:, None] < m) & (rn[None, :] < n))
"""

IN_ONE_DIMENSION = GEMM.replace(
    "    pid_m = tl.program_id(1)\n    pid_n = tl.program_id(0)\n",
    "    pid = tl.program_id(0)\n    across = tl.cdiv(n, BN)\n"
    "    pid_m = pid // across\n    pid_n = pid % across\n",
)

_TILES = {"BM": 32, "BN": 32, "BK": 16}


def _spec(source: str, *arguments: Any, **named: Any) -> KernelSpec:
    return spec_of(source, *arguments, block=(), language="triton", **named)


def _gemm(source: str, grid: tuple[str, ...], m: int, n: int, k: int) -> KernelSpec:
    return _spec(
        source,
        ("a[M, K]", "b[K, N]", ">c[M, N]"),
        scalars=("m", "n", "k"),
        grid=grid,
        constants=_TILES,
        sizes=({"M": m, "N": n, "K": k},),
        dtypes={"a": "float16", "b": "float16"},
    )


def add_of(*sizes: int) -> KernelSpec:
    """A sum of vectors of these lengths."""
    return _spec(
        ADD,
        ("x[N]", "y[N]", ">out[N]"),
        scalars=("n",),
        grid=("ceil_div(N, BLOCK)",),
        constants={"BLOCK": 64},
        sizes=[{"N": size} for size in sizes],
    )


def rows_of(source: str, cols: int) -> KernelSpec:
    """A kernel with a program for each row."""
    return _spec(
        source,
        ("x[R, COLS]", ">y[R, COLS]"),
        scalars=("cols",),
        grid=("R",),
        constants={"BLOCK": 64},
        sizes=({"R": 3, "COLS": cols},),
    )


GRID = ("ceil_div(N, BN)", "ceil_div(M, BM)")
LINE = ("ceil_div(N, BN) * ceil_div(M, BM)",)
SPECS = {
    "add": add_of(128, 640),
    "add with tails": add_of(100, 640),
    "softmax": rows_of(SOFTMAX, 50),
    "whole softmax": rows_of(SOFTMAX, 64),
    "looped softmax": rows_of(LOOPED_SOFTMAX, 200),
    "norm": rows_of(NORM, 64),
    "gemm": _gemm(GEMM, GRID, 200, 100, 40),
    "whole gemm": _gemm(GEMM, GRID, 192, 96, 48),
    "gemm in one dimension": _gemm(IN_ONE_DIMENSION, LINE, 200, 100, 40),
}
"""By name."""


class _Addresses(Pointer):
    def __add__(self, offsets: Any) -> _Addresses:
        return _Addresses(self.memory, self.at + offsets)


def _load(pointer: Any, mask: Any = True, other: float = 0.0, cache_modifier: str = "") -> Any:
    assert cache_modifier in ("", ".cg", ".ca")
    pointer.at = np.asarray(pointer.at)
    return pointer.load(mask, other).view(Block)


def _store(pointer: Any, value: Any, mask: Any = True) -> None:
    pointer.store(np.asarray(value), mask)


def _swizzled(i: Any, j: Any, rows: int, columns: int, group: int) -> tuple[Any, Any]:
    """As `triton.language.swizzle2d` is documented."""
    place = i * columns + j
    first = place // (group * columns) * group
    height = min(rows - first, group)
    within = place % (group * columns)
    return first + within % height, within // height


def _range(*ends: int, num_stages: int = 3) -> range:
    assert 2 <= num_stages <= 5
    return range(*ends)


def run(state: State, spec: KernelSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs for the first set of sizes."""
    names = {**spec.sizes[0], **state.launch.constants}
    grid = [evaluate(size, names) for size in (*state.launch.grid, 1)[:2]]
    arrays = dict(inputs)
    for tensor in spec.tensors:
        if tensor.role == "output":
            shape = [evaluate(size, names) for size in tensor.shape]
            arrays[tensor.name] = np.full(shape, np.nan, tensor.dtype)
    place = [0, 0]
    language = SimpleNamespace(
        constexpr=object,
        float16=np.float16,
        float32=np.float32,
        program_id=lambda axis: place[axis],
        num_programs=lambda axis: grid[axis],
        arange=np.arange,
        cdiv=lambda a, b: -(-a // b),
        zeros=lambda shape, dtype: np.zeros(shape, dtype).view(Block),
        load=_load,
        store=_store,
        max=np.max,
        sum=np.sum,
        maximum=np.maximum,
        exp=np.exp,
        exp2=np.exp2,
        sqrt=np.sqrt,
        rsqrt=lambda x: 1 / np.sqrt(x),
        dot=lambda a, b: a.astype("f4") @ b.astype("f4"),
        swizzle2d=_swizzled,
        range=_range,
    )
    module: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        triton = SimpleNamespace(jit=lambda function: function, language=language)
        patch.setitem(sys.modules, "triton", triton)
        patch.setitem(sys.modules, "triton.language", language)
        exec(compile(state.source, "kernel", "exec"), module)
        values = {one.name: evaluate(one.value, names) for one in spec.scalars}  # type: ignore[arg-type]
        for place[1] in range(grid[1]):
            for place[0] in range(grid[0]):
                arguments = [
                    _Addresses(arrays[name].reshape(-1)) if name in arrays else values[name]
                    for name in spec.arguments
                ]
                module["kernel"](*arguments, **state.launch.constants)
    return {name: array for name, array in arrays.items() if name not in inputs}
