"""Assembles the page from its template, style, scripts, plotting library and data."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from pytest_gpuenergy.report.html.data import page_data
from pytest_gpuenergy.report.html.parts import (
    check_html,
    embedded_json,
    script_hash,
    vega_script,
)
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views import write_view


def html_page(
    report: Report, baseline: Report | None = None, replay: Mapping[str, object] | None = None
) -> str:
    """The page, which contains all its scripts and styles and loads nothing when opened.

    Strings of the report are data in a JSON block and are shown as text. The page's content
    security policy allows only its own two scripts, by their hashes, so no name can become code.

    Args:
        report: the report to show.
        baseline: an earlier report to show differences from, without verdicts.
        replay: what a replay of a model found beside its measurements.

    Raises:
        InputError: the plotting library is not installed.
        ReportInputError: one report is from an emulated GPU and the other from a real one.
    """
    check_html()
    data = {**page_data(report, baseline), "replay": replay}
    scripts = {"vega": vega_script(), "script": _read("page.js")}
    label = " (emulated)" if report.run.emulated else ""
    return Template(_read("page.html")).substitute(
        scripts,
        title=escape(f"{report.run.gpu_name}{label}, run {report.run.run_id}"),
        style=_read("page.css"),
        hashes=" ".join(map(script_hash, scripts.values())),
        data=embedded_json(data),
    )


def write_html(
    report: Report,
    path: Path,
    baseline: Report | None = None,
    replay: Mapping[str, object] | None = None,
) -> None:
    """Write `html_page` to ``path``.

    Raises:
        InputError, ReportInputError: as `html_page`.
        ReportError: it cannot be written.
    """
    write_view(path, html_page(report, baseline, replay))


@functools.cache
def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
