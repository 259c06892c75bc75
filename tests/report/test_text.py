"""Names and figures as people read them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuenergy.report.text import figures, markdown_text, printable


@given(st.text() | st.text("\n\r\x1b\u2028 :a"))
@example("::error::pwned")
@example("  :::stop-commands::x")
def test_a_printed_line_is_one_line_that_commands_nothing(text: str) -> None:
    line = printable(text)
    assert len(line.splitlines()) <= 1
    assert line.isprintable()
    assert not line.lstrip().startswith("::")


@given(st.from_regex(r"[\wµ·±%()+,.-][ \wµ·±%()+,.:-]*", fullmatch=True))
def test_what_people_write_is_printed_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(st.text() | st.text("\n|`<>&*[]\\"))
def test_markdown_text_has_no_markup(text: str) -> None:
    written = markdown_text(text)
    assert not set(written) & set("|`*[]<>\\\n\r")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (15.0, "15.0"),
        (0.6, "0.600"),
        (118.4, "118"),
        (999.4, "999"),
        (999.6, "1000"),
        (12345.6, "12346"),
        (0.000529, "0.000529"),
        (0.0, "0.00"),
    ],
)
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert figures(value) == text


@given(st.floats(1e-12, 1e12))
def test_figures_keep_the_value_to_half_a_percent(value: float) -> None:
    assert float(figures(value)) == pytest.approx(value, rel=0.0051)
