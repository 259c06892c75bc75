"""The page's charts as Vega-Lite specifications; the page fills in each workload's rows.

No string of a report becomes part of an expression: names reach a chart only as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
METRICS = {
    "edp_mj_ms": "EDP (mJ·ms)",
    "energy_mj": "energy (mJ)",
    "time_us": "time (µs)",
    "power_w": "power (W)",
    "gflops_per_w": "GFLOP/s/W",
}
"""Fields of a row that can be shown as a distribution, with their axis titles."""

_FRONT = "#c2410c"
_ACROSS = 380
_DOWN = 280
_TOOLTIP = [
    {"field": "kernel", "title": "kernel"},
    {"field": "band", "title": "band"},
    {"field": "cap", "title": "power cap"},
    {"field": "time_us", "title": "time (µs)", "format": ".4~g"},
    {"field": "energy_mj", "title": "energy (mJ)", "format": ".4~g"},
    {"field": "edp_mj_ms", "title": "EDP (mJ·ms)", "format": ".4~g"},
    {"field": "power_w", "title": "power (W)", "format": ".4~g"},
    {"field": "gflops_per_w", "title": "GFLOP/s/W", "format": ".4~g"},
    {"field": "flag_words", "title": "validity"},
]
_SHAPE = {
    "field": "state",
    "type": "nominal",
    "title": "validity",
    "scale": {"domain": ["clean", "flagged"], "range": ["circle", "triangle-up"]},
}


def charts(*, emulated: bool, caps: int) -> dict[str, Any]:
    """The charts of one workload by name, as specifications without data.

    Args:
        emulated: whether the figures are emulated, which every title then says.
        caps: number of power caps. With a single one, colours stand for the kernels' bands, and
            EDP is drawn by kernel instead of by cap.
    """
    colour = _colour(several=caps > 1)

    def titled(title: str, spec: Spec) -> Spec:
        return _chart(f"{title} (emulated)" if emulated else title, spec)

    by_cap = _edp_by_cap(colour) if caps > 1 else _by_kernel("edp_mj_ms", colour)
    return {
        "front": titled("Energy against time, with the Pareto front", _front(colour)),
        "edp": titled(f"EDP by {'power cap' if caps > 1 else 'kernel'}", by_cap),
        "efficiency": titled("GFLOP/s/W by kernel", _by_kernel("gflops_per_w", colour)),
        "distribution": {
            field: titled(f"Distribution of {name} over the kernels", _distribution(field, colour))
            for field, name in METRICS.items()
        },
    }


def _chart(title: str, spec: Spec) -> Spec:
    return {
        "$schema": SCHEMA,
        "title": {"text": title, "anchor": "start", "fontSize": 13},
        "data": {"name": "rows"},
        "width": _ACROSS,
        "height": _DOWN,
        "background": "transparent",
        **spec,
    }


def _colour(*, several: bool) -> Spec:
    """Colour by cap, or by band when there is a single cap; the page adds the domains."""
    field, title = ("cap", "power cap") if several else ("band", "band")
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "scale": {"scheme": "viridis" if several else "tableau10"},
        "sort": None,
    }


def _axis(field: str) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "title": METRICS[field],
        "scale": {"zero": False, "padding": 8},
        "axis": {"labelOverlap": "greedy", "tickCount": 8, "format": ".6~g"},
    }


def _points(colour: Spec, x: Spec, y: Spec, **more: Any) -> Spec:
    return {
        "name": "points",
        "mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.85},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "shape": _SHAPE,
            "tooltip": _TOOLTIP,
            **more,
        },
    }


def _front(colour: Spec) -> Spec:
    x, y = _axis("time_us"), _axis("energy_mj")
    return {
        "layer": [
            {
                "transform": [{"filter": "datum.pareto"}],
                "mark": {
                    "type": "line",
                    "interpolate": "step-after",
                    "color": _FRONT,
                    "strokeWidth": 2,
                },
                "encoding": {"x": x, "y": y, "order": {"field": "time_us"}},
            },
            {
                "mark": {"type": "rule", "opacity": 0.6},
                "encoding": {
                    "x": {**x, "field": "time_us_low"},
                    "x2": {"field": "time_us_high"},
                    "y": y,
                    "color": colour,
                },
            },
            {
                "mark": {"type": "rule", "opacity": 0.6},
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "energy_mj_low"},
                    "y2": {"field": "energy_mj_high"},
                    "color": colour,
                },
            },
            _points(colour, x, y),
            {
                "transform": [{"filter": "datum.pareto"}],
                "mark": {"type": "point", "size": 130, "color": _FRONT, "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y, "tooltip": _TOOLTIP},
            },
        ]
    }


def _edp_by_cap(colour: Spec) -> Spec:
    x = {
        "field": "limit_w",
        "type": "quantitative",
        "title": "enforced power limit (W)",
        "scale": {"zero": False, "padding": 8},
    }
    y = _axis("edp_mj_ms")
    return {
        "layer": [
            {
                "params": [
                    {
                        "name": "under",
                        "select": {"type": "point", "on": "pointerover", "fields": ["kernel"]},
                    }
                ],
                "mark": {"type": "line", "color": "#94a3b8"},
                "encoding": {
                    "x": x,
                    "y": y,
                    "detail": {"field": "kernel", "type": "nominal"},
                    "opacity": {"condition": {"param": "under", "value": 0.9}, "value": 0.15},
                },
            },
            _points(colour, x, y),
        ]
    }


def _by_kernel(field: str, colour: Spec) -> Spec:
    kernels = {
        "field": "kernel",
        "type": "nominal",
        "title": "kernel",
        "sort": None,
        "axis": {"labelOverlap": True, "labelLimit": 120, "grid": True},
    }
    return _points(colour, kernels, _axis(field))


def _distribution(field: str, colour: Spec) -> Spec:
    caps = {
        "field": "cap",
        "type": "nominal",
        "title": "power cap",
        "sort": None,
        "axis": {"labelAngle": 0},
    }
    box = {"type": "boxplot", "extent": 1.5, "outliers": False, "opacity": 0.35, "size": 40}
    points = _points(colour, caps, _axis(field), xOffset={"field": "band", "type": "nominal"})
    encoding: Mapping[str, Any] = {
        "x": caps,
        "y": _axis(field),
        "color": {"value": "#64748b"},
    }
    return {"layer": [{"mark": box, "encoding": encoding}, points]}
