"""Columns and durations as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuenergy.support.text import aligned, span

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
def test_spans_are_in_words(seconds: float, words: str) -> None:
    assert span(seconds) == words


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[WORDS] * n), max_size=5)))
def test_every_column_begins_at_the_same_place(table: list[tuple[str, ...]]) -> None:
    lines = list(aligned(table))
    assert len(lines) == len(table)
    begin = 0
    for column in zip(*table, strict=True):
        width = max(map(len, column))
        for line, cell in zip(lines, column, strict=True):
            assert line[begin : begin + width + 2].rstrip() == cell
        begin += width + 2


def test_lines_have_no_trailing_blanks() -> None:
    assert list(aligned([("name", "note"), ("a", "")])) == ["name  note", "a"]


def test_rows_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(aligned([("a", "b"), ("c",)]))
