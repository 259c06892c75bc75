"""The arrays that every thread of a kernel has for itself, found in its text."""

from __future__ import annotations

import re

from pytest_gpuenergy.devices.emulated.kernel_text import definition_of

_WORDS = {
    **dict.fromkeys(("char", "bool", "int8_t", "uint8_t"), 0.25),
    **dict.fromkeys(("half", "short", "int16_t", "uint16_t", "__half", "__nv_bfloat16"), 0.5),
    **dict.fromkeys(("float", "int", "unsigned", "uint", "int32_t", "uint32_t", "half2"), 1.0),
    **dict.fromkeys(("double", "int64_t", "uint64_t", "float2", "int2"), 2.0),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 4.0),
}
_ARRAY = re.compile(
    r"^[ \t]*(?:alignas\(\d+\)[ \t]*)?(?:unsigned[ \t]+)?(?P<type>\w+)[ \t]+\w+[ \t]*"
    r"(?P<extents>(?:\[[ \t]*\d+[ \t]*\])+)[ \t]*(?:=|;)",
    re.MULTILINE,
)


def private_words(source: str, entry: str) -> int:
    """Words of 4 bytes in the private arrays of the kernel function ``entry``.

    Only declarations with literal extents, one per line, are recognized. The result decides what
    the registers can hold: if it is wrong, a modelled time is wrong and nothing else.
    """
    words = 0.0
    for match in _ARRAY.finditer(definition_of(source, entry).body):
        size = 1
        for extent in re.findall(r"\d+", match["extents"]):
            size *= int(extent)
        words += size * _WORDS.get(match["type"], 0.0)
    return round(words)
