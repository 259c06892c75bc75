"""Draws plots with Vega-Lite, and bundles its library for pages."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import (
    InputError,
    UnavailableError,
    cache_dir,
    keep_for_later,
    needs,
    without_controls,
)

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
        return {key: _drawable(entry) for key, entry in value.items()}
    return [_drawable(entry) for entry in value] if isinstance(value, list) else value


VEGA_LITE = "6.4"


_BUNDLE = "1"
"""Version of the form in which the library is cached."""


def check_html() -> None:
    """Check that charts can be drawn with the plotting library.

    Raises:
        UnavailableError: the plotting library is not installed.
    """
    try:
        import vl_convert  # noqa: F401
    except ImportError as error:
        advice = "pip install 'pytest-gpuenergy[html]'"
        raise UnavailableError(needs("The page's chart", "vl_convert", advice, error)) from None


def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, cached because bundling takes a second."""
    content = f"{_BUNDLE} {VEGA_LITE} {metadata.version('vl-convert-python')}"
    try:
        path = cache_dir("charts") / f"{hashlib.sha256(content.encode()).hexdigest()}.js"
    except InputError:
        return _vega_bundle()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest, _, known = path.read_bytes().decode(errors="replace").partition("\n")
        if digest == _digest(known):
            return known
    bundle = _vega_bundle()
    keep_for_later(path, f"{_digest(bundle)}\n{bundle}")
    return bundle


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _vega_bundle() -> str:
    import vl_convert

    library: Any = vl_convert  # its stubs require the optional argument snippet
    bundle: str = library.javascript_bundle(vl_version=VEGA_LITE)
    return bundle.replace("</script", "<\\/script").replace("\r\n", "\n")
