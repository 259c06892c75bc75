"""Draws Vega-Lite specifications into files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import InputError, needs, without_controls

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


def draw(specification: Mapping[str, Any], path: Path) -> None:
    """Write a plot, as SVG or PNG depending on the file's name.

    Raises:
        InputError: the name ends in neither ``.svg`` nor ``.png``, vl-convert is not installed, or
            the file cannot be written.
    """
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"The plot {path} cannot be drawn: give a name that ends in .svg or .png.")
    try:
        import vl_convert
    except ImportError as error:
        advice = "pip install vl-convert-python"
        raise InputError(needs("A plot", "vl_convert", advice, error)) from None
    whole = {"$schema": SCHEMA, **_drawable(specification)}
    try:
        if path.suffix == ".svg":
            path.write_text(vl_convert.vegalite_to_svg(whole))
        else:
            path.write_bytes(vl_convert.vegalite_to_png(whole, scale=2))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).") from None


def _drawable(value: Any) -> Any:
    """``value`` without characters that SVG does not allow, which names in a trace may have."""
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, Mapping):
        return {key: _drawable(one) for key, one in value.items()}
    return [_drawable(one) for one in value] if isinstance(value, list) else value
