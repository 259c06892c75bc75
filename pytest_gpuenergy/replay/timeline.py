"""The charts of an extraction as files: a page that can be zoomed, and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pytest_gpuenergy.replay.extraction import Extraction
from pytest_gpuenergy.replay.power import PowerCurve
from pytest_gpuenergy.replay.summary import headline, short_name
from pytest_gpuenergy.replay.trace import Launch
from pytest_gpuenergy.replay.unique_kernels import identity
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
    time_by_category = breakdown(found)
    draw(time_by_category, folder / BREAKDOWN_PNG)
    if not found.launches:
        return
    specs = {"gantt": timeline(found), "breakdown": time_by_category}
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
    more = len(found.launches) - MOST_LAUNCHES
    return [f"The timeline leaves out the last {more} launches."] if more > 0 else []


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


Spec = dict[str, Any]

MOST_LAUNCHES = 20_000
"""That a Gantt chart shows; a browser redraws more of them too slowly."""

_ACROSS = 1100
_LANE = 46
_TALLEST = 8000
_POWER = 160
_COLOUR = {
    "field": "category",
    "type": "nominal",
    "title": "category",
    "scale": {"scheme": "tableau10"},
}


def gantt(found: Extraction) -> Spec:
    """When each launch ran, on a line for each stream; the wheel zooms, dragging moves."""
    categories = {one.kernel: one.category for one in found.signatures}
    shown = found.launches[:MOST_LAUNCHES]
    first_us = shown[0].begin_us
    rows = [_row(one, first_us, categories) for one in shown]
    lanes = len({row["lane"] for row in rows})
    return {
        "width": _ACROSS,
        "height": min(max(90, _LANE * lanes), _TALLEST),
        "data": {"values": rows},
        "params": [
            {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}
        ],
        "mark": {"type": "bar", "clip": True, "tooltip": True},
        "encoding": {
            "x": {"field": "begin", "type": "quantitative", "title": "time (ms)"},
            "x2": {"field": "end"},
            "y": {"field": "lane", "type": "nominal", "title": None},
            "color": _COLOUR,
            "tooltip": [
                {"field": name, "type": kind, "title": title}
                for name, kind, title in (
                    ("name", "nominal", "kernel"),
                    ("kernel", "nominal", "id"),
                    ("operator", "nominal", "operator"),
                    ("us", "quantitative", "duration (µs)"),
                    ("phase", "nominal", "phase"),
                    ("layer", "nominal", "layer"),
                )
            ],
        },
    }


def timeline(found: Extraction) -> Spec:
    """`gantt`, with the card's power below it on the same axis where that is known."""
    bars = gantt(found)
    if found.power is None:
        return bars
    return {
        "vconcat": [bars, _power_line(found, found.power)],
        "resolve": {"scale": {"x": "shared"}},
    }


def _power_line(found: Extraction, curve: PowerCurve) -> Spec:
    first_us, rest = found.launches[0].begin_us, found.launches[MOST_LAUNCHES:]
    until_us = rest[0].begin_us if rest else math.inf
    rows = [
        {"time": (us - first_us) / 1e3, "power": power_w}
        for us, power_w in zip(curve.times_us, curve.powers_w, strict=True)
        if us < until_us
    ]
    return {
        "width": _ACROSS,
        "height": _POWER,
        "data": {"values": rows},
        "mark": {"type": "line", "clip": True, "point": {"size": 12}, "tooltip": True},
        "encoding": {
            "x": {"field": "time", "type": "quantitative", "title": "time (ms)"},
            "y": {"field": "power", "type": "quantitative", "title": "power of the card (W)"},
            "tooltip": [
                {"field": "time", "type": "quantitative", "title": "time (ms)"},
                {"field": "power", "type": "quantitative", "title": "power (W)"},
            ],
        },
    }


def breakdown(found: Extraction) -> Spec:
    """The GPU time by category, and by phase where the trace tells it."""
    sums: dict[tuple[str, str], float] = {}
    for kernel, one in zip(found.kernels, found.signatures, strict=True):
        key = (one.category, kernel.phase or "unknown")
        sums[key] = sums.get(key, 0.0) + kernel.total_us
    total_us = found.gpu_time_us or 1.0
    rows = [
        {"category": category, "phase": phase, "ms": us / 1e3, "part": us / total_us}
        for (category, phase), us in sums.items()
    ]
    return {
        "width": _ACROSS // 2,
        "height": {"step": 24},
        "data": {"values": rows},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": "ms", "type": "quantitative", "title": "GPU time (ms)"},
            "y": {"field": "category", "type": "nominal", "sort": "-x", "title": None},
            "color": {"field": "phase", "type": "nominal", "title": "phase"},
            "tooltip": [
                {"field": "category", "type": "nominal"},
                {"field": "phase", "type": "nominal"},
                {"field": "ms", "type": "quantitative", "format": ".4~g", "title": "GPU time (ms)"},
                {"field": "part", "type": "quantitative", "format": ".1%", "title": "part"},
            ],
        },
    }


def _row(one: Launch, first_us: float, categories: Mapping[str, str]) -> dict[str, Any]:
    kernel = identity(one)
    return {
        "name": short_name(one.name),
        "kernel": kernel,
        "category": categories[kernel],
        "operator": None if one.operator is None else one.operator.name,
        "begin": (one.begin_us - first_us) / 1e3,
        "end": (one.begin_us - first_us + one.duration_us) / 1e3,
        "us": one.duration_us,
        "phase": one.phase,
        "layer": one.layer,
        "lane": f"{_place(one)}, stream {_known(one.stream)}",
    }


def _place(one: Launch) -> str:
    return f"GPU {_known(one.device)}" if one.rank is None else f"rank {one.rank}"


def _known(number: int | None) -> str:
    return "?" if number is None else str(number)
