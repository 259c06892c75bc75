"""Lets other threads run while one waits in a loop for a volatile variable to change."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuenergy.devices.emulated.tokens import Token, nested

_TURN = "::cuhost::cuhost_turn(), "
_ASSEMBLERS = frozenset(("asm", "__asm", "__asm__"))


def with_turns(source: str) -> str:
    """``source`` with a call in the condition of each loop, if anything in it is volatile.

    Threads take turns on the host, so that one which waits without such a call would wait forever.
    Atomics contain one; only a volatile variable can be waited for without them.
    """
    if "volatile" not in source:
        return source
    tokens = list(nested(source, 0))
    texts = [token.text for token, _ in tokens]
    pairs = zip(["", *texts], texts, strict=False)
    if not any(text == "volatile" and before not in _ASSEMBLERS for before, text in pairs):
        return source
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
