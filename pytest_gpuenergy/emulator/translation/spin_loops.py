"""Loops in which a thread waits for memory to change, and turns for other threads in them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from pytest_gpuenergy.emulator.translation.cuda_syntax import (
    replace_spans,
    tokens_in_all,
    with_depth,
)
from pytest_gpuenergy.kernels import CudaToken

_TURN = "::cuhost::cuhost_turn(), "
_LEFT_OUT = ") && ::cuhost::cuhost_waits_in_vain()"
_WEAK_LOADS = ("__ldcg", "__ldcv")
_SEEN = "(?:volatile|__shared__|__device__)"  # begins declarations of what other threads may see
_CHANGES = {"++", "--", "{", *(f"{sign}=" for sign in ("+", "-", "*", "/", "%", "&", "|", "^"))}
_CHANGES |= {"<<=", ">>="}
_REACHES = ("*", ".", "->")
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
    Atomics contain the call; all other loops that wait reload memory, see `_is_reloaded`. A loop
    that a GPU's compiler leaves out ends in a fault instead, see `_is_left_out`.
    """
    if not _is_reloaded(source):
        return source
    tokens = list(with_depth(tokens_in_all(source)))
    texts = [token.text for token, _ in tokens]
    edits = []
    for k, text in enumerate(texts[:-1]):
        if text not in ("while", "for") or texts[k + 1] != "(":
            continue
        condition = k + 2 if text == "while" else _condition_start(tokens, k + 1)
        if condition is None or condition >= len(tokens):
            continue
        words = texts[condition : condition + 4]
        if words[0].isidentifier() and (
            words[1].isidentifier()
            or (words[1] in "*&" and words[2].isidentifier() and words[3] == "=")
        ):
            continue  # it declares a variable, as `int left = count()` does
        position = tokens[condition][0].start
        if (
            text == "while"
            and (end := _closing_parenthesis(tokens, k + 1))
            and _is_left_out(source, texts, k, end)
        ):
            after = tokens[end][0].start
            edits += [(position, position, "("), (after, after, _LEFT_OUT)]
            continue
        edits.append((position, position, _TURN + "true " * (texts[condition] == ";")))
    return replace_spans(source, edits)


def _is_left_out(source: str, texts: Sequence[str], loop: int, end: int) -> bool:
    """Return whether the loop at a ``while`` does nothing but load past the L1 cache until it ends.

    Such loads are neither volatile nor relaxed for ptxas (``ld.global.cg``, ``ld.global.cv``), and
    a loop without any effect may be assumed to end: CUDA 13.0 removes it, or loads only once, for
    sm_80 and for sm_90. It stays if something else in it has an effect, such as ``__nanosleep``.
    The parenthesis at ``end`` closes its condition.
    """
    inside = list(texts[loop + 2 : end])
    if texts[loop - 1 : loop] == ["}"]:
        begin = _opening_brace(texts, loop - 1)
        if begin and texts[begin - 1] == "do":
            body = texts[begin + 1 : loop - 1]
            if body.count(";") > 1:
                return False
            return _only_loads(source, [*body, ";", *inside])
    is_empty = texts[end + 1 : end + 2] == [";"] or texts[end + 1 : end + 3] == ["{", "}"]
    return is_empty and _only_loads(source, inside)


def _only_loads(source: str, texts: Sequence[str]) -> bool:
    if not set(_WEAK_LOADS) & set(texts):
        return False
    for k, text in enumerate(texts):
        before, earlier, after = ("".join(texts[at : at + 1]) for at in (k - 1, k - 2, k + 1))
        if text.isidentifier():
            calls = after == "(" and text not in _WEAK_LOADS
            if calls or re.search(rf"\b{_SEEN}\b[^;=(){{}}]*\b{text}\b", source):
                return False
        elif text in _CHANGES or (
            text == "=" and (not before.isidentifier() or earlier in _REACHES)
        ):
            return False
    return True


def _closing_parenthesis(tokens: Sequence[tuple[CudaToken, int]], opening: int) -> int:
    """Return the index of the parenthesis that closes the one at ``opening``, or 0."""
    depth = tokens[opening][1]
    for k in range(opening + 1, len(tokens)):
        if tokens[k][1] < depth:
            return k
    return 0


def _opening_brace(texts: Sequence[str], closing: int) -> int:
    """Return the index of the brace that opens the block which ends at ``closing``, or 0."""
    depth = 0
    for k in range(closing, 0, -1):
        depth += (texts[k] == "}") - (texts[k] == "{")
        if not depth:
            return k
    return 0


def _condition_start(tokens: Sequence[tuple[CudaToken, int]], opening: int) -> int | None:
    """Return the index after the first semicolon in the parentheses that open at ``opening``."""
    depth = tokens[opening][1]
    for k in range(opening + 1, len(tokens)):
        token, here = tokens[k]
        if here < depth:
            return None
        if token.text == ";" and here == depth:
            return k + 1
    return None
