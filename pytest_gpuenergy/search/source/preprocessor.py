"""C++ text after its preprocessor: local includes read, conditions decided, macros replaced.

What only a compiler can decide stays as it is; comments stay, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_gpuenergy.search.extraction.conditions import UndecidedError, holds, is_defined
from pytest_gpuenergy.search.extraction.standard import STANDARD
from pytest_gpuenergy.search.extraction.tokens import Token, joined, seen, tokens_of
from pytest_gpuenergy.search.source.macros import Macro, definition, expanded

Read = Callable[[PurePosixPath], "str | None"]
"""The text of a file of the same tree, by its path; None if there is none."""

_DEEPEST = 32
_MOST_FILES = 1000
_KERNEL_HEADERS = re.compile(
    r"cuda_(fp16|bf16|fp8|pipeline)\.h|cooperative_groups(/\w+)?\.h|mma\.h|cuda/(std/)?\w+"
)
_IGNORED = ("error", "warning", "line", "ident")


@dataclass
class _Branch:
    """An ``#if`` that is open.

    Attributes:
        kept: whether it is left to the compiler.
        active: whether the text is in use.
        taken: whether one of its parts was.
        around: whether the text around it is in use.
    """

    kept: bool
    active: bool
    taken: bool
    around: bool


@dataclass
class Preprocessor:
    """One run over a file.

    Attributes:
        read: gives the files that it includes.
        given: macros that are defined outside of the text, with their values; they stay names.
        headers: CUDA's headers for kernels that are included, in their order.
        missing: includes in quotes that could not be read.
        files: those that were read, in their order.
        opaque: macros of which only the compiler knows whether they are defined, or how.
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
        """The text of a file with all that it includes; None if it cannot be read."""
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
        pending: list[Token] = []
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

    def _expanded(self, tokens: list[Token]) -> str:
        names = {name: m for name, m in self._macros.items() if name not in self.given}
        return joined(expanded(tokens, names))

    def _directive(
        self, path: PurePosixPath, tokens: list[Token], branches: list[_Branch], depth: int
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

    def _define(self, tokens: list[Token], *, kept: bool) -> None:
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

    def _condition(self, name: str, rest: list[Token], branches: list[_Branch]) -> str:
        """Follow ``#if`` to ``#endif``; the directive that stays in the text, if one does."""
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

    def _truth(self, name: str, rest: list[Token]) -> bool | None:
        """Of a condition; None if only the compiler can tell."""
        opaque = frozenset(self.opaque)
        macros = self._macros | {
            name: Macro(None, tuple(tokens_of(f"({_number(value)})")))
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
        if found is None or depth == _DEEPEST or self._read == _MOST_FILES:
            self.missing[name] = None
            return ""
        if found in self._once:
            return ""
        text = self.read(found)
        if text is None:
            self.missing[name] = None
            return ""
        return self._text(found, text, depth + 1) + "\n"


def _number(value: object) -> int | float:
    return int(value) if isinstance(value, bool | int) else 0


def _normal(path: PurePosixPath) -> PurePosixPath | None:
    """The path without ``..``; None if it leads out of the tree."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return None if path.is_absolute() else PurePosixPath(*parts)
