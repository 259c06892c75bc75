"""Which variables at the file scope of CUDA text keep nothing from launch to launch."""

from __future__ import annotations

from collections.abc import Sequence


def is_constant(words: Sequence[str]) -> bool:
    """Whether variables are in shared or constant memory, or cannot be changed.

    Args:
        words: of a declaration up to its first brace or its end, without ``template <...>``.
    """
    first, *others = _declarators(words)
    specifiers = set(first[: first.index("(")] if "(" in first else first)
    if specifiers & {"__shared__", "__constant__", "constexpr"}:
        return True
    return "const" in specifiers and not any(map(_is_variable_pointer, (first, *others)))


def _is_variable_pointer(declarator: Sequence[str]) -> bool:
    """Whether a pointer or a reference, whatever it points to, is not constant itself."""
    last = max((at for at, word in enumerate(declarator) if word in ("*", "&")), default=None)
    return last is not None and "const" not in declarator[last:]


def _declarators(words: Sequence[str]) -> list[list[str]]:
    """What stands before each ``=``, without arguments of templates."""
    found: list[list[str]] = [[]]
    depth, value = 0, False
    for word in words:
        depth += (word in ("<", "(", "[")) - (word in (">", ")", "]"))
        if depth == 0 and word == ",":
            found.append([])
            value = False
        elif depth == 0 and word == "=":
            value = True
        elif not value and word not in (">", "<") and not (depth and word == "const"):
            found[-1].append(word)
    return found
