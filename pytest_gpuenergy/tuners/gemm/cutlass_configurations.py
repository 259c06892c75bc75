"""The configurations of CUTLASS's matrix products: the name and the program of each.

Tiles, warps, stages and names are those of CUTLASS's own library
(python/cutlass_library/generator.py in its repository).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from pytest_gpuenergy.support import UnavailableError, cuda_dir, printable
from pytest_gpuenergy.tuning import FIRST_ASYNCHRONOUS
from pytest_gpuenergy.workloads import Gemm, Mode

Schedule = Literal["", "_pingpong", "_cooperative"]

_VECTOR_BYTES = 16
_MIN_COPY_BYTES = 4
"""The narrowest asynchronous copy."""
_SYNCHRONOUS_STAGES = 2
_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float16": "cutlass::half_t",
    "bfloat16": "cutlass::bfloat16_t",
}
SHORT_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""The types in the names of kernels."""
_BY_ROWS, _BY_COLUMNS = "cutlass::layout::RowMajor", "cutlass::layout::ColumnMajor"
CORES: Mapping[Mode, str] = {
    "float32": "simt_sgemm",
    "3xtf32": "tensorop_s1688gemm",
    "tf32": "tensorop_s1688tf32gemm",
    "float16": "tensorop_f16_s16816gemm_f16",
    "bfloat16": "tensorop_bf16_s16816gemm_bf16",
}
"""The cores in the names of kernels of CUTLASS 2.x."""
_SIMT_WARPS = {
    (256, 128): (4, 2),
    (128, 256): (2, 4),
    (128, 128): (4, 2),
    (128, 64): (2, 2),
    (64, 128): (2, 2),
    (64, 64): (2, 1),
    (128, 32): (2, 1),
    (32, 128): (1, 2),
}
_TENSOR_WARPS = {
    (256, 128): (4, 2),
    (128, 256): (2, 4),
    (256, 64): (4, 1),
    (64, 256): (1, 4),
    (128, 128): (2, 2),
    (128, 64): (2, 2),
    (64, 128): (2, 2),
    (64, 64): (2, 2),
}
# Twice the warps, since each element takes two registers.
_SPLIT_WARPS = {**_TENSOR_WARPS, (128, 128): (4, 2), (256, 64): (4, 2), (64, 256): (2, 4)}
WARPS: Mapping[Mode, Mapping[tuple[int, int], tuple[int, int]]] = {
    "float32": _SIMT_WARPS,
    "3xtf32": _SPLIT_WARPS,
    "tf32": _TENSOR_WARPS,
    "float16": _TENSOR_WARPS,
    "bfloat16": _TENSOR_WARPS,
}
"""The warps along M and N by the tile's rows and columns."""


@dataclass(frozen=True)
class Alignments:
    """The most elements of A, B and C in one access."""

    a: int
    b: int
    c: int

    @classmethod
    def of(cls, gemm: Gemm) -> Alignments:
        """Return what the sizes and leading dimensions allow, up to 16 bytes."""
        vector = _VECTOR_BYTES // gemm.element_bytes
        return cls(
            math.gcd(gemm.row_of_a, gemm.lda, vector),
            math.gcd(gemm.row_of_b, gemm.ldb, vector),
            math.gcd(gemm.N, gemm.ldc, vector),
        )


@dataclass(frozen=True)
class Cutlass2:
    """A kernel of CUTLASS 2.x.

    Attributes:
        tile: rows, columns and depth of a block's tile.
        stages: of its software pipeline.
        stream_k: whether blocks share the work of all tiles evenly.
    """

    tile: tuple[int, int, int]
    stages: int
    stream_k: bool = False

    def name(self, gemm: Gemm, capability: int) -> str:
        """Return its name in CUTLASS's library; names there do not say stream-K."""
        alignment = self._alignments(gemm)
        m, n, k = self.tile
        stages = self._stages(gemm, capability)
        return (
            f"cutlass_{CORES[gemm.mode]}_{m}x{n}_{k}x{stages}_{gemm.layout}"
            f"_align{max(alignment.a, alignment.b)}{'_stream_k' if self.stream_k else ''}"
        )

    def source(self, gemm: Gemm, capability: int) -> str:
        """Return the text of its program for the product's types, layout and alignments."""
        simt = gemm.mode == "float32"
        m, n, k = self.tile
        warps_m, warps_n = WARPS[gemm.mode][m, n]
        alignment = self._alignments(gemm)
        instruction = "1, 1, 1" if simt else "16, 8, 16" if gemm.element_bytes == 2 else "16, 8, 8"
        swizzle = (
            "ThreadblockSwizzleStreamK" if self.stream_k else "GemmIdentityThreadblockSwizzle<8>"
        )
        types = {
            "Element": _TYPES[gemm.dtype],
            "LayoutA": _BY_COLUMNS if gemm.a_transposed else _BY_ROWS,
            "LayoutB": _BY_COLUMNS if gemm.b_transposed else _BY_ROWS,
            "OperatorClass": f"cutlass::arch::OpClass{'Simt' if simt else 'TensorOp'}",
            "ArchTag": f"cutlass::arch::Sm{80 if capability >= FIRST_ASYNCHRONOUS else 50}",
            "InstructionShape": f"cutlass::gemm::GemmShape<{instruction}>",
            "Swizzle": f"cutlass::gemm::threadblock::{swizzle}",
            "Operator": "cutlass::arch::OpMultiplyAdd"
            + ("FastF32" if gemm.mode == "3xtf32" else ""),
        }
        sizes = {
            "kTileM": m,
            "kTileN": n,
            "kTileK": k,
            "kWarpM": m // warps_m,
            "kWarpN": n // warps_n,
            "kWarpK": k,
            "kStages": self._stages(gemm, capability),
            **_alignment_sizes(alignment),
        }
        return _program(["cutlass/gemm/device/gemm_universal.h"], types, sizes, "gemm2.cu")

    def _stages(self, gemm: Gemm, capability: int) -> int:
        alignment = self._alignments(gemm)
        least = min(alignment.a, alignment.b) * gemm.element_bytes
        asynchronous = capability >= FIRST_ASYNCHRONOUS and least >= _MIN_COPY_BYTES
        return self.stages if asynchronous else _SYNCHRONOUS_STAGES

    def _alignments(self, gemm: Gemm) -> Alignments:
        return Alignments(1, 1, 1) if gemm.mode == "float32" else Alignments.of(gemm)


@dataclass(frozen=True)
class Cutlass3:
    """A kernel of CUTLASS 3.x for sm_90: bulk copies (TMA), warpgroup products (wgmma).

    Attributes:
        tile: rows, columns and depth of a block's tile in the transposed product.
        cluster: blocks of a cluster along both.
        schedule: the way in which warps share the work.
        stream_k: whether blocks share the work of all tiles evenly.
        stores_by_tma: whether results go through shared memory, unless operands are exchanged.
        could_add: whether its epilogue is made to add C, which it is not asked to do.
    """

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    schedule: Schedule
    stream_k: bool = False
    stores_by_tma: bool = True
    could_add: bool = False

    def name(self, gemm: Gemm, capability: int) -> str:  # noqa: ARG002 -- there is one
        """Return its name in CUTLASS's library."""
        short = SHORT_TYPES[gemm.dtype]
        added = short if self.could_add else "void"
        tile, cluster = ("x".join(map(str, sizes)) for sizes in (self.tile, (*self.cluster, 1)))
        epilogue = "" if _exchanged(gemm) else "_epi_tma" if self.stores_by_tma else "_epi_nosmem"
        return (
            f"cutlass3x_sm90_tensorop_gemm_{short}_{short}_f32_{added}_{short}_{tile}_{cluster}_0_"
            f"{gemm.layout}n_align{_VECTOR_BYTES // gemm.element_bytes}"
            f"{'_stream_k' if self.stream_k else ''}_warpspecialized{self.schedule}{epilogue}"
        )

    def source(self, gemm: Gemm, capability: int) -> str:  # noqa: ARG002 -- there is one
        """Return the text of its program for the product's types and layout."""
        word = self.schedule.removeprefix("_").capitalize()
        epilogue = "epilogue::NoSmemWarpSpecialized"
        if _exchanged(gemm):
            epilogue = "gemm::EpilogueTransposed"
        elif self.stores_by_tma:
            shared = "Cooperative" if self.schedule == "_cooperative" else ""
            epilogue = f"epilogue::TmaWarpSpecialized{shared}"
        types = {
            "Element": _TYPES[gemm.dtype],
            # The layouts of B' and A', the transposes of B and A.
            "LayoutA": _BY_ROWS if gemm.b_transposed else _BY_COLUMNS,
            "LayoutB": _BY_ROWS if gemm.a_transposed else _BY_COLUMNS,
            "Schedule": f"cutlass::gemm::KernelTmaWarpSpecialized{word}",
            "ElementC": _TYPES[gemm.dtype] if self.could_add else "void",
            "EpilogueSchedule": f"cutlass::{epilogue}",
            "Scheduler": f"cutlass::gemm::{'StreamK' if self.stream_k else 'Persistent'}Scheduler",
        }
        m, n, k = self.tile
        sizes = {
            "kTileM": m,
            "kTileN": n,
            "kTileK": k,
            "kClusterM": self.cluster[0],
            "kClusterN": self.cluster[1],
            **_alignment_sizes(Alignments.of(gemm)),
        }
        headers = [
            "cutlass/epilogue/collective/collective_builder.hpp",
            "cutlass/gemm/collective/collective_builder.hpp",
            "cutlass/gemm/device/gemm_universal_adapter.h",
            "cutlass/gemm/kernel/gemm_universal.hpp",
            "cutlass/gemm/kernel/tile_scheduler.hpp",
        ]
        return _program(headers, types, sizes, "gemm3.cu")


Configuration = Cutlass2 | Cutlass3


def _exchanged(gemm: Gemm) -> bool:
    """Return whether kernels of CUTLASS 3.x multiply its operands in exchanged order.

    Tensor cores take operands of 32 bits along K only, unless the first comes from registers. So
    CUTLASS exchanges the operands if only the second, here A', does not lie along K, and the
    epilogue must store the transpose (``requires_transposed_epilogue`` in its sm90_utils.py).
    """
    return gemm.mode == "tf32" and gemm.a_transposed and gemm.b_transposed


def _alignment_sizes(alignment: Alignments) -> dict[str, int]:
    return {
        "kAlignmentA": alignment.a,
        "kAlignmentB": alignment.b,
        "kAlignmentC": alignment.c,
    }


def _program(
    headers: list[str], types: Mapping[str, str], sizes: Mapping[str, int], part: str
) -> str:
    """Return the definitions that the texts in ``cuda/cutlass`` need, followed by these texts."""
    folder = cuda_dir() / "cutlass"
    return "\n".join(
        [
            *(f'#include "{header}"' for header in headers),
            *(f"using {name} = {value};" for name, value in types.items()),
            *(f"constexpr int {name} = {value};" for name, value in sizes.items()),
            *((folder / file).read_text() for file in ("problem.cu", part, "program.cu")),
        ]
    )


_TILE_2 = r"(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
_CLASSIC = re.compile(
    rf"cutlass_(?P<core>\w+?)_{_TILE_2}_(?P<layout>[nt]{{2}})_align(?P<alignment>\d+)"
)
_MODERN = re.compile(
    r"cutlass3x_sm90_tensorop_(?:s\d+x\d+x\d+)?gemm"
    r"_(?P<a>[a-z]*\d+)_(?P<b>[a-z]*\d+)_f32_(?P<c>void|[a-z]*\d+)_(?P<d>[a-z]*\d+)"
    r"_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<cluster_m>\d+)x(?P<cluster_n>\d+)x1_0"
    r"_(?P<layout>[nt]{2})n_align(?P<alignment>\d+)(?P<stream_k>_stream_k)?"
    r"_warpspecialized(?P<schedule>_pingpong|_cooperative)?(?:_epi_(?P<epilogue>tma|nosmem))?"
)


def configuration_named(name: str, gemm: Gemm) -> Configuration:
    """Return the configuration that a kernel's name stands for, for a product.

    Args:
        name: the name in CUTLASS's library, such as ``cutlass_simt_sgemm_128x128_8x5_nn_align1``.
        gemm: the product, whose types, layout and alignments the kernel must be for.

    Raises:
        UnavailableError: the name stands for no configuration that can be built here.
    """
    configuration = _classic(name, gemm) or _modern(name, gemm)
    if configuration is None:
        raise UnavailableError(
            f"{printable(name):.200} cannot be built here for {gemm.name}: it is not the name of a "
            f"kernel of CUTLASS 2.x, or 3.x for sm_90, in mode {gemm.mode} and layout "
            f"{gemm.layout}."
        )
    return configuration


def _classic(name: str, gemm: Gemm) -> Cutlass2 | None:
    match = _CLASSIC.fullmatch(name)
    if match is None or (match["core"], match["layout"]) != (CORES[gemm.mode], gemm.layout):
        return None
    m, n, k, stages = (int(match[part]) for part in ("m", "n", "k", "stages"))
    alignments = Alignments.of(gemm)
    widest = 1 if gemm.mode == "float32" else max(alignments.a, alignments.b)
    if (m, n) not in WARPS[gemm.mode] or int(match["alignment"]) != widest:
        return None
    return Cutlass2((m, n, k), stages)


def _modern(name: str, gemm: Gemm) -> Cutlass3 | None:
    match = _MODERN.fullmatch(name)
    if match is None or gemm.mode in ("float32", "3xtf32") or match["layout"] != gemm.layout:
        return None
    short = SHORT_TYPES[gemm.dtype]
    operands = {short, "tf32"} if gemm.mode == "tf32" else {short}
    added = match["c"] != "void"
    alignment = Alignments.of(gemm)
    if (
        not {match["a"], match["b"]} <= operands
        or match["d"] != short
        or (added and match["c"] != short)
        or min(alignment.a, alignment.b, alignment.c) != int(match["alignment"])
        or _exchanged(gemm) != (match["epilogue"] is None)
    ):
        return None
    schedule = cast("Any", match["schedule"] or "")  # the pattern allows no other
    return Cutlass3(
        (int(match["m"]), int(match["n"]), int(match["k"])),
        (int(match["cluster_m"]), int(match["cluster_n"])),
        schedule,
        match["stream_k"] is not None,
        match["epilogue"] != "nosmem",
        added,
    )
