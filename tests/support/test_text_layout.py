"""Columns and durations as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import (
    aligned,
    counted,
    fitted,
    plain_numbers,
    shortened,
    span,
    wrapped,
)

WORDS = st.text("ab1", max_size=8)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.00 s"),
        (0.534, "0.53 s"),
        (12.4, "12 s"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_spans_are_in_words(seconds, words):
    assert span(seconds) == words


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[WORDS] * n), max_size=5)))
def test_every_column_begins_at_the_same_place(table):
    lines = list(aligned(table))
    assert len(lines) == len(table)
    begin = 0
    for column in zip(*table, strict=True):
        width = max(map(len, column))
        for line, cell in zip(lines, column, strict=True):
            assert line[begin : begin + width + 2].rstrip() == cell
        begin += width + 2


def test_lines_have_no_trailing_blanks():
    assert list(aligned([("name", "note"), ("a", "")])) == ["name  note", "a"]


def test_rows_of_different_length_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        list(aligned([("a", "b"), ("c",)]))


@given(
    st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[WORDS] * n), min_size=1, max_size=5)),
    st.integers(20, 60),
)
def test_a_table_is_never_wider_than_there_is_room(table, width):
    assert all(len(line) <= width for line in fitted(table, width))


def test_a_table_that_is_too_wide_becomes_a_block_for_each_row():
    table = [("name", "least time", "cap"), ("case1", "12 µs k01", "300W"), ("b", "1", "")]
    assert list(fitted(table, 22)) == [
        *("case1", "  least time  12 µs", "      k01", "  cap         300W"),
        *("b", "  least time  1", "  cap"),
    ]
    assert list(fitted(table, 40)) == list(aligned(table))


@given(st.text("ab ", max_size=200), st.integers(8, 60), st.integers(0, 8))
def test_no_line_is_longer_than_there_is_room_and_no_word_is_lost(line, width, indent):
    lines = list(wrapped(line, width, indent))
    assert all(len(one) <= width for one in lines)
    assert "".join("".join(lines).split()) == "".join(line.split())


def test_a_word_to_be_copied_stays_whole():
    path = "/a/path/that/is/long/and/has-dashes"
    assert path in [line.strip() for line in wrapped(f"at {path}", 20, whole_words=True)]


@given(st.text("abc", max_size=40), st.integers(1, 20))
def test_a_shortened_name_keeps_both_ends(name, length):
    short = shortened(name, length)
    assert len(short) == min(len(name), length)
    if short != name:
        start, end = short.split("…")
        assert name.startswith(start)
        assert name.endswith(end)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("7200 ±1e+02 mJ", "7200 ±100 mJ"),
        ("gaps +1.8e+03 in -4.008e+04", "gaps +1800 in -40080"),
        ("1e-05 and 1.5e+300", "1e-05 and 1.5e+300"),
        ("kernel_1e+02x", "kernel_1e+02x"),
    ],
)
def test_large_numbers_have_no_exponent(text, plain):
    assert plain_numbers(text) == plain


def test_a_noun_has_a_plural_unless_there_is_one():
    assert [counted(n, "launch", "launches") for n in (0, 1)] == ["0 launches", "1 launch"]
    assert counted(2, "kernel") == "2 kernels"
