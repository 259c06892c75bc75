"""Sums of products that stand for the integer expressions of a kernel, and edits of text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.search import Atom, Edit, Polynomial, edited

NAMES = ("n", "k", "threadIdx.x")
ATOMS = {name: Atom(name) for name in NAMES}

EXPRESSIONS = st.recursive(
    st.one_of(st.integers(-20, 20), st.sampled_from(NAMES)),
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner),
    max_leaves=8,
)
VALUES = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})


def polynomial(tree: Any) -> Polynomial:
    match tree:
        case int():
            return Polynomial.constant(tree)
        case str():
            return Polynomial.atom(ATOMS[tree])
    sign, left, right = tree
    one, two = polynomial(left), polynomial(right)
    return {"+": one + two, "-": one - two, "*": one * two}[sign]


def value(tree: Any, values: dict[str, int]) -> int:
    match tree:
        case int():
            return tree
        case str():
            return values[tree]
    sign, left, right = tree
    one, two = value(left, values), value(right, values)
    return {"+": one + two, "-": one - two, "*": one * two}[sign]


def evaluated(text: str, values: dict[str, int]) -> int:
    names = {name.replace(".", "_"): number for name, number in values.items()}
    return int(eval(text.replace(".", "_"), names))  # of our own making


@given(EXPRESSIONS, VALUES)
def test_the_text_of_a_polynomial_has_the_value_of_its_expression(
    tree: Any, values: dict[str, int]
) -> None:
    assert evaluated(polynomial(tree).text(), values) == value(tree, values)


@given(EXPRESSIONS, VALUES)
def test_a_value_lies_in_the_interval(tree: Any, values: dict[str, int]) -> None:
    interval = polynomial(tree).interval(lambda _: (0, 9))
    assert interval is not None
    assert interval[0] <= value(tree, values) <= interval[1]


@given(EXPRESSIONS, EXPRESSIONS)
def test_equal_sums_are_equal_whatever_their_order(one: Any, two: Any) -> None:
    assert polynomial(("+", one, two)) == polynomial(("+", two, one))
    assert polynomial(("*", one, two)) == polynomial(("*", two, one))
    assert polynomial(("-", one, one)) == Polynomial()


@given(EXPRESSIONS, VALUES, st.integers(2, 8))
def test_a_multiple_is_one_for_the_values_that_are_known(
    tree: Any, values: dict[str, int], of: int
) -> None:
    if polynomial(tree).is_multiple(of, lambda atom: (values[atom.text],)):
        assert value(tree, values) % of == 0


def test_a_multiple_must_be_one_for_every_set_of_sizes() -> None:
    row = polynomial(("*", "n", "threadIdx.x"))
    known = {"n": (8, 12)}
    assert row.is_multiple(4, lambda atom: known.get(atom.text))
    assert not row.is_multiple(8, lambda atom: known.get(atom.text))


def test_a_quotient_depends_on_what_is_divided() -> None:
    quotient = Polynomial.atom(Atom("q", operator="/", left=polynomial(("+", "threadIdx.x", "n"))))
    assert quotient.depends_on("threadIdx")
    assert quotient.depends_on("n")
    assert not quotient.depends_on("k")


@given(st.text(max_size=30), st.lists(st.text(max_size=5), max_size=4))
def test_edits_change_nothing_but_their_places(text: str, pieces: list[str]) -> None:
    source = text.encode("utf-8", "replace")
    joined, edits = b"", []
    for piece in pieces:
        edits.append(Edit(len(joined), len(joined) + 1, piece))
        joined += b"#" + source
    assert edited(joined, edits) == "".join(piece + source.decode() for piece in pieces)


def test_edits_of_one_place_are_refused() -> None:
    with pytest.raises(ValueError, match="two edits change byte 2"):
        edited(b"abcdef", [Edit(0, 3, "x"), Edit(2, 4, "y")])
