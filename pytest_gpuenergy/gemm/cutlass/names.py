"""The configuration that the name of a kernel in CUTLASS's library stands for."""

from __future__ import annotations

import re
from typing import Any, cast

from pytest_gpuenergy.gemm.cutlass.configurations import (
    CORES,
    SHORT_TYPES,
    WARPS,
    Alignments,
    Configuration,
    Cutlass2,
    Cutlass3,
)
from pytest_gpuenergy.support import UnavailableError, printable
from pytest_gpuenergy.workloads import Gemm

_TILE_2 = r"(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
_CLASSIC = re.compile(
    rf"cutlass_(?P<core>\w+?)_{_TILE_2}_(?P<layout>[nt]{{2}})_align(?P<alignment>\d+)"
)
_MODERN = re.compile(
    r"cutlass3x_sm90_tensorop_(?:s\d+x\d+x\d+)?gemm"
    r"_(?P<a>[a-z]*\d+)_(?P<b>[a-z]*\d+)_f32_(?P<c>void|[a-z]*\d+)_(?P<d>[a-z]*\d+)"
    r"_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<cluster_m>\d+)x(?P<cluster_n>\d+)x1_0"
    r"_(?P<layout>[nt]{2})n_align(?P<alignment>\d+)(?P<stream_k>_stream_k)?"
    r"_warpspecialized(?P<schedule>_pingpong|_cooperative)?_epi_(?P<epilogue>tma|nosmem)"
)


def configuration_named(name: str, gemm: Gemm) -> Configuration:
    """The configuration of a kernel for a product.

    Args:
        name: in CUTLASS's library, such as ``cutlass_simt_sgemm_128x128_8x5_nn_align1``.
        gemm: the product, whose types, layout and alignments the kernel must be for.

    Raises:
        UnavailableError: it stands for none that can be built here.
    """
    found = _classic(name, gemm) or _modern(name, gemm)
    if found is None:
        raise UnavailableError(
            f"{printable(name):.200} cannot be built here for {gemm.name}: it is not the name of a "
            f"kernel of CUTLASS 2.x, or 3.x for sm_90, in mode {gemm.mode} and layout "
            f"{gemm.layout}."
        )
    return found


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
    ):
        return None
    schedule = cast("Any", match["schedule"] or "")  # the pattern allows no other
    return Cutlass3(
        (int(match["m"]), int(match["n"]), int(match["k"])),
        (int(match["cluster_m"]), int(match["cluster_n"])),
        schedule,
        match["stream_k"] is not None,
        match["epilogue"] == "tma",
        added,
    )
