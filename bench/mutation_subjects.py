"""Kernels to mutate, each with the workload that says what is right: ours, and the bundled ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_gpuenergy.kernels import Dim3, Kernel, Launch
from pytest_gpuenergy.tuners import KernelStore, load_records
from pytest_gpuenergy.tuning import find_records
from pytest_gpuenergy.workloads import Array, Contract, Scalar, Tensor, Workload, find_workload

KERNELS = Path(__file__).parent / "mutation_kernels"
RECORDS = Path(__file__).parent / "records"
GPU = "NVIDIA H200"

Values = Mapping[str, Array]


@dataclass(frozen=True)
class Subject:
    """A correct kernel and its workload."""

    name: str
    kernel: Kernel
    workload: Workload


@dataclass(frozen=True)
class _Shape:
    """How `mutation_kernels` are called: ``launches`` are (entry, grid, block, arguments)."""

    tensors: tuple[Tensor, ...]
    compute: Callable[[Values], Values]
    launches: tuple[tuple[str, Dim3, Dim3, str], ...]
    values: tuple[Scalar, ...] = ()
    workspaces: tuple[Tensor, ...] = ()
    terms: int = 1
    init: tuple[tuple[str, tuple[float, float]], ...] = ()


def _in(name: str, *shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(name, shape, dtype, "input")


def _out(name: str, *shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(name, shape, dtype, "output")


def _whole(**values: int) -> tuple[Scalar, ...]:
    return tuple(Scalar(name, "int32", value) for name, value in values.items())


def _axpy(v: Values) -> Values:
    return {"y": 1.5 * v["x"] + v["z"]}


def _total(v: Values) -> Values:
    return {"y": v["x"].sum(keepdims=True)}


def _row_sums(v: Values) -> Values:
    return {"y": v["x"].sum(axis=1)}


def _softmax(v: Values) -> Values:
    powers = np.exp(v["x"] - v["x"].max(axis=1, keepdims=True))
    return {"y": powers / powers.sum(axis=1, keepdims=True)}


def _transpose(v: Values) -> Values:
    return {"y": v["x"].T}


def _gemm(v: Values) -> Values:
    return {"c": v["a"] @ v["b"]}


def _histogram(v: Values) -> Values:
    return {"counts": np.bincount(v["x"] // 2, minlength=64)}


def _scan(v: Values) -> Values:
    return {"y": v["x"].reshape(-1, 128).cumsum(axis=1).reshape(-1)}


def _stencil(v: Values) -> Values:
    return {"y": np.correlate(np.pad(v["x"], 2), v["weights"], "valid")}


def _layer_norm(v: Values) -> Values:
    x = v["x"]
    apart = x - x.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((apart**2).mean(axis=1, keepdims=True) + np.float32(1e-5))
    return {"y": apart * scale * v["gain"] + v["bias"]}


def _quantize(v: Values) -> Values:
    scaled = (v["x"].astype(np.float32) * np.float32(50)).astype(np.float64)
    return {"y": np.clip(np.rint(scaled), 0, 127)}


_SHAPES = {
    "axpy": _Shape(
        (_in("x", 1000), _in("z", 1000), _out("y", 1000)), _axpy,
        (("axpy", (3, 1, 1), (64, 1, 1), "x z y a n"),),
        (Scalar("a", "float32", 1.5), *_whole(n=1000)),
    ),
    "total": _Shape(
        (_in("x", 5000), _out("y", 1)), _total,
        (("partial", (16, 1, 1), (128, 1, 1), "x sums n"),
         ("total", (1, 1, 1), (16, 1, 1), "sums y")),
        _whole(n=5000), (Tensor("sums", (16,), "float32", "workspace"),), terms=5000,
    ),
    "row_sums": _Shape(
        (_in("x", 30, 100), _out("y", 30)), _row_sums,
        (("row_sums", (8, 1, 1), (128, 1, 1), "x y rows columns"),),
        _whole(rows=30, columns=100), terms=100,
    ),
    "softmax": _Shape(
        (_in("x", 12, 200), _out("y", 12, 200)), _softmax,
        (("softmax", (12, 1, 1), (64, 1, 1), "x y columns"),), _whole(columns=200), terms=200,
    ),
    "transpose": _Shape(
        (_in("x", 50, 70), _out("y", 70, 50)), _transpose,
        (("transpose", (5, 4, 1), (16, 16, 1), "x y rows columns"),), _whole(rows=50, columns=70),
    ),
    "gemm": _Shape(
        (_in("a", 40, 56), _in("b", 56, 24), _out("c", 40, 24)), _gemm,
        (("gemm", (2, 3, 1), (16, 16, 1), "a b c m n k"),), _whole(m=40, n=24, k=56), terms=56,
    ),
    "histogram": _Shape(
        (_in("x", 3000, dtype="int32"), _out("counts", 64, dtype="int32")), _histogram,
        (("clear", (1, 1, 1), (64, 1, 1), "counts"),
         ("histogram", (6, 1, 1), (96, 1, 1), "x counts n")),
        _whole(n=3000), init=(("x", (0, 128)),),
    ),
    "scan": _Shape(
        (_in("x", 1280), _out("y", 1280)), _scan,
        (("scan", (10, 1, 1), (128, 1, 1), "x y"),), terms=128,
    ),
    "stencil": _Shape(
        (_in("x", 500), _in("weights", 5), _out("y", 500)), _stencil,
        (("stencil", (8, 1, 1), (64, 1, 1), "x weights y n"),), _whole(n=500), terms=5,
    ),
    "layer_norm": _Shape(
        (_in("x", 24, 96), _in("gain", 96), _in("bias", 96), _out("y", 24, 96)), _layer_norm,
        (("layer_norm", (6, 1, 1), (32, 4, 1), "x gain bias y columns epsilon"),),
        (*_whole(columns=96), Scalar("epsilon", "float32", 1e-5)), terms=96,
    ),
    "quantize": _Shape(
        (_in("x", 1000), _out("y", 1000, dtype="int8")), _quantize,
        (("quantize", (8, 1, 1), (128, 1, 1), "x y scale n"),),
        (Scalar("scale", "float32", 50.0), *_whole(n=1000)),
    ),
}  # fmt: skip

OWN = tuple(_SHAPES)
"""Names of the kernels in `mutation_kernels`."""


def own_subject(name: str) -> Subject:
    """A kernel of `mutation_kernels`."""
    shape = _SHAPES[name]
    launches = tuple(
        Launch(entry, grid, block, tuple(arguments.split()))
        for entry, grid, block, arguments in shape.launches
    )
    kernel = Kernel((KERNELS / f"{name}.cu").read_text(), launches, workspaces=shape.workspaces)
    workload = Contract(
        name,
        shape.tensors,
        shape.compute,
        values=shape.values,
        reduction_length=shape.terms,
        init=dict(shape.init),
    )
    return Subject(name, kernel, workload)


def bundled_subjects(workload: str, ranks: Sequence[int] | None) -> list[Subject]:
    """The kernels of a workload's record file, those of ``ranks`` or all; they need TVM once.

    Raises:
        InputError: no such workload, record file or rank; or TVM is needed and missing.
    """
    known = find_workload(workload)
    file = load_records(find_records(RECORDS, known, GPU))
    with KernelStore() as store:
        return [
            Subject(f"{workload}-k{rank:02d}", store.kernel(file, rank), known)
            for rank in ranks or [record.rank for record in file.records]
        ]
