"""Expressions of sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.search import evaluate, names_in
from pytest_gpuenergy.support import InputError

NAMES = {"N": 1000, "block_x": 128, "BLOCK": 96, "SCALE": 0.5, "FLAG": True}

texts = st.recursive(
    st.integers(0, 999).map(str) | st.sampled_from(["N", "block_x", "BLOCK"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda one: f"(-{one})"),
        st.tuples(st.sampled_from(["min", "max", "ceil_div"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
    ),
    max_leaves=8,
)


def told(text: str) -> str:
    """The sentence with which an expression is refused; empty if it is not."""
    try:
        evaluate(text, NAMES)
    except InputError as error:
        return str(error)
    return ""


@given(texts)
def test_an_expression_has_the_value_that_python_gives_it(text: str) -> None:
    names = {**NAMES, "ceil_div": lambda a, b: -(-a // b)}
    try:
        right = eval(text, {"__builtins__": {"min": min, "max": max}}, names)
    except ZeroDivisionError:
        with pytest.raises(InputError, match="divides by 0"):
            evaluate(text, NAMES)
        return
    if abs(right) < 1 << 40:
        assert evaluate(text, NAMES) == right


@given(st.integers(-(1 << 40), 1 << 40))
def test_a_number_is_its_own_value(number: int) -> None:
    assert evaluate(number, {}) == number


@given(st.text(max_size=500))
def test_any_text_has_a_value_or_is_refused_in_one_sentence(text: str) -> None:
    said = told(text)
    assert said == "" or said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not an expression"),
        ("N +", "is not an expression"),
        ("N / 2", "only integers"),
        ("N ** 9", "only integers"),
        ("__import__('os')", "only integers"),
        ("N.real", "only integers"),
        ("ceil_div(N, b=2)", "only integers"),
        ("True", "only integers"),
        ("1.5", "only integers"),
        ("min(N)", "min takes two numbers"),
        ("ceil_div(N, 2, 3)", "ceil_div takes two numbers"),
        ("M", r"'M' is not a known name \(known: BLOCK, FLAG, N, SCALE, block_x\)"),
        ("SCALE", "SCALE is 0.5 instead of an integer"),
        ("FLAG", "FLAG is True instead of an integer"),
        ("ceil_div(N, 0)", "divides by 0"),
        ("N % (N - 1000)", "divides by 0"),
        ("99999999999 * 99999999999", "exceeds 2\\*\\*62"),
        ("(" * 300 + "N" + ")" * 300, "longer than 400 characters"),
    ],
)
def test_what_is_no_size_is_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        evaluate(text, NAMES)


def test_names_are_found_without_those_of_functions() -> None:
    assert names_in("ceil_div(N, min(block_x, 7))") == {"N", "block_x"}
    assert names_in(7) == set()
