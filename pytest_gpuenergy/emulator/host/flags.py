"""The options with which kernels and their runtime are compiled for the host."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from pathlib import Path

from pytest_gpuenergy.emulator.translation.marks import CONVERSION_WARNINGS
from pytest_gpuenergy.emulator.translation.uninitialized import CLANG_WARNINGS, GCC_WARNINGS
from pytest_gpuenergy.support import cuda_dir

# -O1: generated kernels are unrolled already, and -O2 takes up to twenty times as long to compile.
# -ffp-contract=fast with -march=native: multiply-adds are fused where the host can, as nvcc does by
# default (-fmad=true). -fno-pie: fixed addresses make access to shared variables cheap.
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-pie",
    "-fno-stack-protector",
    "-fmax-errors=5",
    # undefined.cpp holds the functions that they call.
    "-fsanitize=float-cast-overflow,shift-exponent",
    *CONVERSION_WARNINGS,
)
# GCC works out its tables anew for each kernel. Those for AVX-512 take a tenth of the time of a
# small one; whole launches, which plain builds run, gain from its registers.
_CHECKED_X86 = ("-mno-avx512f",)
# It also compares all its macros with those of the precompiled header. To write down the numbers of
# these, which no kernel can use, takes a twentieth.
_GCC_UNDEFINED = tuple(
    f"-U__FLT{kind}_{number}__"
    for kind in ("16", "32", "64", "128", "32X", "64X")
    for number in ("MAX", "MIN", "NORM_MAX", "EPSILON", "DENORM_MIN")
)
_GCC = (
    "-fdiagnostics-column-unit=byte",
    "-fno-diagnostics-show-caret",
    *_GCC_UNDEFINED,
    *GCC_WARNINGS,
)
# A GPU compiler unrolls more than GCC's -O1, and a loop over a thread's own array runs several
# times as fast unrolled. clang unrolls by itself.
# Only with -fexpensive-optimizations does -O1 fuse multiply-adds.
# Neighbouring elements of such an array are then computed together, if the ranges of indices show
# that they are neighbours although integers wrap; the operations and their order stay the same.
_GCC_UNROLL = (
    "-fexpensive-optimizations",
    "-ftree-slp-vectorize",
    "-ftree-vrp",
    "-fpeel-loops",
    "--param=max-completely-peel-times=32",
    "--param=max-completely-peeled-insns=400",
    # Sums stay in registers while a loop adds to them, although calls before and after need these.
    "-fira-region=all",
)
# GCC does not fill the parts of an array or structure that it takes apart.
_GCC_WHOLE = ("-fno-tree-sra",)
_CLANG = CLANG_WARNINGS
# Volatile accesses are reported apart, because they do not race with one another.
_GCC_VOLATILE = ("--param=tsan-distinguish-volatile=1",)
_CLANG_VOLATILE = ("-mllvm", "-tsan-distinguish-volatile=1")
# Before GCC 12, locals keep what their registers happen to hold.
_PATTERN = ("-ftrivial-auto-var-init=pattern",)
_CLANG_ZERO = ("-enable-trivial-auto-var-init-zero-knowing-it-will-be-removed-from-clang",)
_VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "zeroed": ("-ftrivial-auto-var-init=zero", "-DCUHOST_ZEROED"),
    # Only the compiler's half of the sanitizers: races.cpp holds the functions they call.
    "checked": (
        "-fsanitize=thread,alignment,object-size",
        "-fno-sanitize-recover=alignment",
        "-fsanitize-recover=object-size",
        "-fsanitize-coverage=trace-cmp",  # comparisons.cpp
        "-DCUHOST_CHECKED",
    ),
}

# -O1: -O2 takes half as long again to compile, and makes threads that meet at barriers all the time
# only 7 % faster.
RUNTIME_FLAGS = (
    "-std=c++17",
    "-O1",
    "-finline-small-functions",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fno-pie",
    "-w",
)
"""The options of the runtime, which is compiled once."""

MATRIX_FLAGS = ("-O3", "-march=native")
"""The further options of those parts of the runtime that multiply matrices."""

PRECOMPILED = ("plain", "checked")
"""The variants that every compiler can build; newer compilers build ``zeroed``, too."""


def fills_locals(version: str) -> bool:
    """Return whether the compiler of this version can fill uninitialized local variables."""
    return _major(version) >= 12


def kernel_flags(variant: str, version: str) -> list[str]:
    """Return the options for a build, which is ``plain``, ``zeroed`` or ``checked``."""
    flags = [*_FLAGS, *_VARIANTS[variant]]
    if variant == "checked" and platform.machine() == "x86_64":
        flags += _CHECKED_X86
    if "clang" in version:
        flags += _CLANG + (_CLANG_VOLATILE if variant == "checked" else ())
        if variant == "zeroed" and 0 < _major(version) < 16:
            flags += _CLANG_ZERO
    else:
        # The checked build runs only a sample: unrolling would cost more than it saves.
        flags += _GCC + (_GCC_VOLATILE if variant == "checked" else _GCC_UNROLL)
        if variant == "zeroed":
            flags += _GCC_WHOLE
    if variant != "zeroed" and fills_locals(version):
        flags += _PATTERN
    return flags


def _major(version: str) -> int:
    number = re.search(r"\b(\d+)\.\d+", version)
    return int(number[1]) if number is not None else 0


@functools.cache
def build_version() -> str:
    """Return a digest of the options and sources that kernels are built with.

    The compiler is not part of it. Verdicts and access counts that are kept on disk hold for one
    build version only.

    Raises:
        DeviceError: the sources of the runtime are missing, see `cuda_dir`.
    """
    digest = hashlib.sha256()
    here = Path(__file__).parent
    own = [Path(__file__), here / "toolchain.py"]
    translation = sorted((here.parent / "translation").rglob("*.py"))
    for path in [*sorted((cuda_dir() / "host").iterdir()), *own, *translation]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
