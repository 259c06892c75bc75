"""The clock between notes in a graph."""

from __future__ import annotations

import pytest
import step_clocks


def test_each_span_has_the_label_of_the_note_that_ends_it():
    notes = [(0, 0, 1), (100, 150, 1), (400, 750, 1), (500, 900, 1)]
    found = step_clocks.spans(notes, ["gaps", "call"])
    assert found["call"] == {"spans": 2, "us": 0.1, "mhz": pytest.approx(1500.0)}
    assert found["gaps"] == {"spans": 1, "us": 0.3, "mhz": pytest.approx(2000.0)}


def test_what_precedes_the_first_whole_period_does_not_count():
    notes = [(0, 0, 1), (7_000, 7, 1), (7_100, 157, 1), (7_400, 757, 1)]
    assert step_clocks.spans(notes, ["a", "b", "c"]).keys() == {"b", "c"}


def test_two_sms_have_counters_of_their_own():
    notes = [(0, 0, 1), (100, 150, 1), (400, 7, 2), (500, 207, 2)]
    found = step_clocks.spans(notes, ["gaps", "call"])
    assert (found["gaps"]["us"], found["gaps"]["mhz"]) == (0.3, None)
    assert found["call"]["mhz"] == pytest.approx(1e3 * (150 + 200) / 200)
