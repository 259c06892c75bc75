"""Views of a report: JSON, the classic CSV tree, and names that no view may break on."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.report import (
    check_writable,
    html_page,
    json_document,
    tidy_csv,
    write_classic_csv,
    write_json,
)
from pytest_gpuenergy.support import ReportError, csv_text

each_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def table(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "EMULATED.txt"
    }


def test_one_classic_file_per_cap(tmp_path, report, measured):
    write_classic_csv(report(measured(2), measured(1)), tmp_path)
    assert (tmp_path / "case1/powercap3/results.csv").read_text() == (
        "id,perf(GFLOP/s),energy(mJ),EDP(ms*mJ)\n1,2000.0,100.0,50.0\n2,2000.0,100.0,50.0\n"
    )


def test_classic_figures_have_six_significant_digits(tmp_path, report, measured):
    item = measured(1, time_ms=0.0123456789, energy_mj=123456.789)
    write_classic_csv(report(item), tmp_path)
    for name in ("all.csv", "powercap3/results.csv"):
        row = table(tmp_path / "case1" / name)[1]
        assert [cell for cell in row if cell][1:] == ["81000.0", "123457.0", "1524.16"]


@each_example
@given(st.floats(1e-12, 1e12))
def test_rounding_changes_no_classic_figure_by_more_than_half_a_digit(
    tmp_path, report, measured, figure
):
    write_classic_csv(report(replace(measured(1), gflops=figure)), tmp_path)
    shown = float(table(tmp_path / "case1/powercap3/results.csv")[1][1])
    assert shown == pytest.approx(figure, rel=5.001e-6)


def test_all_caps_side_by_side_lowest_first(tmp_path, report, measured):
    items = [
        measured(rank, cap, energy_mj=10.0 * cap) for cap in (4, 2, 5, 1, 3) for rank in (1, 2)
    ]
    write_classic_csv(report(*items), tmp_path)
    header, *rows = table(tmp_path / "case1/all.csv")
    assert header == ["id", *["perf(GFLOP/s)", "energy(mJ)", "EDP(ms*mJ)"] * 5]
    assert len(header) == 16
    assert [row[0] for row in rows] == ["1", "2"]
    assert [float(energy) for energy in rows[0][2::3]] == [10.0, 20.0, 30.0, 40.0, 50.0]


TABLE_W = (200.0, 325.0, 450.0, 575.0, 700.0)


@each_example
@given(
    st.sets(st.integers(1, 5)),
    st.sets(st.sampled_from([150.0, 350.0, 600.0])),
    st.sampled_from([(), TABLE_W]),
)
def test_each_cap_of_the_table_has_its_columns_whatever_was_measured(
    tmp_path_factory, report, measured, caps, others, asked
):
    items = [measured(1, cap, energy_mj=10.0 * cap) for cap in caps]
    items += [
        replace(measured(1, None, energy_mj=watts, power_limit_w=watts), cap=f"{watts:g}W")
        for watts in others
    ]
    folder = tmp_path_factory.mktemp("views")
    write_classic_csv(report(*items, cap_table_w=asked), folder)
    if not items:
        assert files(folder) == set()
        return
    header, row = table(folder / "case1/all.csv")
    of_table = [f"{10.0 * cap}" if cap in caps else "" for cap in range(1, 6)]
    shown = of_table if asked or caps else []
    assert row[2::3] == [*shown, *map(str, sorted(others))]
    assert header == ["id", *["perf(GFLOP/s)", "energy(mJ)", "EDP(ms*mJ)"] * len(row[2::3])]


def test_a_table_of_another_length_has_as_many_columns(tmp_path, report, measured):
    write_classic_csv(report(measured(1, 2), cap_table_w=(100.0, 325.0, 450.0)), tmp_path)
    assert table(tmp_path / "case1/all.csv")[1][2::3] == ["", "100.0", ""]


def test_a_cap_that_only_failed_kernels_had_has_its_columns(tmp_path, report, measured, failed):
    write_classic_csv(report(failed(1, 1), measured(1, None)), tmp_path)
    assert table(tmp_path / "case1/all.csv")[1][2::3] == [*[""] * 5, "100.0"]


def test_an_index_beyond_the_table_comes_after_it(tmp_path, report, measured):
    far = replace(measured(1, 1), cap_index=999_999_999)
    write_classic_csv(report(far), tmp_path)
    assert table(tmp_path / "case1/all.csv")[1][2::3] == [*[""] * 5, "100.0"]


@pytest.mark.parametrize(
    ("change", "folder"),
    [
        ({"cap": None}, "powercap_current"),
        ({"cap": None, "power_limit_w": 350.0, "cap_label": "350W"}, "powercap_350W"),
        ({"cap": 3}, "powercap3"),
        ({"cap": 3, "cap_label": "450W-1500MHz"}, "powercap3-1500MHz"),
    ],
)
def test_folders_of_caps(tmp_path, report, measured, change, folder):
    label = change.pop("cap_label", None)
    item = measured(**change)
    write_classic_csv(report(replace(item, cap=label or item.cap)), tmp_path)
    assert files(tmp_path) == {f"case1/{folder}/results.csv", "case1/all.csv"}


def test_a_kernel_missing_at_one_cap_leaves_its_cells_empty(tmp_path, report, measured, failed):
    write_classic_csv(
        report(measured(1, 1), measured(2, 1), measured(2, 2), failed(1, 2)), tmp_path
    )
    rows = table(tmp_path / "case1/all.csv")
    assert rows[1] == ["1", "2000.0", "100.0", "50.0", *[""] * 12]
    assert [row[0] for row in table(tmp_path / "case1/powercap2/results.csv")] == ["id", "2"]


def test_kernels_of_one_label_have_a_row_each(tmp_path, report, measured):
    items = [
        replace(m, kernel=replace(m.kernel, digest=digest))
        for cap in (1, 2)
        for digest, energy_mj in (("one", 10.0 * cap), ("other", 11.0 * cap))
        for m in [measured(None, cap, energy_mj=energy_mj)]
    ]
    write_classic_csv(report(*items), tmp_path)
    rows = table(tmp_path / "case1/all.csv")[1:]
    assert [row[0] for row in rows] == ["k--", "k--"]
    assert [[float(row[2]), float(row[5])] for row in rows] == [[10.0, 20.0], [11.0, 22.0]]


def test_a_kernel_measured_twice_has_two_rows(tmp_path, report, measured):
    items = [measured(1, energy_mj=10.0), measured(1, energy_mj=11.0)]
    write_classic_csv(report(*items), tmp_path)
    for name, column in (("all.csv", 8), ("powercap3/results.csv", 2)):
        assert [row[column] for row in table(tmp_path / "case1" / name)[1:]] == ["10.0", "11.0"]


def test_kernels_without_a_rank_come_last_by_label(tmp_path, report, measured):
    write_classic_csv(report(measured(None), measured(10), measured(9)), tmp_path)
    rows = table(tmp_path / "case1/powercap3/results.csv")
    assert [row[0] for row in rows] == ["id", "9", "10", "k--"]


def test_one_folder_per_workload(tmp_path, report, measured):
    write_classic_csv(report(measured(1), measured(1, workload="case2")), tmp_path)
    assert {name.split("/")[0] for name in files(tmp_path)} == {"case1", "case2"}


def test_without_figures_there_is_no_classic_file(tmp_path, report, failed):
    write_classic_csv(report(failed()), tmp_path)
    assert files(tmp_path) == set()


@each_example
@given(
    st.text(min_size=1, max_size=12) | st.sampled_from(["..", "../../x", "/etc", "a/../../../b"]),
    st.text(min_size=1, max_size=12) | st.sampled_from(["../../../x", "/", "a/../../../../b"]),
)
def test_hostile_names_cannot_leave_the_folder(tmp_path_factory, report, measured, workload, cap):
    base = tmp_path_factory.mktemp("views")
    folder = base / "a" / "b" / "c" / "csv"
    item = replace(measured(1, None, workload=workload), cap=cap)
    write_classic_csv(report(item), folder)
    assert len(files(folder)) == len(files(base)) == 2
    assert all(len(Path(name).parts) <= 3 for name in files(folder))


def test_json_is_the_documented_form(report, measured):
    document = json.loads(json_document(report(measured(1))))
    assert document["schema_version"] == 1
    assert document["run"]["emulated"] is True
    assert document["measurements"][0]["kernel"]["rank"] == 1
    assert document["measurements"][0]["energy_mj"] == 100.0


def test_folders_of_a_view_are_made(tmp_path, report, measured):
    write_json(report(measured(1)), tmp_path / "deep" / "er" / "report.json")
    assert files(tmp_path) == {"deep/er/report.json"}


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, report):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ReportError, match=r"file/view cannot be written \(.*\): choose a writable path"
    ):
        write_json(report(), tmp_path / "file" / "view")


def test_a_writable_place_passes_and_is_left_clean(tmp_path):
    check_writable(tmp_path / "a" / "report.json", folder=False)
    check_writable(tmp_path / "b", folder=True)
    assert files(tmp_path) == set()


def test_trying_a_place_writes_through_no_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name in (".gpuenergy-write-test", "report.json.tmp"):
        (tmp_path / name).symlink_to(precious)
    check_writable(tmp_path / "report.json", folder=False)
    check_writable(tmp_path, folder=True)
    assert precious.read_text() == "kept"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_view_may_have_the_longest_name_there_is(tmp_path, report):
    path = tmp_path / ("n" * 250 + ".json")
    check_writable(path, folder=False)
    write_json(report(), path)
    assert files(tmp_path) == {path.name}


@pytest.mark.parametrize("name", ["n" * 251 + ".json", "€" * 84 + ".json"])
def test_a_name_that_is_too_long_is_refused_before_anything_is_measured(tmp_path, name):
    with pytest.raises(ReportError, match=r"cannot be written \(File name too long\): choose"):
        check_writable(tmp_path / name, folder=False)


def test_a_folder_cannot_be_a_file(tmp_path):
    with pytest.raises(ReportError, match=r"cannot be written \(it is a folder\)"):
        check_writable(tmp_path, folder=False)


@pytest.mark.parametrize("folder", [True, False])
def test_a_place_under_a_file_does_not_pass(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="choose a writable path"):
        check_writable(tmp_path / "file" / "below" / "x", folder=folder)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path, report, kind):
    path = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    before = path.stat().st_ino
    with pytest.raises(ReportError, match="it is not a regular file"):
        write_json(report(), path)
    with pytest.raises(ReportError, match="it is not a regular file"):
        check_writable(path, folder=False)
    assert path.stat().st_ino == before


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path, report):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(Path("real") / "report.json")
    check_writable(link, folder=False)
    write_json(report(), link)
    assert link.is_symlink()
    assert json.loads((tmp_path / "real" / "report.json").read_text())["schema_version"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user")
@pytest.mark.parametrize("folder", [True, False])
def test_another_users_link_in_a_folder_for_everybody_is_refused(
    tmp_path, report, measured, folder
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "view"
    link.symlink_to(elsewhere if folder else elsewhere / "report.json")
    os.chown(link, 54321, 54321, follow_symlinks=False)
    with pytest.raises(ReportError, match="is a link that belongs to another user"):
        check_writable(link, folder=folder)
    write = write_classic_csv if folder else write_json
    with pytest.raises(ReportError, match="is a link that belongs to another user"):
        write(report(measured(1)), link)
    assert files(elsewhere) == set()


def test_links_in_a_circle_are_refused(tmp_path, report):
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(ReportError, match="cannot be written"):
        write_json(report(), tmp_path / "link")


def test_a_link_in_the_classic_tree_is_not_followed(tmp_path, report, measured):
    (tmp_path / "csv" / "case1").mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "csv" / "case1" / "all.csv").symlink_to(tmp_path / "elsewhere")
    write_classic_csv(report(measured(1)), tmp_path / "csv")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert (tmp_path / "csv" / "case1" / "all.csv").read_text().startswith("id,")


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "=cmd|'/C calc'!A0"]
SHARED = [
    ["a b", "a_b", "a:b", "a/b"],
    [".hidden", "hidden"],
    ["..", "_", "."],
    ["x" * 300, "x" * 301],
    ["\u00e9" * 150, "\u00e9" * 151],
]


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_in_the_tidy_table_is_no_formula(report, measured, name):
    rows = csv.reader(io.StringIO(tidy_csv(report(measured(1, workload=name, node_id=name)))))
    cells = [cell for row in rows for cell in row]
    assert f"'{name}" in cells
    assert name not in cells


@pytest.mark.parametrize("name", FORMULAS)
def test_a_label_in_the_classic_tree_is_no_formula(report, measured, tmp_path, name):
    m = measured(None)
    write_classic_csv(report(replace(m, kernel=replace(m.kernel, label=name))), tmp_path)
    for path in tmp_path.rglob("*.csv"):
        with path.open(newline="") as stream:
            rows = [*csv.reader(stream)]
        assert rows[1][0] == f"'{name}"


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_negative_number_stays_a_number(number):
    assert csv_text([[number]]) == f"{number}\n"


@given(st.text(max_size=5))
def test_no_text_begins_as_a_formula_does(text):
    ((cell, end),) = csv.reader(io.StringIO(csv_text([[text, "end"]]), newline=""))
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert cell in (text.replace("\r", " "), "'" + text.replace("\r", " "))
    assert end == "end"


@pytest.mark.parametrize("names", SHARED, ids=lambda names: names[0][:10])
def test_workloads_with_one_safe_name_have_a_folder_each(report, measured, tmp_path, names):
    rows = [measured(1, workload=name, node_id=name) for name in names]
    write_classic_csv(report(*rows), tmp_path)
    tables = [*tmp_path.glob("*/all.csv")]
    assert len(tables) == len(names)
    assert all(len(path.read_text().splitlines()) == 2 for path in tables)


def test_a_name_that_is_safe_itself_keeps_its_folder(report, measured, tmp_path):
    rows = [measured(n, workload=name) for n, name in ((1, "a b"), (2, "a_b"))]
    write_classic_csv(report(*rows), tmp_path)
    assert (tmp_path / "a_b" / "all.csv").read_text().splitlines()[1].startswith("2,")


def test_caps_with_one_safe_name_have_a_folder_each(report, measured, tmp_path):
    rows = [replace(measured(1, None), cap=cap, node_id=cap) for cap in ("300 W", "300_W")]
    write_classic_csv(report(*rows), tmp_path)
    assert len([*tmp_path.glob("case1/*/results.csv")]) == 2


@pytest.mark.parametrize("separator", ["\u2028", "\u2029"])
def test_ends_of_lines_in_names_are_spelled_out_on_the_page(report, measured, separator):
    html = html_page(report(measured(1, workload=f"one{separator}two", node_id=separator)))
    found = re.search('<script type="application/json" id="report-data">(.*?)</script>', html)
    assert found is not None
    data = json.dumps(json.loads(found[1]), ensure_ascii=False)
    assert separator not in data
    assert f"one\\\\u{ord(separator):04x}two" in data
