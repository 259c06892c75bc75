"""Diffs of a language model apply to exactly the text that they were made for, or not at all."""

from __future__ import annotations

import difflib
import re

import pytest
from hypothesis import assume, given, strategies as st

from pytest_gpuenergy.search import PatchError, apply_patch

TEXT = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"
ALPHABET = st.sampled_from(
    ["a", "b", "", "+", "-", " ", "@@ -1 +1 @@", "--- a", "\f", "x\r", "\x85"]
)
LINES = st.lists(ALPHABET, min_size=1, max_size=20)


def diff_of(before: list[str], after: list[str], context: int = 3) -> str:
    return "\n".join(difflib.unified_diff(before, after, "a/k", "b/k", lineterm="", n=context))


@given(before=LINES, after=LINES, context=st.integers(1, 4), end=st.sampled_from(["", "\n"]))
def test_the_diff_of_two_texts_makes_one_of_the_other(before, after, context, end):
    assume(before != after)
    diff = diff_of(before, after, context)
    assert apply_patch(diff, "\n".join(before) + end) == "\n".join(after) + end


@given(before=LINES, after=LINES, data=st.data())
def test_a_text_that_differs_where_the_diff_looks_is_left_alone(before, after, data):
    assume(before != after)
    numbered = [f"{k} {line}" for k, line in enumerate(before)]
    changed = [line for line in numbered if data.draw(st.booleans())] + after
    assume(numbered != changed)
    diff = diff_of(numbered, changed)
    looked_at = [line[1:] for line in diff.split("\n")[2:] if line[:1] in (" ", "-")]
    lost = data.draw(st.sampled_from(looked_at))
    other = ["another line" if line == lost else line for line in numbered]
    with pytest.raises(PatchError):
        apply_patch(diff, "\n".join(other))


@given(before=LINES, shift=st.integers(1, 5))
def test_a_hunk_whose_place_is_stated_wrongly_goes_where_its_lines_are(before, shift):
    numbered = [f"{k} {line}" for k, line in enumerate(before)]
    changed = [*numbered[:-1], "the end"]
    diff = diff_of(numbered, changed).replace("@@ -", f"@@ -{shift}", 1)
    assert apply_patch(diff, "\n".join(numbered)) == "\n".join(changed)


def test_wrong_counts_and_file_names_do_not_matter():
    diff = "--- /etc/passwd\n+++ ../x\n@@ -40,9 +41 @@ void f()\n two\n-three\n+3\n four\n"
    assert apply_patch(diff, TEXT) == TEXT.replace("three", "3")


def test_a_header_without_numbers_will_do():
    assert apply_patch("@@\n two\n-three\n+3", TEXT) == TEXT.replace("three", "3")


def test_of_two_places_that_of_the_header_is_taken():
    assert apply_patch("@@ -3 +3 @@\n-a\n+b", "a\nx\na\n") == "a\nx\nb\n"


def test_the_end_of_a_file_may_be_marked():
    marked = "@@ -8 +8 @@\n-eight\n\\ No newline at end of file\n+8\n\\ No newline at end of file"
    assert apply_patch(marked, TEXT) == TEXT.replace("eight", "8")


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        ("", "it has no hunk"),
        ("Change three to 3.", "it has no hunk"),
        ("@@ -3 +3 @@\n-threes\n+3", "the lines of hunk 1 are not in the source"),
        ("@@ -3 +3 @@\n- three\n+3", "the lines of hunk 1 are not in the source"),
        ("@@ -3 +3 @@\n-three\n+3\n```", "neither ' ', '-' nor '+'"),
        ("@@ -3,0 +3 @@\n+3", "hunk 1 has no line of the source"),
        ("@@ -6 +6 @@\n-six\n+6\n@@ -2 +2 @@\n-two\n+2", "hunk 2 overlaps the one before it"),
        ("@@ -2 +2 @@\n-two\n+2\n@@ -2,2 +2 @@\n two\n-three", "hunk 2 overlaps"),
    ],
)
def test_what_does_not_apply_is_refused_with_the_reason(diff, said):
    with pytest.raises(PatchError, match=re.escape(said)):
        apply_patch(diff, TEXT)


def test_a_hunk_that_fits_twice_is_refused():
    with pytest.raises(PatchError, match="fits in 2 places"):
        apply_patch("@@ -9 +9 @@\n-a\n+b", "a\nx\na\n")


def test_a_place_by_wrong_counts_is_not_believed():
    with pytest.raises(PatchError, match="fits in 2 places"):
        apply_patch("@@ -3,5 +3,5 @@\n-a\n+b", "a\nx\na\n")
