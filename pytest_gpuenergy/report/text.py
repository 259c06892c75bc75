"""Formats names and figures for people to read."""

from __future__ import annotations

import math
from html import escape

from pytest_gpuenergy.record import Estimate
from pytest_gpuenergy.support import without_controls

_MARKUP = str.maketrans({c: f"&#{ord(c)};" for c in "|`*[]\\"})


def markdown_text(words: str) -> str:
    """``words`` escaped for one Markdown line or table cell."""
    return escape(without_controls(words), quote=False).translate(_MARKUP)


def spread(found: Estimate | None) -> str:
    """Half the interval's width, `` ±0.3 %``; empty without an interval."""
    if found is None or not found.value > 0:
        return ""
    return f" ±{100 * found.relative_half_width:.2g} %"


def signed_percent(log_ratio: float) -> str:
    """The logarithm of a ratio as a percentage such as ``+5.0 %``."""
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def figures(value: float) -> str:
    """Three significant digits, including trailing zeros: ``15.0``, ``0.600``, ``118``."""
    if abs(value) >= 999.5:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")
