"""C++ text after its preprocessor: local includes read, conditions decided, macros replaced.

What only a compiler can decide stays as it is; comments stay, too. This works on tokens, since a
syntax tree needs a text in which macros have been replaced: it comes afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from pytest_gpuenergy.kernels import cuda_tokens
from pytest_gpuenergy.search.source.tree import constant_value, expression

_MAX_REPLACED = 20_000
"""The limit on macros replaced in one go, since a few that contain each other can be many."""
_MAX_DEPTH = 100
"""The limit on macros within macros."""
_TEXTS = {
    "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f",
    "FLT_EPSILON": "1.192092896e-7f",
    "DBL_MAX": "1.7976931348623158e+308",
    "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "INFINITY": "__int_as_float(0x7f800000)",
    "NAN": "__int_as_float(0x7fffffff)",
    "INT_MAX": "2147483647",
    "INT_MIN": "(-2147483647 - 1)",
    "UINT_MAX": "4294967295u",
    "M_PI": "3.14159265358979323846",
    "M_PI_2": "1.57079632679489661923",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440",
    "M_E": "2.7182818284590452354",
    "M_LN2": "0.69314718055994530942",
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned",
    "int64_t": "long long",
    "uint64_t": "unsigned long long",
}
"""C11, sections 5.2.4.2 and 7.20, as far as it goes for the GPU; pi and others as in POSIX."""


class CppToken(NamedTuple):
    """A token of a text, or what is between two.

    The kind is that of a `CudaToken`, or ``blank`` for white space and comments.
    """

    kind: str
    text: str

    @property
    def is_seen(self) -> bool:
        """Whether this is more than white space and comments."""
        return self.kind != "blank"


def split_tokens(text: str, begin: int = 0) -> Iterator[CppToken]:
    """Yield the tokens of a text and what is between them; joined, they are the text again."""
    for token in cuda_tokens(text, begin):
        if token.start > begin:
            yield CppToken("blank", text[begin : token.start])
        yield CppToken(token.kind, token.text)
        begin = token.end
    if begin < len(text):
        yield CppToken("blank", text[begin:])


def joined(tokens: Iterable[CppToken]) -> str:
    """Return the text of tokens."""
    return "".join(token.text for token in tokens)


def seen(tokens: Iterable[CppToken]) -> list[CppToken]:
    """Return the tokens without white space and comments."""
    return [token for token in tokens if token.is_seen]


_BLANK = CppToken("blank", " ")


@dataclass(frozen=True)
class Macro:
    """The definition of a macro.

    Attributes:
        parameters: the names of the parameters, of which the last can be ``__VA_ARGS__``; None for
            a macro without a parameter list.
        body: the tokens that the macro stands for.
    """

    parameters: tuple[str, ...] | None
    body: tuple[CppToken, ...]


def definition(tokens: list[CppToken]) -> tuple[str, Macro] | None:
    """Return the name and macro of what follows ``#define``; None if it is not understood."""
    start = next((i for i, token in enumerate(tokens) if token.is_seen), len(tokens))
    rest = tokens[start:]
    if not rest or rest[0].kind != "name":
        return None
    name, rest = rest[0].text, rest[1:]
    if not rest or rest[0].text != "(":
        return name, Macro(None, _trim(rest))
    end = next((i for i, token in enumerate(rest) if token.text == ")"), None)
    if end is None:
        return None
    listed = joined(seen(rest[1:end])).replace("...", "__VA_ARGS__")
    parameters = tuple(listed.split(",")) if listed else ()
    return name, Macro(parameters, _trim(rest[end + 1 :]))


def _trim(tokens: list[CppToken]) -> tuple[CppToken, ...]:
    plain = [token if token.is_seen else _BLANK for token in tokens]
    places = [i for i, token in enumerate(plain) if token.is_seen]
    return tuple(plain[places[0] : places[-1] + 1]) if places else ()


def expand_macros(tokens: list[CppToken], macros: Mapping[str, Macro]) -> list[CppToken]:
    """Return the tokens with all macros replaced; a call that does not fit its macro stays."""
    return _Expansion(macros).of(tokens, frozenset())


class _Expansion:
    """The replacement of macros, up to a number of them."""

    def __init__(self, macros: Mapping[str, Macro]) -> None:
        self._macros = macros
        self._left = _MAX_REPLACED

    def of(self, tokens: list[CppToken], hidden: frozenset[str]) -> list[CppToken]:
        """Return the tokens with all macros replaced but the hidden ones, as around them."""
        found: list[CppToken] = []
        at = 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            macro = self._macros.get(token.text) if token.kind == "name" else None
            done = self._left == 0 or len(hidden) == _MAX_DEPTH
            if macro is None or token.text in hidden or done:
                found.append(token)
                continue
            inner = hidden | {token.text}
            body = list(macro.body)
            if macro.parameters is not None:
                call = _arguments(tokens, at)
                values = None if call is None else _bind_arguments(macro.parameters, call[0])
                if call is None or values is None:
                    found.append(token)
                    continue
                at = call[1]
                full = {name: self.of(value, hidden) for name, value in values.items()}
                body = _substitute(macro.body, values, full)
            self._left -= 1
            found += self.of(body, inner)
        return found


def _arguments(tokens: list[CppToken], at: int) -> tuple[list[list[CppToken]], int] | None:
    """Return the arguments of a call whose parenthesis comes next, and where it ends."""
    while at < len(tokens) and not tokens[at].is_seen:
        at += 1
    if at == len(tokens) or tokens[at].text != "(":
        return None
    parts: list[list[CppToken]] = [[]]
    depth = 0
    for place in range(at, len(tokens)):
        token = tokens[place]
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth == 0:
            return parts, place + 1
        if token.text == "," and depth == 1:
            parts.append([])
        elif place > at:
            parts[-1].append(token)
    return None


def _bind_arguments(
    parameters: tuple[str, ...], arguments: list[list[CppToken]]
) -> dict[str, list[CppToken]] | None:
    if parameters and parameters[-1] == "__VA_ARGS__":
        fixed = len(parameters) - 1
        rest: list[CppToken] = []
        for number, argument in enumerate(arguments[fixed:]):
            rest += [CppToken("symbol", ","), *argument] if number else argument
        arguments = [*arguments[:fixed], rest]
    if not parameters and len(arguments) == 1 and not seen(arguments[0]):
        arguments = []
    if len(parameters) != len(arguments):
        return None
    values = zip(parameters, arguments, strict=True)
    return {name: list(_trim(value)) for name, value in values}


def _substitute(
    body: tuple[CppToken, ...],
    plain: Mapping[str, list[CppToken]],
    full: Mapping[str, list[CppToken]],
) -> list[CppToken]:
    """Return the body of a macro with arguments for parameters, and ``#`` and ``##`` applied."""
    found: list[CppToken] = []
    places = [i for i, token in enumerate(body) if token.is_seen]
    befores, afters = [None, *places[:-1]], [*places[1:], None]
    around = dict(zip(places, zip(befores, afters, strict=True), strict=True))
    for at, token in enumerate(body):
        before, after = around.get(at, (None, None))
        sides = {body[i].text for i in (before, after) if i is not None}
        if token.text == "#" and after is not None and body[after].text in plain:
            continue
        if token.kind == "name" and token.text in plain:
            if before is not None and body[before].text == "#":
                text = joined(plain[token.text]).replace("\\", "\\\\").replace('"', '\\"')
                found.append(CppToken("literal", f'"{text}"'))
                continue
            found += plain[token.text] if "##" in sides else full[token.text]
        else:
            found.append(token)
    if not any(token.text == "##" for token in found):
        return found
    parts = [""]
    for token in found:
        if token.text == "##":
            parts = [*parts[:-1], parts[-1].rstrip(), ""]
        else:
            parts[-1] += token.text
    return list(split_tokens(parts[0] + "".join(part.lstrip() for part in parts[1:])))


STANDARD = {name: Macro(None, tuple(split_tokens(text))) for name, text in _TEXTS.items()}


COMPILERS = frozenset(
    [
        *("__CUDA_ARCH__", "CUDA_VERSION", "CUDART_VERSION", "__CUDA_ARCH_LIST__"),
        *("__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__has_include", "__has_builtin"),
    ]
)
"""Macros that only the compiler knows, and on which a kernel can depend."""
_DEFINED = {"__CUDACC__": 1, "__NVCC__": 1, "__cplusplus": 201703}

_DEFINED_CALL = re.compile(r"\bdefined\b(?: ?\( ?(\w+) ?\)| (\w+))?")
Read = Callable[[PurePosixPath], "str | None"]
"""The text of a file of the same tree, by its path; None if there is none."""
_MAX_INCLUDES = 32
"""The limit on includes within includes."""
_MAX_FILES = 1000
_KERNEL_HEADERS = re.compile(
    r"cuda_(fp16|bf16|fp8|pipeline)\.h|cooperative_groups(/\w+)?\.h|mma\.h|cuda/(std/)?\w+"
)
_IGNORED = ("error", "warning", "line", "ident")


class UndecidedError(Exception):
    """A condition depends on the compiler, or is not understood."""


def holds(tokens: list[CppToken], macros: Mapping[str, Macro], opaque: frozenset[str]) -> bool:
    """Return whether the condition after an ``#if`` is true; definitions of some are ``opaque``.

    Raises:
        UndecidedError: only the compiler can tell, or the condition is not understood.
    """
    text = " ".join(token.text for token in seen(tokens))
    text = _DEFINED_CALL.sub(lambda m: str(int(is_defined(m[1] or m[2], macros, opaque))), text)
    words = []
    for token in expand_macros(list(split_tokens(text)), macros):
        if token.kind == "name" and token.text in COMPILERS | opaque:
            raise UndecidedError
        plain = token.kind != "name" or token.text in ("true", "false")
        words.append(token.text if plain else str(_DEFINED.get(token.text, 0)))
    value = constant_value(expression("".join(words)))
    if value is None:
        raise UndecidedError
    return bool(value)


def is_defined(name: str | None, macros: Mapping[str, Macro], opaque: frozenset[str]) -> bool:
    """Return whether a macro is defined, or raise `UndecidedError` as `holds` does."""
    if name is None or name in COMPILERS or name in opaque:
        raise UndecidedError
    return name in macros or name in _DEFINED


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
        for token in split_tokens(text.replace("\r\n", "\n")):
            if token.kind == "directive":
                parts.append(self._expand(pending))
                pending = []
                parts.append(self._directive(path, token.text, branches, depth))
            elif not branches or branches[-1].active:
                pending.append(token)
            elif not token.is_seen:
                pending.append(CppToken("blank", "\n" * token.text.count("\n")))
        return "".join([*parts, self._expand(pending)])

    def _expand(self, tokens: list[CppToken]) -> str:
        names = {name: m for name, m in self._macros.items() if name not in self.given}
        return joined(expand_macros(tokens, names))

    def _directive(
        self, path: PurePosixPath, whole: str, branches: list[_Branch], depth: int
    ) -> str:
        """Follow a directive; return what stays of it in the text."""
        tokens = list(split_tokens(whole, whole.index("#") + 1))
        words = seen(tokens)
        if not words:
            return ""
        name, rest = words[0].text, tokens[tokens.index(words[0]) + 1 :]
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
                found = definition(rest)
                if found is not None and found[0] not in self.given:
                    self._set(*found, kept=kept)
                return whole if kept else ""
            case "undef":
                self._set(words[1].text if len(words) > 1 else "", None, kept=kept)
                return whole if kept else ""
            case "pragma" if words[1:2] and words[1].text == "once":
                self._once.add(path)
                return ""
            case "pragma":
                return f"#pragma{self._expand(rest)}"
        return "" if name in _IGNORED else whole

    def _set(self, name: str, macro: Macro | None, *, kept: bool) -> None:
        """Define a macro, or none of its name; if the compiler decides that, it becomes opaque."""
        self._macros.pop(name, None)
        if kept:
            self.opaque.add(name)
        elif macro is not None:
            self.opaque.discard(name)
            self._macros[name] = macro

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
            name: Macro(
                None, tuple(split_tokens(f"({int(value) if isinstance(value, int) else 0})"))
            )
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
        """Return the text of a file that is included, if it is one of the same tree."""
        is_system = what.startswith("<")
        name = what[1:].partition(">")[0].strip() if is_system else what.strip('"')
        if _KERNEL_HEADERS.fullmatch(name):
            self.headers[f"<{name}>"] = None
            return ""
        if is_system:
            return ""
        parts: list[str] = []
        for part in (path.parent / name).parts:
            parts = [*parts, part] if part != ".." else parts[:-1] if parts else ["/"]
        found = PurePosixPath(*parts)
        if found in self._once:
            return ""
        is_inside = not found.is_absolute() and depth < _MAX_INCLUDES and self._read < _MAX_FILES
        text = self.read(found) if is_inside else None
        if text is None:
            self.missing[name] = None
            return ""
        return self._text(found, text, depth + 1) + "\n"
