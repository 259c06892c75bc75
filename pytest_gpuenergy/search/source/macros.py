"""The tokens of C++ text, the macros that it defines, and their expansion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pytest_gpuenergy.kernels import cuda_tokens

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


def tokens_of(text: str, begin: int = 0) -> Iterator[CppToken]:
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
        return name, Macro(None, _trimmed(rest))
    end = next((i for i, token in enumerate(rest) if token.text == ")"), None)
    if end is None:
        return None
    listed = joined(seen(rest[1:end])).replace("...", "__VA_ARGS__")
    parameters = tuple(listed.split(",")) if listed else ()
    return name, Macro(parameters, _trimmed(rest[end + 1 :]))


def _trimmed(tokens: list[CppToken]) -> tuple[CppToken, ...]:
    plain = [token if token.is_seen else _BLANK for token in tokens]
    places = [i for i, token in enumerate(plain) if token.is_seen]
    return tuple(plain[places[0] : places[-1] + 1]) if places else ()


def expanded(tokens: list[CppToken], macros: Mapping[str, Macro]) -> list[CppToken]:
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
                values = None if call is None else _by_name(macro.parameters, call[0])
                if call is None or values is None:
                    found.append(token)
                    continue
                at = call[1]
                full = {name: self.of(value, hidden) for name, value in values.items()}
                body = _substituted(macro.body, values, full)
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


def _by_name(
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
    return {name: list(_trimmed(value)) for name, value in values}


def _substituted(
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
    return list(tokens_of(parts[0] + "".join(part.lstrip() for part in parts[1:])))


STANDARD = {name: Macro(None, tuple(tokens_of(text))) for name, text in _TEXTS.items()}
