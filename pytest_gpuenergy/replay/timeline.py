"""The charts of an extraction as files: a page that can be zoomed, and pictures."""

from __future__ import annotations

from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from pytest_gpuenergy.replay import charts
from pytest_gpuenergy.replay.extraction import Extraction
from pytest_gpuenergy.replay.summary import headline
from pytest_gpuenergy.report import (
    check_html,
    draw,
    embedded_json,
    script_hash,
    vega_script,
    write_view,
)

GANTT_HTML = "gantt.html"
GANTT_PNG = "gantt.png"
BREAKDOWN_PNG = "breakdown.png"


def write_charts(found: Extraction, folder: Path, title: str) -> None:
    """Write the files to ``folder``: those of the timeline only with launches.

    Raises:
        UnavailableError: the plotting library is not installed.
        ReportError: a file cannot be written.
    """
    check_html()
    breakdown = charts.breakdown(found)
    draw(breakdown, folder / BREAKDOWN_PNG)
    if not found.launches:
        return
    specs = {"gantt": charts.timeline(found), "breakdown": breakdown}
    scripts = {"vega": vega_script(), "script": _read("timeline.js")}
    page = Template(_read("timeline.html")).substitute(
        scripts,
        title=escape(title),
        summary=escape(" ".join([headline(found) + ".", *_left_out(found)])),
        hashes=" ".join(map(script_hash, scripts.values())),
        data=embedded_json(specs),
    )
    write_view(folder / GANTT_HTML, page)
    draw(specs["gantt"], folder / GANTT_PNG)


def _left_out(found: Extraction) -> list[str]:
    more = len(found.launches) - charts.MOST_LAUNCHES
    return [f"The timeline leaves out the last {more} launches."] if more > 0 else []


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
