"""The part of nvmath's cuBLASLt that the worker uses, computing on the host's memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices.cuda import cublaslt as cublas
from pytest_gpuenergy.workloads import activated, numbers, rounded_to, stored_as

ALGORITHM = np.dtype([("data_", "<u8", (8,))])
RESULT = np.dtype(
    [
        ("algo", ALGORITHM),
        ("workspace_size", "<u8"),
        ("state", "<i4"),
        ("waves_count", "<f4"),
        ("reserved", "<i4", (4,)),
    ]
)
TYPES = {
    0: ("float32", 4),
    2: ("float16", 2),
    14: ("bfloat16", 2),
    28: ("float8_e4m3fn", 1),
}
ON_TENSOR_CORES = 100
"""The number from which algorithms say that they use tensor cores."""

ComputeType = IntEnum("ComputeType", {"COMPUTE_32F": 68, "COMPUTE_32F_FAST_TF32": 77})
Config = IntEnum("Config", [name for name, _ in cublas._CONFIGURATION.values()], start=0)
Cap = IntEnum("Cap", ["NUMERICAL_IMPL_FLAGS"])
ALIGNED = [f"MIN_ALIGNMENT_{name}_BYTES" for name in "ABCD"]
Preference = IntEnum("Preference", ["MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK", *ALIGNED])
Operation = IntEnum(
    "Operation",
    [
        *("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "BIAS_BATCH_STRIDE", "FAST_ACCUM"),
        *(f"{operand}_SCALE_{what}" for operand in "AB" for what in ("POINTER", "MODE")),
    ],
)
LayoutAttribute = IntEnum("LayoutAttribute", ["BATCH_COUNT", "STRIDED_BATCH_OFFSET"])


class CublasError(Exception):
    """A status of cuBLASLt or cuBLAS."""


class Results(np.ndarray[Any, Any]):
    """Heuristic results in memory that cuBLASLt writes."""

    def __new__(cls, count: int = 1) -> Results:
        return np.zeros(count, RESULT).view(cls)

    @property
    def ptr(self) -> int:
        return int(self.ctypes.data)


@dataclass
class HostCublas:
    """What the process's cuBLASLt offers and does.

    Attributes:
        offered: an algorithm's number and the bytes of its workspace, for each. Those with a
            workspace split sums.
        run: does the work of a launch.
        queries: of its heuristics so far.
        refused: numbers of algorithms that it does not have for these matrices.
        loads: whether there is a library behind nvmath.
        launched: numbers of the algorithms that were launched.
        calls: what cuBLAS was told before it multiplied groups.
    """

    offered: list[tuple[int, int]]
    run: Callable[[Callable[[], None]], None] = lambda launch: launch()
    version: int = 130100
    queries: int = 0
    refused: tuple[int, ...] = ()
    loads: bool = True
    launched: set[int] = field(default_factory=set)
    objects: list[Any] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)

    @property
    def module(self) -> Any:
        """The stand-in for ``nvmath.bindings.cublasLt``."""
        shape = IntEnum("Shape", {"SHAPE_AUTO": 0, "SHAPE_2x1x1": 3})
        return SimpleNamespace(
            cuBLASLtError=CublasError,
            matmul_algo_dtype=ALGORITHM,
            matmul_heuristic_result_dtype=RESULT,
            MatmulHeuristicResult=Results,
            MatmulAlgoConfigAttribute=Config,
            MatmulAlgoCapAttribute=Cap,
            MatmulPreferenceAttribute=Preference,
            MatmulDescAttribute=Operation,
            MatrixLayoutAttribute=LayoutAttribute,
            MatmulTile=IntEnum("Tile", {"TILE_128x64": 1}),
            MatmulStages=shape,
            MatmulInnerShape=shape,
            ClusterShape=shape,
            get_matmul_algo_config_attribute_dtype=lambda _: np.uint32,
            get_matmul_algo_cap_attribute_dtype=lambda _: np.uint64,
            create=self._create,
            get_version=lambda: self.version,
            matmul_desc_create=lambda compute, _: self._made(
                {"compute": compute, "TRANSA": 0, "TRANSB": 0}
            ),
            matmul_desc_set_attribute=self._set,
            matmul_preference_create=lambda: self._made({}),
            matmul_preference_set_attribute=self._set,
            matmul_preference_destroy=lambda _: None,
            matrix_layout_create=lambda *layout: self._made({"layout": layout, "BATCH_COUNT": 1}),
            matrix_layout_set_attribute=self._set,
            matmul_algo_get_heuristic=self._heuristic,
            matmul_algo_check=self._check,
            matmul_algo_config_get_attribute=self._config,
            matmul_algo_cap_get_attribute=self._cap,
            matmul=self._matmul,
        )

    @property
    def cublas(self) -> Any:
        """The stand-in for ``nvmath.bindings.cublas``."""
        return SimpleNamespace(
            ComputeType=ComputeType,
            cuBLASError=CublasError,
            create=self._create,
            set_stream=lambda _, stream: self.calls.append(("stream", stream)),
            set_workspace=lambda _, __, size: self.calls.append(("workspace", size)),
            gemm_grouped_batched_ex=self._grouped,
        )

    def _grouped(
        self, _: int, transa: Any, transb: Any, m: Any, n: Any, k: Any, *rest: Any
    ) -> None:
        alpha, first, _, lda, second, _, ldb, beta, result, kind, ldc, count, sizes, _ = rest
        if 7 in self.refused:
            raise CublasError("NOT_SUPPORTED (15)")
        assert sizes == [1] * count
        assert set(at(alpha, np.dtype("f4"), count)) == {1.0}
        assert set(at(beta, np.dtype("f4"), count)) == {0.0}
        turned = np.array([transa, transb, [0] * count])
        shapes = [[(m, k), (k, n), (m, n)] for m, n, k in zip(m, n, k, strict=True)]
        tensors = list(zip((first, second, result), (lda, ldb, ldc), strict=True))

        def multiply() -> None:
            for group in range(count):
                one, other, product = (
                    self._made({"layout": (kind, *shape[:: -1 if turn else 1], leading[group])})
                    for shape, turn, (_, leading) in zip(
                        shapes[group], turned[:, group], tensors, strict=True
                    )
                )
                a, b, c = (
                    int(at(pointers, np.dtype("u8"), count)[group]) for pointers, _ in tensors
                )
                left, right = self._numbers(a, one, 0), self._numbers(b, other, 0)
                left = left.T if transa[group] else left
                right = right.T if transb[group] else right
                self._stored(c, product, 0)[:] = rounded_to(left @ right, TYPES[kind][0])

        self.run(multiply)

    def _create(self) -> int:
        if not self.loads:
            raise RuntimeError("Failure finding libcublasLt.so.")
        return 1

    def _made(self, one: Any) -> int:
        self.objects.append(one)
        return len(self.objects) - 1

    def _set(self, handle: int, attribute: IntEnum, address: int, size: int) -> None:
        self.objects[handle][attribute.name] = int.from_bytes(
            ctypes.string_at(address, size), "little"
        )

    def _heuristic(self, _: int, *arguments: int) -> None:
        *_, preference, most, address, count = arguments
        self.queries += 1
        splits = {2: True, 0: False}[self.objects[preference]["REDUCTION_SCHEME_MASK"]]
        most_bytes = self.objects[preference]["MAX_WORKSPACE_BYTES"] if splits else 0
        fitting = [one for one in self.offered if one[1] <= most_bytes][:most]
        if not fitting:
            raise CublasError("NOT_SUPPORTED (15)")
        results = at(address, RESULT, len(fitting))
        for result, (number, workspace) in zip(results, fitting, strict=True):
            result["algo"]["data_"][0] = number
            result["algo"]["data_"][4] = self.queries  # cuBLASLt leaves bytes as they were
            result["workspace_size"] = workspace
        at(count, np.dtype("i4"), 1)[0] = len(fitting)

    def _check(self, _: int, *arguments: int) -> None:
        if number_at(arguments[-2]) in self.refused:
            raise CublasError("NOT_SUPPORTED (15)")

    def _config(self, algorithm: int, attribute: int, value: int, _: int, __: int) -> None:
        number = number_at(algorithm)
        if attribute == Config.CUSTOM_OPTION:
            raise CublasError("NOT_SUPPORTED (15)")
        at(value, np.dtype("u4"), 1)[0] = {Config.ID: number, Config.TILE_ID: 1}.get(attribute, 0)

    def _cap(self, algorithm: int, _: int, value: int, __: int, ___: int) -> None:
        on_tensor_cores = number_at(algorithm) >= ON_TENSOR_CORES
        at(value, np.dtype("u8"), 1)[0] = 0x80202 if on_tensor_cores else 0x80201

    def _matmul(self, *arguments: int) -> None:
        _, operation, alpha, *operands, c, c_layout, d, _, algorithm, workspace, size, _ = arguments
        first, first_layout, second, second_layout, beta = operands
        assert at(alpha, np.dtype("f4"), 1)[0] == 1
        added = at(beta, np.dtype("f4"), 1)[0]
        assert added == (c != d)  # what is added is a residual
        described = dict(self.objects[operation])

        def multiply() -> None:
            self.launched.add(number_at(algorithm))
            at(workspace, np.dtype("u1"), size)[:] = 7
            for product in range(self.objects[c_layout]["BATCH_COUNT"]):
                multiply_one(product)

        def multiply_one(product: int) -> None:
            one = self._numbers(first, first_layout, product)
            other = self._numbers(second, second_layout, product)
            one = one.T if self.objects[operation]["TRANSA"] else one
            other = other.T if self.objects[operation]["TRANSB"] else other
            if "A_SCALE_MODE" in described:
                one = one * scales_at(described, "A", one.shape)
                other = other * scales_at(described, "B", other.shape[::-1]).T
            result = one @ other + (self._numbers(c, c_layout, product) if added else 0.0)
            number, rows, *_ = self.objects[c_layout]["layout"]
            kind = TYPES[number][0]
            if (epilogue := described.get("EPILOGUE", 0)) & 4:
                further = product * described.get("BIAS_BATCH_STRIDE", 0) * TYPES[number][1]
                bias = at(described["BIAS_POINTER"] + further, stored_as(kind), rows)
                result += numbers(bias, kind).astype(np.float64)[:, None]
            result = activated(result, {0: "none", 2: "relu", 32: "gelu_tanh"}[epilogue & ~4])
            self._stored(d, c_layout, product)[:] = rounded_to(result, kind)

        self.run(multiply)

    def _stored(self, address: int, layout: int, product: int) -> Any:
        """The matrix of a product in a batch, which is stored by columns."""
        kind, rows, columns, leading = self.objects[layout]["layout"]
        bits = stored_as(TYPES[kind][0])
        address += product * self.objects[layout].get("STRIDED_BATCH_OFFSET", 0) * bits.itemsize
        whole = at(address, bits, leading * (columns - 1) + rows)
        shape, strides = (rows, columns), (bits.itemsize, leading * bits.itemsize)
        return np.lib.stride_tricks.as_strided(whole, shape, strides)

    def _numbers(self, address: int, layout: int, product: int) -> Any:
        kind = TYPES[self.objects[layout]["layout"][0]][0]
        return numbers(self._stored(address, layout, product), kind).astype(np.float64)


def scales_at(described: dict[str, int], operand: str, shape: tuple[int, int]) -> Any:
    """The scales of an operand of `shape`, whose second dimension is K, for each element."""
    rows, depth = shape
    address, mode = (described[f"{operand}_SCALE_{what}"] for what in ("POINTER", "MODE"))
    float32, along = np.dtype("f4"), -(-depth // 128)
    if mode == 0:
        return at(address, float32, 1)[0]
    if mode == 3:
        return at(address, float32, rows)[:, None]
    if mode == 4:
        return at(address, float32, along * rows).reshape(along, rows).T.repeat(128, 1)[:, :depth]
    assert mode == 5
    row, blocks = -(-along // 4) * 4, -(-rows // 128)
    whole = at(address, float32, blocks * row).reshape(blocks, row)[:, :along]
    return whole.repeat(128, 0).repeat(128, 1)[:rows, :depth]


def at(address: int, dtype: Any, count: int) -> Any:
    size = count * dtype.itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def number_at(algorithm: int) -> int:
    return int(at(algorithm, ALGORITHM, 1)[0]["data_"][0])


@contextmanager
def host_cublas(*offered: tuple[int, int]) -> Iterator[HostCublas]:
    """Within the context, replace nvmath by this stand-in."""
    host = HostCublas(list(offered))
    bindings = SimpleNamespace(cublasLt=host.module, cublas=host.cublas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nvmath", SimpleNamespace(bindings=bindings))
        patch.setitem(sys.modules, "nvmath.bindings", bindings)
        patch.setitem(sys.modules, "nvmath.bindings.cublas", bindings.cublas)
        cublas.matmul_plan.cache_clear()
        cublas._handle.cache_clear()
        cublas._cublas_handle.cache_clear()
        yield host
        cublas.matmul_plan.cache_clear()
        cublas._handle.cache_clear()
        cublas._cublas_handle.cache_clear()
