"""The loads that a compiler leaves in branches of their own, found in a kernel's text.

A conditional load, `if (inside) value = data[index];`, becomes a predicated instruction if its
address has been computed before; many such loads can be in flight at a time. If the address still
takes a division, it becomes a branch, and what follows waits for the value. NVRTC 13.5 does so for
sm_90.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.kernel_text import definition_of

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d\w*|[=!<>]=|\S")
_POINTER = re.compile(r"\*\s*(?:const\s+|__restrict__\s+)*(\w+)\s*(?:,|$)")
_BARRIER = "__syncthreads"


@dataclass(frozen=True)
class _Scope:
    """A loop or a condition around a statement.

    Attributes:
        condition: whether it is a condition.
        trips: number of iterations of a loop; 1 where its head does not give it in numbers.
        variable: loop variable of a loop with a barrier in it, which is not unrolled.
    """

    condition: bool
    trips: int = 1
    variable: str = ""


@dataclass(frozen=True)
class _Load:
    """One load in the text: the tokens of its index, and the scopes around it."""

    index: Sequence[str]
    scopes: Sequence[_Scope]
    conditional: bool

    @property
    def count(self) -> int:
        """How often a thread executes it."""
        count = 1
        for scope in self.scopes:
            count *= scope.trips
        return count

    @property
    def branched(self) -> bool:
        variables = {scope.variable for scope in self.scopes if scope.variable}
        return self.conditional and any(
            # What depends neither on the thread nor on the iteration is computed beforehand.
            "threadIdx" in dividend and (not variables or variables & set(dividend))
            for dividend in _dividends(self.index)
        )


def branched_share(source: str, entry: str) -> float:
    """The share of branched loads among the loads that a thread of ``entry`` makes by pointers.

    Only expressions that name `threadIdx` are taken to depend on the thread, loops whose bounds are
    not numbers count once, and loads within the condition of a branch are not found. The share
    decides what a modelled load waits for: if it is wrong, a modelled time is wrong and nothing
    else.
    """
    definition = definition_of(source, entry)
    pointers = frozenset(_POINTER.findall(definition.parameters))
    loads = list(_loads(_TOKEN.findall(definition.body), pointers))
    total = sum(load.count for load in loads)
    return sum(load.count for load in loads if load.branched) / total if total else 0.0


def _loads(tokens: Sequence[str], pointers: frozenset[str]) -> Iterator[_Load]:
    blocks: list[list[_Scope]] = []  # of the braces around the statement
    heads: list[_Scope] = []  # of the statement itself
    at = begin = 0
    while at < len(tokens):
        word = tokens[at]
        at += 1
        if word == "for" or word == "if":
            after = _closing(tokens, at) + 1
            heads.append(_loop(tokens, at, after) if word == "for" else _Scope(condition=True))
            at = begin = after
        elif word == "else":
            heads.append(_Scope(condition=True))
            begin = at
        elif word in ("{", "}", ";"):
            if word == "{":
                blocks.append(heads)
            elif word == "}" and blocks:
                blocks.pop()
            heads, begin = [], at
        elif word in pointers and (found := _access(tokens, at)):
            index, at, stored = found
            if not stored:
                scopes = [scope for block in (*blocks, heads) for scope in block]
                chosen = any(scope.condition for scope in scopes) or "?" in tokens[begin:at]
                yield _Load(index, scopes, chosen)


def _loop(tokens: Sequence[str], head: int, body: int) -> _Scope:
    """The scope of the loop whose head is in the parentheses that open at ``head``."""
    first, _, rest = " ".join(tokens[head + 1 : body - 1]).partition(";")
    start = re.search(r"(\w+) = (\d+) $", first)
    stop = re.search(r"< (\d+) $", rest.partition(";")[0])
    trips = int(stop[1]) - int(start[2]) if start and stop else 1
    kept = start is not None and _BARRIER in tokens[body : _closing(tokens, body)]
    return _Scope(False, max(1, trips), start[1] if start and kept else "")


def _access(tokens: Sequence[str], at: int) -> tuple[Sequence[str], int, bool] | None:
    """An access such as `p[i]` or `*(T*)(p + i)`: its index, its end, and whether it is a store.

    ``at`` is the position after the pointer's name. None if there is no access.
    """
    if tokens[at : at + 1] == ["["]:
        end = _closing(tokens, at)
    elif tokens[at - 2 : at - 1] == ["("]:
        end = _closing(tokens, at - 2)
    else:
        return None
    after = end + 1
    while tokens[after : after + 1] == [")"]:
        after += 1
    return tokens[at:end], end + 1, tokens[after : after + 1] == ["="]


def _dividends(index: Sequence[str]) -> Iterator[Sequence[str]]:
    """The dividends of all divisions except those by a power of two, which are mere shifts."""
    for at, word in enumerate(index[:-1]):
        if word not in ("/", "%") or at == 0:
            continue
        divisor = index[at + 1]
        if divisor.isdigit() and int(divisor).bit_count() == 1:
            continue
        begin = _opening(index, at - 1)
        while begin > 1 and index[begin - 1] in (".", "*", "/", "%"):
            begin = _opening(index, begin - 2)
        yield index[begin:at]


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def _closing(tokens: Sequence[str], at: int) -> int:
    """Where the bracket that opens at ``at`` is closed; the end of the text if it is not."""
    if at >= len(tokens) or tokens[at] not in _CLOSING:
        return at
    opened, closed, depth = tokens[at], _CLOSING[tokens[at]], 0
    for place in range(at, len(tokens)):
        depth += (tokens[place] == opened) - (tokens[place] == closed)
        if not depth:
            return place
    return len(tokens)


def _opening(tokens: Sequence[str], at: int) -> int:
    """Where the operand that ends at ``at`` begins."""
    depth = 0
    for place in range(at, -1, -1):
        depth += (tokens[place] == ")") - (tokens[place] == "(")
        if depth <= 0:
            return place
    return 0
