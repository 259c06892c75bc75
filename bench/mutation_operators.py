"""Faults that a programmer may make in CUDA text, one at a time: the mutants of a kernel.

Every operator looks for its places in the text, apart from comments, strings and directives. A
mutant may not compile, or may compute what the original computes: whoever runs it decides that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

_HIDDEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
      | ^[ \t]*\#(?:[^\\\n]|\\.|\\\n)*""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_BEFORE = r"(?<=[\w)\]])(?P<gap>\s*)"  # of a binary operator: an operand
_AFTER = r"(?=\s*[\w(.\-])"
_STATEMENT = re.compile(r"(?<=[;{})])\s*(?P<it>[A-Za-z_][^;{}]*;)")
_DECLARATION = re.compile(r"(?:const\s+)?(?:unsigned|signed|int|float|double|bool|char|long|short|"
                          r"half|size_t|auto|__shared__|extern|static|using|typedef|u?int\d+_t|"
                          r"float[234]|int[234])\b")  # fmt: skip
_LEAVING = re.compile(r"(?:return|break|continue|else|if|for|while|do|case|struct)\b")
_TYPED = re.compile(r"(?:float|int|double|char|short|bool|unsigned|long)\d?\s+[\w\[\], ]*$")
_TYPE = re.compile(r"\b(?:float|int|double|char|short|bool|unsigned|long|half|void)\d?\s*$")
_BARRIER = re.compile(r"__(?:syncthreads\w*|syncwarp|threadfence\w*)\s*\([^()]*\)")
_BODY = re.compile(r"\bvoid\b[^;{}]*\{")
_FOR = re.compile(
    r"\bfor\s*\((?P<first>[^;()]*(?:\([^()]*\)[^;()]*)*);"
    r"(?P<condition>[^;]*);(?P<step>[^;()]*)\)"
)


@dataclass(frozen=True)
class Change:
    """A replacement of text from ``start`` up to ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mutant:
    """A kernel's text with one fault.

    Attributes:
        operator: name of the kind of fault.
        line: of the fault, from 1.
        before, after: the text that changed.
        source: the whole text.
    """

    operator: str
    line: int
    before: str
    after: str
    source: str


Operator = Callable[[str], Iterator[Change]]


def visible(source: str) -> str:
    """``source`` with blanks in place of comments, strings and directives."""
    return _HIDDEN.sub(lambda hidden: re.sub(r"[^\n]", " ", hidden[0]), source)


def _exchange(pattern: str, *replacements: str) -> Operator:
    """Replace what matches ``pattern``, or its group ``it``, by each of ``replacements``."""
    compiled = re.compile(pattern)

    def changes(text: str) -> Iterator[Change]:
        for found in compiled.finditer(text):
            group = "it" if "it" in compiled.groupindex else 0
            for replacement in replacements:
                if replacement != found[group]:
                    yield Change(*found.span(group), replacement)

    return changes


def _all(*operators: Operator) -> Operator:
    return lambda text: (change for operator in operators for change in operator(text))


def _binary(symbol: str, *replacements: str) -> Operator:
    return _exchange(rf"{_BEFORE}(?P<it>{re.escape(symbol)}){_AFTER}", *replacements)


def _integers(text: str) -> Iterator[Change]:
    for found in re.finditer(r"(?<![\w.])(\d+)(?![\w.])", text):
        number = int(found[0])
        for other in {number + 1, max(number - 1, 0), 2 * number} - {number}:
            yield Change(*found.span(), str(other))


def _reals(text: str) -> Iterator[Change]:
    for found in re.finditer(r"(?<![\w.])(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?f?\b", text):
        zero = float(found[0].rstrip("f")) == 0
        for other in ("1.0f", "-1.0f") if zero else ("0.0f", f"(2 * {found[0]})", f"-{found[0]}"):
            yield Change(*found.span(), other)


def _products(text: str) -> Iterator[Change]:
    for change in _binary("*", "+")(text):
        if not _TYPE.search(text, max(0, change.start - 20), change.start):
            yield change


def _statements(text: str) -> Iterator[re.Match[str]]:
    """Assignments and calls, without declarations, barriers and what leaves a function or loop."""
    depths = list(accumulate({"(": 1, ")": -1}.get(symbol, 0) for symbol in text))
    position = 0
    while found := _STATEMENT.search(text, position):
        if depths[found.start("it")]:  # in the head of a loop
            position = found.start("it") + 1
            continue
        position = found.end()
        if not any(kept.match(found["it"]) for kept in (_LEAVING, _DECLARATION, _BARRIER)):
            yield found


def _removed(text: str) -> Iterator[Change]:
    for found in _statements(text):
        yield Change(*found.span("it"), ";")


def _rounded(text: str) -> Iterator[Change]:
    """Sums in fewer bits: those of TF32 and half, and of bfloat16."""
    for found in _statements(text):
        if added := re.fullmatch(r"(\w+)\s*\+=\s*([^;]+);", found["it"], re.DOTALL):
            for mask in ("0xffffe000", "0xffff0000"):
                bits = f"__float_as_uint({added[1]} + ({added[2]})) & {mask}"
                yield Change(*found.span("it"), f"{added[1]} = __uint_as_float({bits});")


def _skipped_turns(text: str) -> Iterator[Change]:
    for found in _FOR.finditer(text):
        if variable := re.search(r"(\w+)\s*=[^=]*$", found["first"]):
            for turn in (0, 3, 33):
                yield Change(found.end(), found.end(), f" if ({variable[1]} != {turn})")


def _repeated(text: str) -> Iterator[Change]:
    for found in _statements(text):
        yield Change(*found.span("it"), f"{{ {found['it']} {found['it']} }}")


def _uninitialized(text: str) -> Iterator[Change]:
    types = r"(?:float|double|int|unsigned(?: int)?|long long|bool)"
    for found in re.finditer(rf"(?<=[;{{}}])\s*{types} \w+(?P<it>\s*=\s*[^;,(){{}}]+);", text):
        yield Change(*found.span("it"), "")


def _conditions(text: str) -> Iterator[Change]:
    for found in re.finditer(r"\bif\s*\(", text):
        end = _closing(text, found.end())
        condition = text[found.end() : end]
        for other in ("true", "false", f"!({condition})"):
            yield Change(found.end(), end, other)


def _closing(text: str, position: int) -> int:
    """Where the bracket that was opened before ``position`` is closed."""
    depth = 1
    for index in range(position, len(text)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text)


def _loops(text: str) -> Iterator[Change]:
    for found in _FOR.finditer(text):
        start = found.start("condition")
        if bound := re.search(r"[<>]=?\s*(?P<it>[^<>=&|]+)$", found["condition"]):
            low, high = start + bound.start("it"), start + bound.end("it")
            for change in ("- 1", "+ 1", "/ 2"):
                yield Change(low, high, f"({bound['it']}) {change}")
        if first := re.search(r"=\s*(?P<it>[^=,]+)$", found["first"]):
            low = found.start("first")
            yield Change(low + first.start("it"), low + first.end("it"), f"({first['it']}) + 1")
        if step := re.search(r"\+\+\s*(\w+)|(\w+)\s*\+\+", found["step"]):
            yield Change(*found.span("step"), f"{step[1] or step[2]} += 2")


def _subscripts(text: str) -> Iterator[Change]:
    for found in re.finditer(r"(?<=[\w\])])\[", text):
        end = _closing(text, found.end())
        index = text[found.end() : end]
        declared = _TYPED.search(text[max(0, found.start() - 60) : found.start()])
        if not index.strip() or declared:
            continue
        for other in (f"({index}) + 1", f"({index}) - 1", "0"):
            yield Change(found.end(), end, other)


def _shared_sizes(text: str) -> Iterator[Change]:
    for found in re.finditer(r"__shared__[^;\[]*\[(?P<it>[^\]]+)\]", text):
        for other in ("/ 2", "- 1"):
            yield Change(*found.span("it"), f"({found['it']}) {other}")


def _states(text: str) -> Iterator[Change]:
    """Exits that depend on what earlier launches have left."""
    threads = "gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z"
    for body in _BODY.finditer(text):
        if "__global__" not in text[max(0, body.start() - 200) : body.start()]:
            continue
        for launches in (1, 2, 50):
            exit_ = f"static unsigned calls; if (calls++ >= {launches} * {threads}) return;"
            yield Change(body.end(), body.end(), f" {exit_}")
        for pointer in re.finditer(r"[(,]\s*\w[\w ]*\*\s*(?:__restrict__\s*)?(\w+)", body[0]):
            if "const" not in pointer[0]:
                exit_ = f"if (isfinite((float){pointer[1]}[threadIdx.x])) return;"
                yield Change(body.end(), body.end(), f" {exit_}")


def _early_exits(text: str) -> Iterator[Change]:
    conditions = (
        "threadIdx.x == 0",
        "threadIdx.x == blockDim.x - 1",
        "blockIdx.x == gridDim.x - 1",
        "(blockIdx.x + threadIdx.x) % 64 == 63",
    )
    for body in _BODY.finditer(text):
        if "__global__" in text[max(0, body.start() - 200) : body.start()]:
            for condition in conditions:
                yield Change(body.end(), body.end(), f" if ({condition}) return;")


OPERATORS: Mapping[str, Operator] = {
    "arithmetic": _all(
        _binary("+", "-"), _binary("-", "+"), _binary("/", "*"), _binary("%", "/"), _products,
    ),
    "assignment": _all(
        _exchange(r"\+=", "=", "-="), _exchange(r"\*=", "+="), _exchange(r"-=", "+="),
    ),
    "comparison": _all(
        _exchange(r"(?<=[\w)\]])\s(?P<it><)\s", "<=", ">", "!="), _exchange(r"<=", "<"),
        _exchange(r"(?<=[\w)\]])\s(?P<it>>)\s", ">=", "<"), _exchange(r">=", ">"),
        _exchange(r"==", "!="), _exchange(r"!=", "=="),
    ),
    "logic": _all(
        _exchange(r"&&", "||"), _exchange(r"\|\|", "&&"), _exchange(r"<<(?!=)", ">>"),
        _exchange(r">>(?!=)", "<<"), _exchange(r"(?<=\s)&(?=\s)", "|"),
        _exchange(r"(?<=\s)\|(?=\s)", "&"), _exchange(r"(?<=\s)\^(?=\s)", "|"),
    ),
    "constant": _integers,
    "real constant": _reals,
    "barrier removed": _exchange(_BARRIER.pattern, ""),
    "barrier weakened": _exchange(r"__syncthreads(?=\s*\(\s*\))", "__syncwarp"),
    "statement removed": _removed,
    "statement repeated": _repeated,
    "initialization removed": _uninitialized,
    "condition": _conditions,
    "loop": _loops,
    "turn of a loop": _skipped_turns,
    "precision": _rounded,
    "subscript": _subscripts,
    "swapped index": _all(
        _exchange(r"\bthreadIdx\.x\b", "threadIdx.y", "blockIdx.x"),
        _exchange(r"\bthreadIdx\.y\b", "threadIdx.x"),
        _exchange(r"\bblockIdx\.x\b", "threadIdx.x", "blockIdx.y"),
        _exchange(r"\bblockIdx\.y\b", "blockIdx.x"),
        _exchange(r"\bblockDim\.x\b", "gridDim.x"), _exchange(r"\bgridDim\.x\b", "blockDim.x"),
    ),
    "shared size": _shared_sizes,
    "early exit": _early_exits,
    "state": _states,
    "atomic": _all(
        _exchange(r"\batomicAdd\b", "atomicMax", "atomicExch"),
        _exchange(r"\batomicMax\b", "atomicMin"),
        lambda text: (
            Change(*found.span(), f"*({found[1]}) += {found[2]}")
            for found in re.finditer(r"\batomicAdd\(([^,()]*),([^,()]*)\)", text)
        ),
    ),
    "warp": _all(
        _exchange(r"\b__shfl_down_sync\b", "__shfl_up_sync", "__shfl_xor_sync"),
        _exchange(r"\b__shfl_up_sync\b", "__shfl_down_sync"),
        _exchange(r"\b__shfl_xor_sync\b", "__shfl_down_sync"),
    ),
    "function": _all(
        _exchange(r"\bfmaxf\b", "fminf"), _exchange(r"\bmax\b(?=\()", "min"),
        _exchange(r"\bmin\b(?=\()", "max"), _exchange(r"\bfminf\b", "fmaxf"),
        _exchange(r"\bexpf\b", "exp2f"), _exchange(r"\brsqrtf\b", "sqrtf"),
    ),
}  # fmt: skip
"""By name; each gives all the changes that it knows for a text."""


def mutants(source: str, number: int, seed: int) -> list[Mutant]:
    """A sample of the mutants of a text: the operators in turn, and for each a random place.

    Args:
        source: the kernel's text.
        number: of mutants; fewer if there are no more.
        seed: the same one gives the same mutants.
    """
    text = visible(source)
    chance = random.Random(f"{seed} {len(source)}")
    places = {name: _places(operator, source, text) for name, operator in OPERATORS.items()}
    for changes in places.values():
        chance.shuffle(changes)
    names = [name for name, changes in places.items() if changes]
    chance.shuffle(names)
    chosen: list[Mutant] = []
    while names and len(chosen) < number:
        for name in tuple(names):
            if not places[name]:
                names.remove(name)
            elif len(chosen) < number:
                chosen.append(_mutant(source, name, places[name].pop()))
    return chosen


def _places(operator: Operator, source: str, text: str) -> list[Change]:
    """The distinct changes that an operator makes to the source, in a fixed order."""
    real = {c for c in operator(text) if source[c.start : c.end] != c.text}
    return sorted(real, key=lambda change: (change.start, change.end, change.text))


def _mutant(source: str, operator: str, change: Change) -> Mutant:
    return Mutant(
        operator,
        source.count("\n", 0, change.start) + 1,
        source[change.start : change.end],
        change.text,
        source[: change.start] + change.text + source[change.end :],
    )
