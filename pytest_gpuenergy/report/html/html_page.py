"""Assembles the page from its template, style, scripts and data."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pytest_gpuenergy.report.html.page_data import page_data
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.view_files import write_view
from pytest_gpuenergy.support import emulated_mark

_SCRIPTS = (
    *("data", "text", "address", "table", "scales", "tips", "plot", "charts"),
    *("answers", "verdicts", "trend", "heat", "boards", "lists", "replay", "searches", "main"),
)
"""The parts of the page's script, in order."""

_DIGITS = 7
"""Significant digits of the page's numbers."""


def html_page(
    report: Report,
    baseline: Report | None = None,
    replay: Mapping[str, object] | None = None,
    verdicts: Mapping[str, Any] | None = None,
    trend: Sequence[Mapping[str, Any]] | None = None,
    searches: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the page, which contains all its scripts and styles and loads nothing when opened.

    Strings of the report are data in a JSON block and are shown as text. The page's content
    security policy allows only its own script, by its hash, so no name can become code.

    Args:
        report: the report to show.
        baseline: an earlier report to show differences from.
        replay: what a replay of a model found beside its measurements.
        verdicts: what a gate says of the differences, see `gate.verdict_values`.
        trend: figures over several runs, see `gate.trend_values`.
        searches: graphs of searches for better kernels, see `search.search_values`.

    Raises:
        ReportInputError: one report is from an emulated GPU and the other from a real one.
    """
    beside = {"replay": replay, "verdicts": verdicts, "trend": trend, "searches": searches}
    data = {**page_data(report, baseline), **beside}
    parts = (_read_part(f"script/{name}.js") for name in _SCRIPTS)
    script = "\n".join(('"use strict";', "(() => {", *parts, "})();", ""))
    label = emulated_mark(report.run.emulated)
    return Template(_read_part("page.html")).substitute(
        title=escape(f"{report.run.gpu_name}{label}, run {report.run.run_id}"),
        style=_read_part("page.css"),
        script=script,
        hashes=script_hash(script),
        data=embedded_json(compact(data)),
    )


def write_html(
    report: Report,
    path: Path,
    baseline: Report | None = None,
    replay: Mapping[str, object] | None = None,
    verdicts: Mapping[str, Any] | None = None,
    trend: Sequence[Mapping[str, Any]] | None = None,
    searches: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write `html_page` to ``path``.

    Raises:
        ReportInputError: as `html_page`.
        ReportError: it cannot be written.
    """
    write_view(path, html_page(report, baseline, replay, verdicts, trend, searches))


@functools.cache
def _read_part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def compact(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with its rows and axes as columns; `data.js` has the way back."""
    rows = data["rows"]
    names = list(rows[0]) if rows else []
    columns = {name: column([row[name] for row in rows]) for name in names}
    axes = [{**axis, "values": column(axis["values"])} for axis in data["axes"]]
    return {**data, "rows": {"count": len(rows), "columns": columns}, "axes": axes}


def column(values: Sequence[Any]) -> Any:
    """Return the values of a column: of texts, each once and the places where they are."""
    if values and all(isinstance(value, str) for value in values):
        words = {word: place for place, word in enumerate(dict.fromkeys(values))}
        return {"words": list(words), "at": [words[value] for value in values]}
    return [
        float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value for value in values
    ]


def script_hash(script: str) -> str:
    """Return the hash by which a content security policy allows a script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _escape_separators(value: Any) -> Any:
    """``value`` with U+2028 and U+2029 spelled out: Vega reads them as ends of lines in strings."""
    if isinstance(value, str):
        return value.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    if isinstance(value, Mapping):
        return {_escape_separators(key): _escape_separators(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_escape_separators, value))
    return value


def embedded_json(data: Mapping[str, Any]) -> str:
    """ASCII JSON in which no HTML parser can find a tag, a comment or an entity."""
    text = json.dumps(_escape_separators(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
