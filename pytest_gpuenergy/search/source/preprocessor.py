"""C++ text after its preprocessor: local includes read, conditions decided, macros replaced.

What only a compiler can decide stays as it is; comments stay, too. This works on tokens, since the
syntax tree is that of one text in which no macro has been replaced: it comes afterwards.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_gpuenergy.search.source.macros import (
    STANDARD,
    CppToken,
    Macro,
    definition,
    expanded,
    joined,
    seen,
    tokens_of,
)

COMPILERS = frozenset(
    [
        *("__CUDA_ARCH__", "CUDA_VERSION", "CUDART_VERSION", "__CUDA_ARCH_LIST__"),
        *("__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__has_include", "__has_builtin"),
    ]
)
"""Macros that only the compiler knows, and on which a kernel can depend."""
_DEFINED = {"__CUDACC__": 1, "__NVCC__": 1, "__cplusplus": 201703}

_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"<<": lambda a, b: a << min(b, 64), ">>": lambda a, b: a >> min(b, 64)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)
_DEEPEST = 50
Read = Callable[[PurePosixPath], "str | None"]
"""The text of a file of the same tree, by its path; None if there is none."""
_DEEPEST_INCLUDE = 32
_MOST_FILES = 1000
_KERNEL_HEADERS = re.compile(
    r"cuda_(fp16|bf16|fp8|pipeline)\.h|cooperative_groups(/\w+)?\.h|mma\.h|cuda/(std/)?\w+"
)
_IGNORED = ("error", "warning", "line", "ident")


class UndecidedError(Exception):
    """A condition depends on the compiler, or is not understood."""


def holds(tokens: list[CppToken], macros: Mapping[str, Macro], opaque: frozenset[str]) -> bool:
    """Return whether a condition is true.

    Args:
        tokens: the tokens after ``#if``.
        macros: the macros that are defined.
        opaque: the macros whose definition is not known.

    Raises:
        UndecidedError: only the compiler can tell.
    """
    plain = _without_defined(seen(tokens), macros, opaque)
    words = [token for token in expanded(plain, macros) if token.is_seen]
    return bool(_Condition(words, opaque).value())


def is_defined(name: str, macros: Mapping[str, Macro], opaque: frozenset[str]) -> bool:
    """Return whether a macro is defined.

    Raises:
        UndecidedError: only the compiler can tell.
    """
    if name in COMPILERS or name in opaque:
        raise UndecidedError
    return name in macros or name in _DEFINED


def _without_defined(
    words: list[CppToken], macros: Mapping[str, Macro], opaque: frozenset[str]
) -> list[CppToken]:
    found: list[CppToken] = []
    at = 0
    while at < len(words):
        if words[at].text != "defined":
            found.append(words[at])
            at += 1
            continue
        rest = [word.text for word in words[at + 1 : at + 4]]
        if rest[:1] == ["("] and rest[2:] == [")"]:
            name, at = rest[1], at + 4
        elif rest:
            name, at = rest[0], at + 2
        else:
            raise UndecidedError
        found.append(CppToken("number", str(int(is_defined(name, macros, opaque)))))
    return found


class _Condition:
    """The evaluation of an integer expression."""

    def __init__(self, words: list[CppToken], opaque: frozenset[str]) -> None:
        self._words = words
        self._opaque = opaque
        self._at = 0

    def value(self) -> int:
        """Return the value of the whole expression."""
        found = self._choice(0)
        if self._at != len(self._words):
            raise UndecidedError
        return found

    def _next(self) -> str:
        return self._words[self._at].text if self._at < len(self._words) else ""

    def _take(self, text: str) -> bool:
        taken = self._next() == text
        self._at += taken
        return taken

    def _choice(self, depth: int) -> int:
        if depth > _DEEPEST:
            raise UndecidedError
        condition = self._binary(0, depth)
        if not self._take("?"):
            return condition
        chosen = self._choice(depth + 1)
        if not self._take(":"):
            raise UndecidedError
        other = self._choice(depth + 1)
        return chosen if condition else other

    def _binary(self, level: int, depth: int) -> int:
        if level == len(_LEVELS):
            return self._unary(depth)
        found = self._binary(level + 1, depth)
        while (function := _LEVELS[level].get(self._next())) is not None:
            self._at += 1
            other = self._binary(level + 1, depth)
            try:
                found = int(function(found, other))
            except (ZeroDivisionError, ValueError):
                raise UndecidedError from None
        return found

    def _unary(self, depth: int) -> int:
        if depth > _DEEPEST:
            raise UndecidedError
        signs: dict[str, Callable[[int], int]] = {
            "!": lambda a: int(not a),
            "-": operator.neg,
            "+": operator.pos,
            "~": operator.invert,
        }
        for sign, function in signs.items():
            if self._take(sign):
                return function(self._unary(depth + 1))
        if self._take("("):
            found = self._choice(depth + 1)
            if not self._take(")"):
                raise UndecidedError
            return found
        return self._primary()

    def _primary(self) -> int:
        if self._at == len(self._words):
            raise UndecidedError
        word = self._words[self._at]
        self._at += 1
        if word.kind == "name" and word.text not in COMPILERS | self._opaque:
            return _DEFINED.get(word.text, 0)
        digits = word.text.rstrip("uUlL").replace("'", "")
        octal = len(digits) > 1 and digits.isdecimal() and digits.startswith("0")
        try:
            return int(digits, 8 if octal else 0)
        except ValueError:
            raise UndecidedError from None


@dataclass
class _Branch:
    """An ``#if`` that is open.

    Attributes:
        kept: whether the condition is left to the compiler.
        active: whether the current part is in use.
        taken: whether one of its parts was in use.
        around: whether the text around the ``#if`` is in use.
    """

    kept: bool
    active: bool
    taken: bool
    around: bool


@dataclass
class Preprocessor:
    """One run of the preprocessor over a file and what it includes.

    Attributes:
        read: a function that returns the text of a file.
        given: the macros that are defined outside of the text, with their values; they stay names.
        headers: the headers of CUDA for kernels that are included, in their order.
        missing: the includes in quotes that could not be read.
        files: the files that were read, in their order.
        opaque: the macros of which only the compiler knows whether they are defined, or how.
    """

    read: Read
    given: Mapping[str, object] = field(default_factory=dict)
    headers: dict[str, None] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    files: dict[PurePosixPath, str] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)
    _macros: dict[str, Macro] = field(default_factory=dict)
    _once: set[PurePosixPath] = field(default_factory=set)
    _read: int = 0

    def run(self, path: PurePosixPath) -> str | None:
        """Return the text of a file with all that it includes; None if it cannot be read."""
        text = self.read(path)
        if text is None:
            return None
        self._macros = dict(STANDARD)
        return self._text(path, text, 0)

    def _text(self, path: PurePosixPath, text: str, depth: int) -> str:
        self.files[path] = text
        self._read += 1
        parts: list[str] = []
        branches: list[_Branch] = []
        pending: list[CppToken] = []
        tokens = list(tokens_of(text))
        at, fresh = 0, True
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if fresh and token.text == "#":
                parts.append(self._expanded(pending))
                pending = []
                end = next((i for i in range(at, len(tokens)) if tokens[i].kind == "line"), None)
                end = len(tokens) if end is None else end
                parts.append(self._directive(path, tokens[at:end], branches, depth))
                at = end
            elif not branches or branches[-1].active or token.kind == "line":
                pending.append(token)
            fresh = token.kind == "line" or (fresh and not token.is_seen)
        return "".join([*parts, self._expanded(pending)])

    def _expanded(self, tokens: list[CppToken]) -> str:
        names = {name: m for name, m in self._macros.items() if name not in self.given}
        return joined(expanded(tokens, names))

    def _directive(
        self, path: PurePosixPath, tokens: list[CppToken], branches: list[_Branch], depth: int
    ) -> str:
        words = seen(tokens)
        if not words:
            return ""
        name = words[0].text
        rest = tokens[tokens.index(words[0]) + 1 :]
        whole = f"#{joined(tokens)}"
        if name.startswith(("if", "el", "endif")):
            left = self._condition(name, rest, branches)
            return f"#{left}{joined(rest)}" if left else ""
        if branches and not branches[-1].active:
            return ""
        kept = any(branch.kept for branch in branches)
        match name:
            case "include":
                return self._include(path, joined(rest).strip(), depth)
            case "define":
                self._define(rest, kept=kept)
                return whole if kept else ""
            case "undef":
                self._undefine(words[1].text if len(words) > 1 else "", kept=kept)
                return whole if kept else ""
            case "pragma" if words[1:2] and words[1].text == "once":
                self._once.add(path)
                return ""
            case "pragma":
                return f"#pragma{self._expanded(rest)}"
        return "" if name in _IGNORED else whole

    def _define(self, tokens: list[CppToken], *, kept: bool) -> None:
        found = definition(tokens)
        if found is None or found[0] in self.given:
            return
        name, macro = found
        if kept:
            self._undefine(name, kept=True)
        else:
            self.opaque.discard(name)
            self._macros[name] = macro

    def _undefine(self, name: str, *, kept: bool) -> None:
        self._macros.pop(name, None)
        if kept:
            self.opaque.add(name)

    def _condition(self, name: str, rest: list[CppToken], branches: list[_Branch]) -> str:
        """Follow ``#if`` to ``#endif``; return the directive that stays in the text, or ""."""
        if name in ("if", "ifdef", "ifndef"):
            around = not branches or branches[-1].active
            truth = self._truth(name, rest) if around else False
            branches.append(
                _Branch(truth is None, around and truth is not False, bool(truth), around)
            )
            return name if truth is None else ""
        if not branches:
            return ""
        branch = branches.pop() if name == "endif" else branches[-1]
        if branch.kept:
            return name
        if name == "else":
            branch.active, branch.taken = branch.around and not branch.taken, True
        elif name != "endif" and branch.around:
            truth = False if branch.taken else self._truth(name.removeprefix("el"), rest)
            branch.kept = truth is None
            branch.active, branch.taken = truth is not False, branch.taken or truth is not False
        return "if" if branch.kept else ""

    def _truth(self, name: str, rest: list[CppToken]) -> bool | None:
        """Return whether a condition is true; None if only the compiler can tell."""
        opaque = frozenset(self.opaque)
        macros = self._macros | {
            name: Macro(None, tuple(tokens_of(f"({int(value) if isinstance(value, int) else 0})")))
            for name, value in self.given.items()
        }
        try:
            if name == "if":
                return holds(rest, macros, opaque)
            word = next((token.text for token in rest if token.is_seen), "")
            return is_defined(word, macros, opaque) == (name == "ifdef")
        except UndecidedError:
            return None

    def _include(self, path: PurePosixPath, what: str, depth: int) -> str:
        if what.startswith("<"):
            name = what[1:].partition(">")[0].strip()
            if _KERNEL_HEADERS.fullmatch(name):
                self.headers[f"<{name}>"] = None
            return ""
        name = what.strip('"')
        if _KERNEL_HEADERS.fullmatch(name):
            self.headers[f"<{name}>"] = None
            return ""
        found = _normal(path.parent / name)
        if found is None or depth == _DEEPEST_INCLUDE or self._read == _MOST_FILES:
            self.missing[name] = None
            return ""
        if found in self._once:
            return ""
        text = self.read(found)
        if text is None:
            self.missing[name] = None
            return ""
        return self._text(found, text, depth + 1) + "\n"


def _normal(path: PurePosixPath) -> PurePosixPath | None:
    """Return the path without ``..``; None if it leads out of the tree."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return None if path.is_absolute() else PurePosixPath(*parts)
