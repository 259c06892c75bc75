"""Macros of C++ text, and their expansion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuenergy.search.extraction.tokens import Token, joined, seen, tokens_of

_BLANK = Token("blank", " ")
_MOST = 20_000
"""Macros that are replaced at a time; a few that contain each other can be very many."""
_DEEPEST = 100
"""Macros in one another."""


@dataclass(frozen=True)
class Macro:
    """A definition.

    Attributes:
        parameters: None of a macro without a list of them; the last one can be ``__VA_ARGS__``.
        body: what it stands for.
    """

    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


def definition(tokens: list[Token]) -> tuple[str, Macro] | None:
    """The name and macro of what follows ``#define``; None if it is not understood."""
    rest = [_BLANK if token.kind in ("comment", "line") else token for token in tokens]
    while rest and not rest[0].is_seen:
        rest.pop(0)
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


def _trimmed(tokens: list[Token]) -> tuple[Token, ...]:
    plain = [_BLANK if token.kind == "blank" else token for token in tokens]
    places = [i for i, token in enumerate(plain) if token.is_seen]
    return tuple(plain[places[0] : places[-1] + 1]) if places else ()


def expanded(tokens: list[Token], macros: Mapping[str, Macro]) -> list[Token]:
    """The tokens with all macros replaced; a call that does not fit its macro stays as it is."""
    return _Expansion(macros).of(tokens, frozenset())


class _Expansion:
    """The replacement of macros, up to a number of them."""

    def __init__(self, macros: Mapping[str, Macro]) -> None:
        self._macros = macros
        self._left = _MOST

    def of(self, tokens: list[Token], hidden: frozenset[str]) -> list[Token]:
        """The tokens with all macros replaced but those that are being replaced around them."""
        found: list[Token] = []
        at = 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            macro = self._macros.get(token.text) if token.kind == "name" else None
            done = self._left == 0 or len(hidden) == _DEEPEST
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


def _arguments(tokens: list[Token], at: int) -> tuple[list[list[Token]], int] | None:
    """The arguments of a call whose parenthesis comes next, and where it ends."""
    while at < len(tokens) and not tokens[at].is_seen:
        at += 1
    if at == len(tokens) or tokens[at].text != "(":
        return None
    parts: list[list[Token]] = [[]]
    depth = 0
    for place in range(at, len(tokens)):
        token = tokens[place]
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth == 0:
            return parts, place + 1
        if token.text == "," and depth == 1:
            parts.append([])
        elif place > at:
            parts[-1].append(_BLANK if token.kind in ("line", "comment") else token)
    return None


def _by_name(
    parameters: tuple[str, ...], arguments: list[list[Token]]
) -> dict[str, list[Token]] | None:
    if parameters and parameters[-1] == "__VA_ARGS__":
        fixed = len(parameters) - 1
        rest: list[Token] = []
        for number, argument in enumerate(arguments[fixed:]):
            rest += [Token("sign", ","), *argument] if number else argument
        arguments = [*arguments[:fixed], rest]
    if not parameters and len(arguments) == 1 and not seen(arguments[0]):
        arguments = []
    if len(parameters) != len(arguments):
        return None
    values = zip(parameters, arguments, strict=True)
    return {name: list(_trimmed(value)) for name, value in values}


def _substituted(
    body: tuple[Token, ...],
    plain: Mapping[str, list[Token]],
    full: Mapping[str, list[Token]],
) -> list[Token]:
    """The body with arguments in place of parameters, ``#`` and ``##`` carried out."""
    found: list[Token] = []
    places = [i for i, token in enumerate(body) if token.is_seen]
    around = {here: (before, after) for before, here, after in _neighbours(places)}
    for at, token in enumerate(body):
        before, after = around.get(at, (None, None))
        sides = {body[i].text for i in (before, after) if i is not None}
        if token.text == "#" and after is not None and body[after].text in plain:
            continue
        if token.kind == "name" and token.text in plain:
            if before is not None and body[before].text == "#":
                text = joined(plain[token.text]).replace("\\", "\\\\").replace('"', '\\"')
                found.append(Token("string", f'"{text}"'))
                continue
            found += plain[token.text] if "##" in sides else full[token.text]
        else:
            found.append(token)
    return _pasted(found)


def _neighbours(places: list[int]) -> list[tuple[int | None, int, int | None]]:
    before = [None, *places[:-1]]
    after = [*places[1:], None]
    return list(zip(before, places, after, strict=True))


def _pasted(tokens: list[Token]) -> list[Token]:
    text = joined(tokens)
    if not any(token.text == "##" for token in tokens):
        return tokens
    parts = [""]
    for token in tokens:
        if token.text == "##":
            parts[-1] = parts[-1].rstrip()
            parts.append("")
        else:
            parts[-1] += token.text
    text = parts[0] + "".join(part.lstrip() for part in parts[1:])
    return list(tokens_of(text))
