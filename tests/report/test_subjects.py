"""What measurements are of, and the ids by which users name them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import KernelInfo, Measurement, WorkloadInfo
from pytest_gpuenergy.report import Report, page_data, with_item_names, write_json

Make = Callable[..., Any]
SMALL, LARGE = ("scale (x float32[64])", "scale (x float32[4096])")


@pytest.fixture
def shared(report: Make, measured: Make) -> Report:
    """Two kernels of one size and one of a larger one, whose workloads are all called `scale`."""

    def of(size: int, rank: int, time_ms: float) -> Measurement:
        info = WorkloadInfo("scale", {"kind": "contract", "x": f"float32[{size}]"}, size, 8 * size)
        found: Measurement = measured(rank, workload="scale", time_ms=time_ms)
        return replace(found, workload=info, node_id=f"test_scale[{size}-{rank}]")

    made: Report = report(of(64, 1, 0.2), of(64, 2, 0.1), of(4096, 3, 5.0))
    return made


def test_no_best_is_among_different_work(shared, tmp_path, capsys):
    write_json(shared, tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    best = lines[lines.index("best of each workload (emulated)") + 1 :]
    assert [line.split("  ")[1] for line in best[1:]] == [SMALL, LARGE]
    titles = [line for line in lines if " at 450W (emulated)" in line]
    assert [title.partition(" at ")[0] for title in titles] == [SMALL, LARGE]
    document = json.loads((tmp_path / "run.json").read_text())
    assert [one["workload"] for one in document["best"]] == [SMALL, LARGE]
    assert [one["edp"]["items"] for one in document["best"]] == [
        ["test_scale[64-2]"],
        ["test_scale[4096-3]"],
    ]
    assert document["measurements"][0]["workload"]["name"] == "scale"


def test_the_page_has_a_chart_for_each(shared):
    data = page_data(shared, shared)
    names = [SMALL, SMALL, LARGE]
    assert [row["workload"] for row in data["rows"]] == names
    assert [one["workload"] for one in data["best"]] == [SMALL, LARGE]
    assert [one["workload"] for one in data["differences"]] == [n for n in names for _ in "tee"]
    assert {row["known_as"] for row in data["rows"]} == {"scale"}  # as in the trend


def test_the_work_is_told_by_all_in_which_it_differs(report, measured):
    sizes = [(1, 1), (1, 2), (2, 1)]
    rows = [
        replace(
            measured(rank, node_id=f"test[{n}-{m}]"),
            workload=WorkloadInfo("copy", {"n": n, "m": m, "kind": "contract"}, 0, 1),
        )
        for rank, (n, m) in enumerate(sizes, start=1)
    ]
    names = [row["workload"] for row in page_data(report(*rows))["rows"]]
    assert names == [f"copy (m {m} n {n})" for n, m in sizes]


@pytest.mark.parametrize(
    ("expression", "changed"),
    [
        ("scale-b1-450W", "(test_scale[b1-450W])"),
        ("scale-b1", "(test_scale[b1-200W] or test_scale[b1-450W])"),
        ("not (scale-b1-200W and x)", "not ((test_scale[b1-200W]) and x)"),
        ("b1-450W or test_scale", "b1-450W or test_scale"),
        ("nothing and 450W", "nothing and 450W"),
        ("", ""),
    ],
)
def test_ids_become_the_names_of_their_items(measured, expression, changed):
    label = KernelInfo("b1", "0" * 64, "source")
    items = [
        replace(
            measured(None, cap, workload="scale"),
            node_id=f"test_scale.py::test_scale[b1-{watts}W]",
            kernel=label,
        )
        for cap, watts in ((1, 200), (3, 450))
    ]
    assert with_item_names(expression, items) == changed


@pytest.mark.slow
@given(st.text())
def test_without_measurements_an_expression_stays_as_it_is(expression):
    assert with_item_names(expression, []) == expression
