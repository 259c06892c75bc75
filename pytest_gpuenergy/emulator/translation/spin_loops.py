"""Lets other threads run while one waits in a loop for memory to change."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuenergy.emulator.translation.cuda_text import Token, nested

_TURN = "::cuhost::cuhost_turn(), "
# Not of assembler, nor in TVM's prelude, which defines __volatile__.
_NO_VARIABLE = re.compile(r"//|\basm\s*$|\b__asm(?:__)?\s*$|#\s*define\s+__volatile__")

_ATOMIC = r"\batomic\w*\s*[(<]|\b(?:atom|red)\.[a-z]|\bld\.(?:volatile|relaxed|acquire)\b"


def occurs(source: str, pattern: str, besides: re.Pattern[str] = re.compile("//")) -> bool:
    """Whether ``pattern`` occurs in a line of which ``besides`` matches nothing before it."""
    for match in re.finditer(pattern, source):
        line = source.rfind("\n", 0, match.start()) + 1
        if not besides.search(source, line, match.start()):
            return True
    return False


def is_volatile(source: str) -> bool:
    """Whether anything in a text is volatile, apart from assembler."""
    return occurs(source, r"\bvolatile\b", _NO_VARIABLE)


def is_reloaded(source: str) -> bool:
    """Whether a thread may see memory change: it is volatile, or loaded past the L1 cache."""
    return is_volatile(source) or occurs(source, r"\b__ldc[gv]\s*\(")


def may_wait(source: str) -> bool:
    """Whether a thread may wait for another block: by an atomic or such a load, also of PTX."""
    return occurs(source, _ATOMIC) or is_reloaded(source)


def may_decide(source: str) -> bool:
    """Whether an atomic may do more than add: a plain read before it may then be a guess."""
    return occurs(source, r"\batomic(?!Add|Sub|Inc|Dec|Xor)\w*\s*\(|\batom\.")


def with_turns(source: str) -> str:
    """``source`` with a call in the condition of each loop, if memory is loaded again and again.

    Threads take turns on the host, so that one which waits without such a call would wait forever.
    Atomics contain one; without them only what `is_reloaded` can be waited for.
    """
    if not is_reloaded(source):
        return source
    tokens = list(nested(source, 0))
    texts = [token.text for token, _ in tokens]
    parts, last = [], 0
    for k, text in enumerate(texts[:-1]):
        if text not in ("while", "for") or texts[k + 1] != "(":
            continue
        condition = k + 2 if text == "while" else _after_semicolon(tokens, k + 1)
        if condition is None or condition >= len(tokens) or _declares(texts, condition):
            continue
        position = tokens[condition][0].start
        parts += [source[last:position], _TURN, "true " if texts[condition] == ";" else ""]
        last = position
    return "".join([*parts, source[last:]])


def _after_semicolon(tokens: Sequence[tuple[Token, int]], opening: int) -> int | None:
    """Index after the first semicolon in the parentheses that open at ``opening``."""
    depth = tokens[opening][1]
    for k in range(opening + 1, len(tokens)):
        token, here = tokens[k]
        if here < depth:
            return None
        if token.text == ";" and here == depth:
            return k + 1
    return None


def _declares(texts: Sequence[str], k: int) -> bool:
    """Whether the condition at ``k`` declares a variable, such as ``int left = count()``."""
    words = texts[k : k + 4]
    if not words[0].isidentifier():
        return False
    return words[1].isidentifier() or (
        words[1] in "*&" and words[2].isidentifier() and words[3] == "="
    )
