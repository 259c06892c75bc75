"""Formats of services that track benchmarks over time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from pytest_gpuenergy.record import Interval
from pytest_gpuenergy.report import bencher_json, github_action_json

Make = Callable[..., Any]
NAME = "bench/test_conv2d.py::test_conv2d[case1-k01-450W]"

BENCHER = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "lower_value": {"type": "number"},
                "upper_value": {"type": "number"},
            },
            "required": ["value"],
            "additionalProperties": False,
        },
    },
}
"""The Metric Format as documented by Bencher."""

GITHUB_ACTION = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "unit": {"type": "string"},
            "value": {"type": "number"},
            "range": {"type": "string"},
            "extra": {"type": "string"},
        },
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
    },
}
"""The format of custom tools as documented by github-action-benchmark."""


def test_bencher_gets_each_measure_with_its_interval(report: Make, measured: Make) -> None:
    item = measured(time_ms_ci95=Interval(0.4, 0.75), energy_mj_ci95=Interval(90.0, 110.0))
    document = json.loads(bencher_json(report(item, emulated=False)))
    jsonschema.validate(document, BENCHER)
    assert document == {
        NAME: {
            "latency": {"value": 5e5, "lower_value": 4e5, "upper_value": 7.5e5},
            "energy-mj": {"value": 100.0, "lower_value": 90.0, "upper_value": 110.0},
            "edp-mj-ms": {"value": 50.0},
        }
    }


def test_github_action_gets_figures_with_units(report: Make, measured: Make) -> None:
    item = measured(energy_mj_ci95=Interval(90.0, 110.0))
    entries = json.loads(github_action_json(report(item, emulated=False)))
    jsonschema.validate(entries, GITHUB_ACTION)
    assert [(one["name"], one["unit"], one["value"]) for one in entries] == [
        (f"{NAME} time", "ms", 0.5),
        (f"{NAME} energy", "mJ", 100.0),
        (f"{NAME} EDP", "mJ·ms", 50.0),
    ]
    assert entries[1]["range"] == "± 10"


@pytest.mark.parametrize("view", [bencher_json, github_action_json])
def test_only_clean_figures_are_told(
    report: Make, measured: Make, failed: Make, view: Callable[..., str]
) -> None:
    flagged = measured(2, validity=("temperature_drift",))
    assert len(json.loads(view(report(flagged, failed(3))))) == 0


@pytest.mark.parametrize("view", [bencher_json, github_action_json])
def test_emulated_figures_are_named_so(
    report: Make, measured: Make, view: Callable[..., str]
) -> None:
    assert f'"{NAME} (emulated)' in view(report(measured(1)))


def test_a_figure_beyond_all_numbers_is_left_out(report: Make, measured: Make) -> None:
    item = measured(time_ms=1e307, energy_mj=1.0)
    (measures,) = json.loads(bencher_json(report(item))).values()
    assert sorted(measures) == ["edp-mj-ms", "energy-mj"]


def test_long_names_are_cut_to_what_bencher_takes(report: Make, measured: Make) -> None:
    item = measured(node_id="n" * 5000)
    (name,) = json.loads(bencher_json(report(item)))
    assert len(name) == 1024
