"""Names in a report that spreadsheets, file systems and charts would take for something else."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.report import html_page, tidy_csv, write_classic_csv
from pytest_gpuenergy.support import csv_text

Make = Callable[..., Any]
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "=cmd|'/C calc'!A0"]
SHARED = [
    ["a b", "a_b", "a:b", "a/b"],
    [".hidden", "hidden"],
    ["..", "_", "."],
    ["x" * 300, "x" * 301],
    ["\u00e9" * 150, "\u00e9" * 151],
]


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_in_the_tidy_table_is_no_formula(report: Make, measured: Make, name: str) -> None:
    rows = csv.reader(io.StringIO(tidy_csv(report(measured(1, workload=name, node_id=name)))))
    cells = [cell for row in rows for cell in row]
    assert f"'{name}" in cells
    assert name not in cells


@pytest.mark.parametrize("name", FORMULAS)
def test_a_label_in_the_classic_tree_is_no_formula(
    report: Make, measured: Make, tmp_path: Path, name: str
) -> None:
    m = measured(None)
    write_classic_csv(report(replace(m, kernel=replace(m.kernel, label=name))), tmp_path)
    for path in tmp_path.rglob("*.csv"):
        with path.open(newline="") as stream:
            rows = [*csv.reader(stream)]
        assert rows[1][0] == f"'{name}"


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_negative_number_stays_a_number(number: float) -> None:
    assert csv_text([[number]]) == f"{number}\n"


@given(st.text(max_size=5))
def test_no_text_begins_as_a_formula_does(text: str) -> None:
    ((cell, end),) = csv.reader(io.StringIO(csv_text([[text, "end"]]), newline=""))
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert cell in (text.replace("\r", " "), "'" + text.replace("\r", " "))
    assert end == "end"


@pytest.mark.parametrize("names", SHARED, ids=lambda names: names[0][:10])
def test_workloads_with_one_safe_name_have_a_folder_each(
    report: Make, measured: Make, tmp_path: Path, names: list[str]
) -> None:
    rows = [measured(1, workload=name, node_id=name) for name in names]
    write_classic_csv(report(*rows), tmp_path)
    tables = [*tmp_path.glob("*/all.csv")]
    assert len(tables) == len(names)
    assert all(len(path.read_text().splitlines()) == 2 for path in tables)


def test_a_name_that_is_safe_itself_keeps_its_folder(
    report: Make, measured: Make, tmp_path: Path
) -> None:
    rows = [measured(n, workload=name) for n, name in ((1, "a b"), (2, "a_b"))]
    write_classic_csv(report(*rows), tmp_path)
    assert (tmp_path / "a_b" / "all.csv").read_text().splitlines()[1].startswith("2,")


def test_caps_with_one_safe_name_have_a_folder_each(
    report: Make, measured: Make, tmp_path: Path
) -> None:
    rows = [replace(measured(1, None), cap=cap, node_id=cap) for cap in ("300 W", "300_W")]
    write_classic_csv(report(*rows), tmp_path)
    assert len([*tmp_path.glob("case1/*/results.csv")]) == 2


@pytest.mark.parametrize("separator", ["\u2028", "\u2029"])
def test_ends_of_lines_in_names_are_spelled_out_on_the_page(
    report: Make, measured: Make, separator: str
) -> None:
    html = html_page(report(measured(1, workload=f"one{separator}two", node_id=separator)))
    found = re.search('<script type="application/json" id="report-data">(.*?)</script>', html)
    assert found is not None
    data = json.dumps(json.loads(found[1]), ensure_ascii=False)
    assert separator not in data
    assert f"one\\\\u{ord(separator):04x}two" in data
