"""What CUDA C++ text declares at a given position: variables, shared arrays, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.tokens import (
    ATTRIBUTES,
    CLUSTER_DIMS,
    LAUNCH_BOUNDS,
    Token,
    nested,
    without_attributes,
)


@dataclass(frozen=True)
class Variables:
    """The variables of one declaration.

    Attributes:
        names: of the variables.
        words: the texts of all tokens that belong to their types.
        end: position after the declaration.
    """

    names: Sequence[Token]
    words: frozenset[str]
    end: int


@dataclass(frozen=True)
class SharedArray:
    """The array that ``extern __shared__`` declares; ``dimensions`` are those after the first."""

    element: str
    name: str
    dimensions: str


@dataclass(frozen=True)
class KernelHeader:
    """A ``__global__`` function.

    Attributes:
        name: of the function.
        bounds: the arguments of its launch bounds.
        cluster: those of ``__cluster_dims__``.
        defined: whether this is its definition.
    """

    name: str
    bounds: str
    cluster: str
    defined: bool


def variables_at(source: str, position: int) -> Variables | None:
    """The variables declared from ``position`` on.

    Returns:
        None for a function, and for a declaration that is not understood.
    """
    names: list[Token] = []
    words: set[str] = set()
    depth, angles, sought = 0, 0, True  # whether the next name is still to come
    before = ""
    last: Token | None = None
    for token in without_attributes(token for token, _ in nested(source, position)):
        text = token.text
        if sought:
            words.add(text)
            if last is not None and depth == angles == 0 and _is_variable(before, last, text):
                if before == "::":
                    return None
                names.append(last)
                sought = False
        if text in "([{":
            if text == "(" and sought:
                return None
            depth += 1
        elif text in ")]}":
            depth -= 1
        elif depth == 0 and text in "<>" and sought:
            angles += 1 if text == "<" else -1
        elif depth == angles == 0 and text == ",":
            sought = True
        elif depth == 0 and text == ";":
            return Variables(names, frozenset(words), token.end) if names else None
        if depth < 0:
            return None
        before, last = last.text if last else "", token
    return None


def _is_variable(before: str, token: Token, after: str) -> bool:
    """Whether ``token`` names a variable, by the texts around it."""
    is_type = bool({before, token.text} & {"struct", "union", "class"})
    return token.kind == "name" and after in "[,;={" and not is_type


def declarator_at(source: str, position: int) -> list[Token]:
    """The tokens from ``position`` up to the first ``;``, ``{`` or ``=`` outside of brackets."""
    tokens: list[Token] = []
    for token, depth in nested(source, position):
        if token.text in ";{=" and depth == 0:
            break
        tokens.append(token)
    return tokens


def shared_array(declarator: Sequence[Token]) -> SharedArray | None:
    """The array declared by the tokens after ``extern``; None when they declare none."""
    texts = [token.text for token in without_attributes(declarator)]
    texts = [text for text in texts if text != "__shared__"]
    opening = texts.index("[") if "[" in texts else 0
    if opening < 2 or "]" not in texts[opening:]:
        return None
    closing = texts.index("]", opening)
    return SharedArray(
        element=" ".join(texts[: opening - 1]),
        name=texts[opening - 1],
        dimensions="".join(texts[closing + 1 :]),
    )


def kernel_at(source: str, position: int) -> KernelHeader | None:
    """The kernel whose ``__global__`` ends at ``position``; None when the text ends before it."""
    name, previous, attribute, begin = "", "", "", 0
    arguments: dict[str, str] = {}
    for token, depth in nested(source, position):
        if depth == 0 and token.text in ";{":
            bounds, cluster = (arguments.get(one, "") for one in (LAUNCH_BOUNDS, CLUSTER_DIMS))
            return KernelHeader(name, bounds, cluster, token.text == "{")
        if token.text == "(" and depth == 1:
            attribute, begin = previous, token.end
            name = name if previous in ATTRIBUTES else name or previous
        elif token.text == ")" and depth == 0:
            arguments.setdefault(attribute, " ".join(source[begin : token.start].split()))
        if token.kind == "name":
            previous = token.text
    return None
