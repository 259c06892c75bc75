"""Assembles the page from its template, style, scripts, plotting library and data."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Any

from pytest_gpuenergy.report.html.data import Values, page_data
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views import write_view
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import keep_for_later
from pytest_gpuenergy.support.paths import cache_dir

VEGA_LITE = "6.4"
_BUNDLE = "1"
"""Version of the form in which the library is cached."""


def check_html() -> None:
    """Check that the page can be made.

    Raises:
        InputError: the plotting library is not installed.
    """
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        raise InputError(
            "The HTML page needs a plotting library: pip install 'pytest-gpuenergy[html]'."
        ) from None


def html_page(report: Report, baseline: Report | None = None) -> str:
    """The page, which contains all its scripts and styles and loads nothing when opened.

    Strings of the report are data in a JSON block and are shown as text. The page's content
    security policy allows only its own two scripts, by their hashes, so no name can become code.

    Args:
        report: the report to show.
        baseline: an earlier report to show differences from, without verdicts.

    Raises:
        InputError: the plotting library is not installed.
        ReportInputError: one report is from an emulated GPU and the other from a real one.
    """
    check_html()
    data = page_data(report, baseline)
    scripts = {"vega": _vega(), "script": _read("page.js")}
    label = " (emulated)" if report.run.emulated else ""
    return Template(_read("page.html")).substitute(
        scripts,
        title=escape(f"{report.run.gpu_name}{label}, run {report.run.run_id}"),
        style=_read("page.css"),
        hashes=" ".join(map(_hash, scripts.values())),
        data=_embedded(data),
    )


def write_html(report: Report, path: Path, baseline: Report | None = None) -> None:
    """Write `html_page` to ``path``.

    Raises:
        InputError, ReportInputError: as `html_page`.
        ReportError: it cannot be written.
    """
    write_view(path, html_page(report, baseline))


def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, cached because bundling takes a second."""
    content = f"{_BUNDLE} {VEGA_LITE} {metadata.version('vl-convert-python')}"
    try:
        path = cache_dir("charts") / f"{hashlib.sha256(content.encode()).hexdigest()}.js"
    except InputError:
        return _bundled()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest, _, known = path.read_bytes().decode(errors="replace").partition("\n")
        if digest == _digest(known):
            return known
    bundle = _bundled()
    keep_for_later(path, f"{_digest(bundle)}\n{bundle}")
    return bundle


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _bundled() -> str:
    import vl_convert

    library: Any = vl_convert  # its stubs require the optional argument snippet
    bundle: str = library.javascript_bundle(vl_version=VEGA_LITE)
    return bundle.replace("</script", "<\\/script").replace("\r\n", "\n")


@functools.cache
def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _without_separators(value: Any) -> Any:
    """``value`` with U+2028 and U+2029 spelled out: Vega reads them as ends of lines in strings."""
    if isinstance(value, str):
        return value.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    if isinstance(value, Mapping):
        return {_without_separators(key): _without_separators(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_without_separators, value))
    return value


def _embedded(data: Values) -> str:
    """ASCII JSON in which no HTML parser can find a tag, a comment or an entity."""
    text = json.dumps(_without_separators(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
