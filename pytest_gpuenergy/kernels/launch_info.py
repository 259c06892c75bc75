"""What a report says about a kernel's launches: grid, block and shared memory."""

from __future__ import annotations

import math
import re

from pytest_gpuenergy.kernels.kernel import AnyKernel, Kernel
from pytest_gpuenergy.kernels.triton import TritonKernel
from pytest_gpuenergy.record import LaunchInfo

_WARP = 32
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SHARED = re.compile(
    r"(?P<extern>\bextern\s+)?\b__shared__\s+"
    r"(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?(?P<type>[A-Za-z_][\w \t]*?)\s*"
    r"(?P<names>\b[A-Za-z_]\w*\s*(?:\[[^;\]]*\]\s*)*(?:,\s*\w+\s*(?:\[[^;\]]*\]\s*)*)*);"
)
_DIMENSION = re.compile(r"\[([^\]]*)\]")
_ONE_BYTE = ("char", "bool", "int8_t", "uint8_t")
_TWO_BYTES = ("short", "half", "__half", "__nv_bfloat16", "int16_t", "uint16_t")
_FOUR_BYTES = ("int", "unsigned", "float", "int32_t", "uint32_t", "half2", "__half2")
_EIGHT_BYTES = ("double", "float2", "int2", "uint2", "long long", "int64_t", "uint64_t")
_SIXTEEN_BYTES = ("float4", "int4", "uint4", "double2")
_BYTES = {
    name: 1 << power
    for power, names in enumerate(
        (_ONE_BYTE, _TWO_BYTES, _FOUR_BYTES, _EIGHT_BYTES, _SIXTEEN_BYTES)
    )
    for name in names
}


def launch_infos(kernel: AnyKernel) -> tuple[LaunchInfo, ...]:
    """The launches of a kernel; none where the library or the program decides."""
    if isinstance(kernel, TritonKernel):
        block = (_WARP * kernel.num_warps, 1, 1)
        return (LaunchInfo(kernel.function, kernel.grid, block),)
    if not isinstance(kernel, Kernel):
        return ()
    # Of several launches nobody knows here which array belongs to which.
    static = static_shared_bytes(kernel.source) if len(kernel.launches) == 1 else None
    return tuple(
        LaunchInfo(launch.entry, launch.grid, launch.block, launch.shared_bytes, static)
        for launch in kernel.launches
    )


def static_shared_bytes(source: str) -> int | None:
    """The bytes of the arrays that CUDA text declares ``__shared__``, without dynamic ones.

    None when a size is not a number in the text, or the type of an element is not known.
    """
    text = _COMMENTS.sub(" ", source)
    total = 0
    found = 0
    for declaration in _SHARED.finditer(text):
        found += 1
        if declaration["extern"]:
            continue
        words = declaration["type"].split()
        element = " ".join(word for word in words if word not in ("signed", "volatile", "const"))
        size = _BYTES.get(element.removeprefix("unsigned ") or "int")
        if size is None:
            return None
        for name in declaration["names"].split(","):
            dimensions = [words.strip() for words in _DIMENSION.findall(name)]
            if not all(words.isascii() and words.isdecimal() for words in dimensions):
                return None
            total += size * math.prod(map(int, dimensions))
    return total if found == len(re.findall(r"\b__shared__\b", text)) else None
