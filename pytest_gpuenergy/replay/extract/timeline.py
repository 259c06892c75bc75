"""Draws an extraction: the launches over time, and the GPU time by category."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pytest_gpuenergy.replay.extract.kernel_extraction import KernelExtraction, write_extraction
from pytest_gpuenergy.replay.extract.summary import headline, short_name
from pytest_gpuenergy.replay.power import PowerCurve
from pytest_gpuenergy.report import (
    check_html,
    draw,
    embedded_json,
    script_hash,
    vega_script,
    write_view,
)
from pytest_gpuenergy.support import UnavailableError

GANTT_HTML = "gantt.html"
GANTT_PNG = "gantt.png"
BREAKDOWN_PNG = "breakdown.png"

Spec = dict[str, Any]
"""A Vega-Lite specification with its data."""

MAX_LAUNCHES = 20_000
"""The largest number of launches in a timeline: browsers redraw more of them too slowly."""

_WIDTH = 1100
_LANE_HEIGHT = 46
_MAX_HEIGHT = 8000
_POWER_HEIGHT = 160
_COLOUR = {
    "field": "category",
    "type": "nominal",
    "title": "category",
    "scale": {"scheme": "tableau10"},
}


def write_results(
    extraction: KernelExtraction,
    folder: Path,
    name: str,
    tell: Callable[[str], None],
    max_launches: int = MAX_LAUNCHES,
) -> None:
    """Write all files of an extraction; without the plotting library, all but the charts.

    Args:
        extraction: The extraction; without launches there is no timeline.
        folder: The folder to write to, which is made if need be.
        name: The name of what was profiled, for titles.
        tell: Called with a sentence where there are no charts.
        max_launches: The largest number of launches in the timeline.

    Raises:
        ReportError, OSError: A file cannot be written.
    """
    write_extraction(extraction, folder)
    specs = chart_specs(extraction, max_launches)
    try:
        check_html()
        draw(specs["breakdown"], folder / BREAKDOWN_PNG)
    except UnavailableError as error:
        tell(f"There are no charts. {error}")
        return
    if not extraction.launches:
        return
    sentences = [f"{headline(extraction)}."]
    if (left_out := len(extraction.launches) - max_launches) > 0:
        sentences.append(f"The timeline leaves out the last {left_out} launches.")
    files = resources.files(__package__)
    scripts = {
        "vega": vega_script(),
        "script": files.joinpath("timeline.js").read_text(encoding="utf-8"),
    }
    page = Template(files.joinpath("timeline.html").read_text(encoding="utf-8")).substitute(
        scripts,
        title=escape(f"Kernels of {name}"),
        summary=escape(" ".join(sentences)),
        hashes=" ".join(map(script_hash, scripts.values())),
        data=embedded_json(specs),
    )
    write_view(folder / GANTT_HTML, page)
    draw(specs["gantt"], folder / GANTT_PNG)


def chart_specs(extraction: KernelExtraction, max_launches: int = MAX_LAUNCHES) -> dict[str, Spec]:
    """Return the chart ``breakdown`` and, where there are launches, ``gantt``."""
    specs = {"breakdown": _breakdown(extraction)}
    if extraction.launches:
        specs["gantt"] = _timeline(extraction, max_launches)
    return specs


def _timeline(extraction: KernelExtraction, max_launches: int) -> Spec:
    """Return a bar for each launch, and the card's power below them where it is known.

    The bars are on a line for each stream. The wheel zooms, dragging moves.
    """
    shown, left_out = extraction.launches[:max_launches], extraction.launches[max_launches:]
    categories = {each.kernel: each.category for each in extraction.signatures}
    first_us = shown[0].begin_us
    rows = []
    for launch, kernel in zip(shown, extraction.identities, strict=False):
        device, stream = (
            "?" if number is None else number for number in (launch.device, launch.stream)
        )
        place = f"GPU {device}" if launch.rank is None else f"rank {launch.rank}"
        rows.append(
            {
                "name": short_name(launch.name),
                "kernel": kernel,
                "category": categories[kernel],
                "operator": None if launch.operator is None else launch.operator.name,
                "begin": (launch.begin_us - first_us) / 1e3,
                "end": (launch.end_us - first_us) / 1e3,
                "us": launch.duration_us,
                "phase": launch.phase,
                "layer": launch.layer,
                "lane": f"{place}, stream {stream}",
            }
        )
    lanes = len({row["lane"] for row in rows})
    bars: Spec = {
        "width": _WIDTH,
        "height": min(max(90, _LANE_HEIGHT * lanes), _MAX_HEIGHT),
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
    if extraction.power is None:
        return bars
    until_us = left_out[0].begin_us if left_out else math.inf
    power = _power_chart(extraction.power, first_us, until_us)
    return {"vconcat": [bars, power], "resolve": {"scale": {"x": "shared"}}}


def _power_chart(curve: PowerCurve, first_us: float, until_us: float) -> Spec:
    """Return the card's power, until the end of the timeline that begins at ``first_us``."""
    rows = [
        {"time": (us - first_us) / 1e3, "power": power_w}
        for us, power_w in zip(curve.times_us, curve.powers_w, strict=True)
        if us < until_us
    ]
    return {
        "width": _WIDTH,
        "height": _POWER_HEIGHT,
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


def _breakdown(extraction: KernelExtraction) -> Spec:
    """Return the GPU time by category, and by phase where the trace names phases."""
    sums: dict[tuple[str, str], float] = {}
    for kernel, signature in extraction.pairs:
        key = (signature.category, kernel.phase or "unknown")
        sums[key] = sums.get(key, 0.0) + kernel.total_us
    total_us = extraction.gpu_time_us or 1.0
    rows = [
        {"category": category, "phase": phase, "ms": us / 1e3, "part": us / total_us}
        for (category, phase), us in sums.items()
    ]
    return {
        "width": _WIDTH // 2,
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
