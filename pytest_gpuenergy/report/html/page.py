"""Assembles the page from its template, style, scripts and data."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pytest_gpuenergy.report.html.data import page_data
from pytest_gpuenergy.report.html.embed import compact
from pytest_gpuenergy.report.html.parts import embedded_json, script_hash
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views import write_view
from pytest_gpuenergy.support import emulated_mark

_SCRIPTS = ("data", "text", "address", "table", "scales", "tips", "plot", "charts")
_SECTIONS = (
    "answers",
    "verdicts",
    "trend",
    "heat",
    "boards",
    "lists",
    "replay",
    "searches",
    "main",
)
"""Parts of the page's script, in order."""


def html_page(
    report: Report,
    baseline: Report | None = None,
    replay: Mapping[str, object] | None = None,
    verdicts: Mapping[str, Any] | None = None,
    trend: Sequence[Mapping[str, Any]] | None = None,
    searches: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page, which contains all its scripts and styles and loads nothing when opened.

    Strings of the report are data in a JSON block and are shown as text. The page's content
    security policy allows only its own script, by its hash, so no name can become code.

    Args:
        report: the report to show.
        baseline: an earlier report to show differences from.
        replay: what a replay of a model found beside its measurements.
        verdicts: what a gate says of the differences, see `gate.verdict_values`.
        trend: figures over several runs, see `gate.trend_values`.
        searches: graphs of searches for better kernels, see `search.page.search_values`.

    Raises:
        ReportInputError: one report is from an emulated GPU and the other from a real one.
    """
    beside = {"replay": replay, "verdicts": verdicts, "trend": trend, "searches": searches}
    data = {**page_data(report, baseline), **beside}
    script = _script()
    label = emulated_mark(report.run.emulated)
    return Template(_read("page.html")).substitute(
        title=escape(f"{report.run.gpu_name}{label}, run {report.run.run_id}"),
        style=_read("page.css"),
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
def _script() -> str:
    parts = (_read(f"script/{name}.js") for name in (*_SCRIPTS, *_SECTIONS))
    return "\n".join(('"use strict";', "(() => {", *parts, "})();", ""))


@functools.cache
def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
