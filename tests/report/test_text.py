"""Names and figures formatted for people."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.report import figures, markdown_text


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
