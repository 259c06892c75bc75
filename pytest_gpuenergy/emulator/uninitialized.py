"""Which texts need a second build, with zeros in their uninitialized local variables.

Each build fills such variables with the compiler's pattern: GCC's is -1.7e38 as a float, clang's is
NaN, which a maximum ignores, and flags are true (see `unset_flags`). A maximum that starts at
-1.7e38, or a flag that is taken for true, can look right. Zeros then do not.
"""

from __future__ import annotations

import re

GCC_WARNINGS = ("-Wuninitialized", "-Wmaybe-uninitialized")
"""GCC's options that name variables which may be used uninitialized."""

CLANG_WARNINGS = ("-Wuninitialized", "-Wsometimes-uninitialized", "-Wconditional-uninitialized")
"""Likewise clang's."""

_WARNING = re.compile(
    r"kernel\.cu:\d+:\d+: warning: .*\[-W(?:maybe|sometimes|conditional)?-?uninitialized\]$",
    re.MULTILINE,
)
# Compilers say nothing about arrays: find those that are declared without a value.
_ARRAY = re.compile(
    r"(?:^|[;{}])\s*(?:alignas\s*\(\w+\)\s*)?(?P<type>(?:unsigned\s+|long\s+)*\w+)\s+"
    r"(?P<name>\w+)\s*(?:\[[^\];{}]*\]\s*)+;",
    re.MULTILINE,
)
# A flag, also among others with a value, in an array or in a type.
_FLAG = re.compile(r"\bbool\s+(?:[^;(){}]*,\s*)?\w+\s*(?:\[[^\];{}]*\]\s*)*[,;]")
_NO_TYPE = frozenset(("return", "extern", "delete", "else", "goto", "typedef"))


def needs_zeros(source: str, warnings: str) -> bool:
    """Whether a pattern in uninitialized local variables may go unnoticed.

    Args:
        source: CUDA C++ text.
        warnings: what the compiler says about its translation.
    """
    if _WARNING.search(warnings) or _FLAG.search(source):
        return True
    names = {found["name"] for found in _ARRAY.finditer(source) if found["type"] not in _NO_TYPE}
    return any(_is_compared(source, name) for name in names)


def _is_compared(source: str, name: str) -> bool:
    """Whether elements of an array are compared: a maximum may start with the pattern."""
    element = rf"\b{name}\s*\[[^;]*?\]"
    return bool(
        re.search(rf"\b\w*(?:max|min|Max|Min|MAX|MIN)\w*\s*\([^;{{}}]*\b{name}\s*\[", source)
        or re.search(rf"{element}\s*[<>](?!<|>)|(?<![<>-])[<>]=?\s*{name}\s*\[", source)
    )
