"""Loops in which a thread waits for memory to change, and turns for other threads in them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from pytest_gpuenergy.emulator.translation.cuda_syntax import (
    edited,
    tokens_in_all,
    with_depth,
)
from pytest_gpuenergy.kernels import CudaToken

_TURN = "::cuhost::cuhost_turn(), "
# Before a ``volatile`` that belongs to assembler or to the prelude of TVM.
_NO_VARIABLE = re.compile(r"//|\basm\s*$|\b__asm(?:__)?\s*$|#\s*define\s+__volatile__")

_ATOMIC = r"\batomic\w*\s*[(<]|\b(?:atom|red)\.[a-z]|\bld\.(?:volatile|relaxed|acquire)\b"


def occurs(source: str, pattern: str, besides: re.Pattern[str] = re.compile("//")) -> bool:
    """Return whether a line contains ``pattern`` with no earlier match of ``besides``."""
    for match in re.finditer(pattern, source):
        line = source.rfind("\n", 0, match.start()) + 1
        if not besides.search(source, line, match.start()):
            return True
    return False


def _is_reloaded(source: str) -> bool:
    """Return whether a thread may see memory change by volatile loads or ones past the L1 cache."""
    volatile = occurs(source, r"\bvolatile\b", _NO_VARIABLE)
    return volatile or occurs(source, r"\b__ldc[gv]\s*\(")


@functools.lru_cache(maxsize=64)
def may_wait(source: str) -> bool:
    """Return whether a thread may wait for another block, by an atomic or a load of CUDA or PTX."""
    return occurs(source, _ATOMIC) or _is_reloaded(source)


def may_decide(source: str) -> bool:
    """Return whether an atomic may do more than add, so that a plain read before it is a guess."""
    return occurs(source, r"\batomic(?!Add|Sub|Inc|Dec|Xor)\w*\s*\(|\batom\.")


def with_turns(source: str) -> str:
    """Return ``source`` with a call in the condition of each loop, if it reloads memory.

    Threads take turns on the host, so a thread that waits without such a call waits forever.
    Atomics contain the call; all other loops that wait reload memory, see `_is_reloaded`.
    """
    if not _is_reloaded(source):
        return source
    tokens = list(with_depth(tokens_in_all(source)))
    texts = [token.text for token, _ in tokens]
    edits = []
    for k, text in enumerate(texts[:-1]):
        if text not in ("while", "for") or texts[k + 1] != "(":
            continue
        condition = k + 2 if text == "while" else _after_semicolon(tokens, k + 1)
        if condition is None or condition >= len(tokens):
            continue
        words = texts[condition : condition + 4]
        if words[0].isidentifier() and (
            words[1].isidentifier()
            or (words[1] in "*&" and words[2].isidentifier() and words[3] == "=")
        ):
            continue  # it declares a variable, as `int left = count()` does
        position = tokens[condition][0].start
        edits.append((position, position, _TURN + "true " * (texts[condition] == ";")))
    return edited(source, edits)


def _after_semicolon(tokens: Sequence[tuple[CudaToken, int]], opening: int) -> int | None:
    """Return the index after the first semicolon in the parentheses that open at ``opening``."""
    depth = tokens[opening][1]
    for k in range(opening + 1, len(tokens)):
        token, here = tokens[k]
        if here < depth:
            return None
        if token.text == ";" and here == depth:
            return k + 1
    return None
