"""The arrays that every thread of a kernel has for itself, found in its text."""

from __future__ import annotations

import re

from pytest_gpuenergy.emulator.kernel_text import definition_of

_WORDS = {
    **dict.fromkeys(("char", "bool", "int8_t", "uint8_t"), 0.25),
    **dict.fromkeys(("half", "short", "int16_t", "uint16_t", "__half", "__nv_bfloat16"), 0.5),
    **dict.fromkeys(("float", "int", "unsigned", "uint", "int32_t", "uint32_t", "half2"), 1.0),
    **dict.fromkeys(("double", "int64_t", "uint64_t", "float2", "int2"), 2.0),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 4.0),
}
_ARRAY = re.compile(
    r"^[ \t]*(?:alignas\(\d+\)[ \t]*)?(?:unsigned[ \t]+)?(?P<type>\w+)[ \t]+(?P<name>\w+)[ \t]*"
    r"(?P<extents>(?:\[[ \t]*\d+[ \t]*\])+)[ \t]*(?:=|;)",
    re.MULTILINE,
)
_BRACE_OR_ARRAY = re.compile(rf"(?P<brace>[{{}}])|{_ARRAY.pattern}", re.MULTILINE)
_VECTOR_WORDS = 4.0


def private_words(source: str, entry: str) -> int:
    """Words of 4 bytes that the private arrays of the kernel function ``entry`` take at once.

    Arrays in blocks that follow one another share their place. One that is filled by a vector load,
    or is stored by one, is the register of a load in flight, which does not count for loads of
    single words either.

    Only declarations with literal extents, one per line, are recognized. The result decides what
    the registers can hold: if it is wrong, a modelled time is wrong and nothing else.
    """
    body = definition_of(source, entry).body
    most, within = [0.0], [0.0]  # of the blocks so far in each open block, and of its own arrays
    for match in _BRACE_OR_ARRAY.finditer(body):
        if match["brace"] == "{":
            most.append(0.0)
            within.append(0.0)
        elif match["brace"] is None:
            within[-1] += _size(match, body)
        elif len(most) > 1:
            inner = most.pop() + within.pop()
            most[-1] = max(most[-1], inner)
    while len(most) > 1:  # braces that are not closed
        inner = most.pop() + within.pop()
        most[-1] = max(most[-1], inner)
    return round(most[0] + within[0])


def _size(array: re.Match[str], body: str) -> float:
    words = _WORDS.get(array["type"], 0.0)
    for extent in re.findall(r"\d+", array["extents"]):
        words *= int(extent)
    moved = rf"reinterpret_cast\s*<[^<>]*\*\s*>\s*\(\s*{array['name']}\s*\)"
    if words <= _VECTOR_WORDS and re.search(moved, body):
        return 0.0
    return words
