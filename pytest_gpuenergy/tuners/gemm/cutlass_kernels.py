"""The kernels of CUTLASS that are tried for a product, and the headers that they need."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from pytest_gpuenergy.kernels import CudaProgram, Headers, Origin
from pytest_gpuenergy.support import InputError, UnavailableError, is_file, is_folder
from pytest_gpuenergy.tuners.gemm.cutlass_configurations import (
    Alignments,
    Configuration,
    Cutlass2,
    Cutlass3,
)
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import Gemm, Mode

_PARTS = ("cutlass", "cute")
_VERSION_FILE = Path("cutlass", "version.h")
_VERSION = re.compile(r"#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)")
_MIN_MAJOR = 3
# The folders of the headers in Python packages. TVM's package lacks the files of the builders.
_PACKAGES = {
    "cutlass_library": Path("source", "include"),
    "tvm": Path("3rdparty", "cutlass", "include"),
}


def find_headers(path: Path | None) -> Headers:
    """Find the headers of CUTLASS.

    Args:
        path: a checkout of CUTLASS, or its folder ``include``. None stands for the package
            nvidia-cutlass, or else TVM's package; neither is imported.

    Raises:
        InputError: there are none in the folder, or they are too old.
        UnavailableError: no package has them.
    """
    folders = [] if path is None else [path, path / "include"]
    for package, inside in _PACKAGES.items() if path is None else ():
        spec = find_spec(package)
        locations = (spec and spec.submodule_search_locations) or ()
        folders += [Path(location) / inside for location in locations]
    for folder in folders:
        if is_file(folder / _VERSION_FILE):
            return _headers(folder.resolve())
    if path is not None:
        raise InputError(
            f"{path} has no headers of CUTLASS (include/{_VERSION_FILE}): give --cutlass a "
            "checkout of CUTLASS, or its folder include."
        )
    raise UnavailableError(
        "CUTLASS needs its headers: pip install --no-deps nvidia-cutlass, or give --cutlass a "
        "checkout of it."
    )


def has_builders(headers: Headers) -> bool:
    """Return whether the headers are complete enough for the kernels of CUTLASS 3.x."""
    builders = Path(headers.folder, "cutlass", "gemm", "collective", "builders")
    return is_file(builders / "sm90_gmma_builder.inl")


@functools.cache
def _headers(folder: Path) -> Headers:
    text = (folder / _VERSION_FILE).read_text(errors="replace")
    numbers = dict(_VERSION.findall(text))
    version = ".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))
    if int(numbers.get("MAJOR", 0)) < _MIN_MAJOR:
        raise InputError(
            f"{folder} has CUTLASS {version}, but {_MIN_MAJOR}.0 or later is needed: give "
            "--cutlass a newer checkout."
        )
    digest = hashlib.sha256()
    for part in _PARTS:
        for path in sorted((folder / part).rglob("*")):
            if not is_folder(path):
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
                digest.update(content)
    return Headers(f"CUTLASS {version}", digest.hexdigest(), str(folder))


_FIRST_WITH_SIMT, _FIRST_WITH_TENSOR_CORES = 70, 80
"""The first capabilities for float32 and for the other modes."""
_HOPPER = 90
_LARGE = 128 * 128
"""The least elements of a tile for which, on Hopper, kernels of CUTLASS 3.x replace those of
2.x."""
_STEPS_OF_A_PART = 4
"""The fewest steps of a tile's depth in each part of a split product."""
_SHORT_SUMS = (2048, 512)
"""The lengths of sums in 3xtf32 that are tried: tensor cores cut off bits, and the errors add
up."""

_SIMT = tuple(
    Cutlass2((*tile, 8), 5)
    for tile in (
        *((256, 128), (128, 256), (128, 128), (128, 64)),
        *((64, 128), (64, 64), (128, 32), (32, 128)),
    )
)
_SPLIT = (
    Cutlass2((128, 128, 32), 3),
    Cutlass2((128, 128, 16), 4),
    Cutlass2((256, 64, 16), 3),
    Cutlass2((64, 256, 16), 3),
    Cutlass2((128, 64, 16), 4),
    Cutlass2((64, 128, 16), 4),
    Cutlass2((64, 64, 32), 3),
)
_TF32 = (
    Cutlass2((256, 128, 16), 3),
    Cutlass2((128, 256, 16), 3),
    Cutlass2((128, 128, 32), 3),
    Cutlass2((128, 64, 32), 3),
    Cutlass2((64, 128, 32), 3),
    Cutlass2((64, 64, 32), 5),
    Cutlass2((128, 128, 32), 3, stream_k=True),
)
_HALF = (
    Cutlass2((256, 128, 32), 3),
    Cutlass2((128, 256, 32), 3),
    Cutlass2((128, 128, 32), 5),
    Cutlass2((128, 64, 64), 3),
    Cutlass2((64, 128, 64), 3),
    Cutlass2((64, 64, 64), 5),
    Cutlass2((128, 128, 32), 4, stream_k=True),
    Cutlass2((64, 64, 64), 5, stream_k=True),
)
_FOR_ALL: Mapping[Mode, Sequence[Cutlass2]] = {
    "float32": _SIMT,
    "3xtf32": _SPLIT,
    "tf32": _TF32,
    "float16": _HALF,
    "bfloat16": _HALF,
}


def _for_hopper(depth: int) -> tuple[Cutlass3, ...]:
    return (
        Cutlass3((128, 256, depth), (2, 1), "_cooperative"),
        Cutlass3((256, 128, depth), (2, 1), "_cooperative"),
        Cutlass3((128, 128, depth), (2, 1), "_pingpong"),
        Cutlass3((64, 256, depth), (2, 1), "_pingpong"),
        Cutlass3((64, 128, depth), (1, 1), "_pingpong"),
        Cutlass3((64, 64, depth), (1, 1), "_pingpong"),
        Cutlass3((128, 128, depth), (1, 1), "_cooperative", stream_k=True),
    )


_FOR_HOPPER: Mapping[Mode, Sequence[Cutlass3]] = {
    "tf32": _for_hopper(32),
    "float16": _for_hopper(64),
    "bfloat16": _for_hopper(64),
}


def configurations(gemm: Gemm, capability: int, headers: Headers) -> list[Configuration]:
    """Return the configurations that are tried for a product.

    Those of CUTLASS 3.x need sm_90, rows of a multiple of 16 bytes, and headers with its builders.

    Raises:
        UnavailableError: the GPU is too old for the product's mode.
    """
    least = _FIRST_WITH_SIMT if gemm.mode == "float32" else _FIRST_WITH_TENSOR_CORES
    if capability < least:
        raise UnavailableError(
            f"CUTLASS in mode {gemm.mode} takes a GPU of sm_{least} or later here, and this one is "
            f"of sm_{capability}."
        )
    classic = _FOR_ALL[gemm.mode]
    modern = _FOR_HOPPER.get(gemm.mode, ())
    alignment = Alignments.of(gemm)
    vectors = min(alignment.a, alignment.b, alignment.c) * gemm.element_bytes == 16
    if not (modern and vectors and _has_3x(capability, headers)):
        return [*classic]
    small = [kind for kind in classic if kind.stream_k or math.prod(kind.tile[:2]) < _LARGE]
    return [*modern, *small]


def cutlass_candidates(gemm: Gemm, card: CardResources, headers: Headers) -> list[CudaProgram]:
    """Return the kernels of CUTLASS that are tried for a product, some with its depth split.

    Raises:
        UnavailableError: the GPU is too old for the product's mode.
    """
    return [
        cutlass_program(gemm, configuration, card.capability, headers, split)
        for configuration in configurations(gemm, card.capability, headers)
        for split in _splits(gemm, configuration, card.multiprocessors)
    ]


def cutlass_program(
    gemm: Gemm, configuration: Configuration, capability: int, headers: Headers, split: int = 1
) -> CudaProgram:
    """Return the kernel of a configuration for a product whose depth is split into ``split`` parts.

    Raises:
        UnavailableError: the GPU or the headers do not have it.
    """
    if isinstance(configuration, Cutlass3) and not _has_3x(capability, headers):
        raise UnavailableError(
            f"Kernels of CUTLASS 3.x need a GPU of sm_90 (this one is of sm_{capability}) and the "
            "builders among the headers: pip install --no-deps nvidia-cutlass, or give --cutlass "
            "a checkout."
        )
    name = configuration.name(gemm, capability)
    return CudaProgram(
        configuration.source(gemm, capability),
        name if split == 1 else f"{name}_split{split}",
        ("A", "B", "C"),
        (gemm.M, gemm.N, gemm.K, gemm.lda, gemm.ldb, gemm.ldc, split),
        headers,
        origin=Origin(
            "cutlass",
            details={"configuration": name, "split": split, "library": headers.name},
        ),
    )


def _has_3x(capability: int, headers: Headers) -> bool:
    return capability == _HOPPER and has_builders(headers)


def _splits(gemm: Gemm, configuration: Configuration, multiprocessors: int) -> list[int]:
    """Return the numbers of parts to try: one, and those that give each SM one or two tiles.

    In 3xtf32, long sums are also split into short parts. Parts are added in C one after another,
    which in half precision would round each time, so these products are not split.
    """
    if isinstance(configuration, Cutlass3) or configuration.stream_k or gemm.element_bytes == 2:
        return [1]
    m, n, k = configuration.tile
    tiles = -(-gemm.M // m) * -(-gemm.N // n)
    most = gemm.K // (_STEPS_OF_A_PART * k)
    chosen = [min(most, times * multiprocessors // tiles) for times in (1, 2)]
    if gemm.mode == "3xtf32":
        chosen += [-(-gemm.K // depth) for depth in _SHORT_SUMS]
    return sorted({1, *(split for split in chosen if split > 1)})
