"""Runs on disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, WorkloadInfo
from pytest_gpuenergy.report import (
    Report,
    RunFolder,
    json_document,
    latest_run,
    load_report,
    merge,
    store,
    write_json,
)
from pytest_gpuenergy.support import ReportError, encode, plain, write_atomically

Make = Callable[..., Any]
RESULTS = Path(__file__).parent.parent.parent / "bench" / "results"
BEGINNING = b'{\n "schema_version": 1,\n "run": {'
SHIPPED = [p for p in sorted(RESULTS.glob("*/*.json")) if p.read_bytes().startswith(BEGINNING)]


@pytest.fixture
def folder(tmp_path: Path, run_info: Make) -> RunFolder:
    return RunFolder.create(tmp_path, run_info())


def lines(folder: RunFolder) -> Path:
    return folder.path / "measurements.jsonl"


def test_a_new_run_has_no_measurements(folder, run_info):
    assert folder.load() == Report(run_info(), (), stations=(run_info().station,))


def test_what_was_appended_is_read_back(folder, measured, failed):
    items = (measured(1), failed(2), measured(3, None))
    for item in items:
        folder.append(item)
    assert folder.load().measurements == items


def test_of_an_item_appended_twice_the_later_one_counts(folder, measured):
    for item in (measured(1), measured(2), measured(1, energy_mj=50.0)):
        folder.append(item)
    assert folder.load().measurements == (measured(1, energy_mj=50.0), measured(2))


@pytest.mark.parametrize("flops", [2e6, np.int64(5), math.nan])
def test_what_could_not_be_read_back_is_not_written(folder, measured, flops):
    folder.append(measured())
    with pytest.raises(ReportError, match="could not be read back"):
        folder.append(replace(measured(2), workload=WorkloadInfo("w", {}, flops, 0)))
    assert [m.node_id for m in folder.load().measurements] == [measured().node_id]


@pytest.mark.parametrize(
    "figures",
    [
        {"time_ms": np.float64("nan")},
        {"time_ms": math.inf},
        {"time_ms": np.float32(0.5)},
        {"energy_mj": None},
        {"time_ms_ci95": Interval(2.0, 3.0)},
    ],
    ids=str,
)
def test_figures_that_could_not_be_read_back_are_not_written(folder, measured, figures):
    with pytest.raises(ReportError, match="could not be read back"):
        folder.append(replace(measured(), **figures))
    assert not lines(folder).exists()


def test_numbers_of_numpy_that_are_floats_are_kept_as_floats(folder, measured):
    folder.append(replace(measured(), wall_s=np.float64(0.5)))
    (kept,) = folder.load().measurements
    assert (type(kept.wall_s), kept.wall_s) == (float, 0.5)


def test_a_name_that_is_no_text_is_kept_as_far_as_it_is(folder, measured):
    folder.append(measured(node_id="b\udcffench.py::test"))
    assert [m.node_id for m in folder.load().measurements] == ["b?ench.py::test"]


def test_git_ignores_the_folder(tmp_path, run_info):
    RunFolder.create(tmp_path, run_info())
    text = (tmp_path / ".gpuenergy" / ".gitignore").read_text()
    assert "*" in text.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user")
def test_another_users_link_in_place_of_the_folder_of_runs_is_refused(tmp_path, run_info):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    project.chmod(0o1777)
    (project / ".gpuenergy").symlink_to(elsewhere)
    os.chown(project / ".gpuenergy", 54321, 54321, follow_symlinks=False)
    with pytest.raises(ReportError, match="is a link that belongs to another user"):
        RunFolder.create(project, run_info())
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_place_of_the_gitignore_is_not_followed(tmp_path, run_info):
    (tmp_path / ".gpuenergy").mkdir()
    (tmp_path / ".gpuenergy" / ".gitignore").symlink_to(tmp_path / "elsewhere")
    RunFolder.create(tmp_path, run_info())
    assert not (tmp_path / "elsewhere").exists()


def test_an_own_gitignore_is_kept(tmp_path, run_info):
    home = tmp_path / ".gpuenergy"
    home.mkdir()
    (home / ".gitignore").write_text("mine\n")
    RunFolder.create(tmp_path, run_info())
    assert (home / ".gitignore").read_text() == "mine\n"


def test_each_line_is_whole_on_disk_before_append_returns(folder, measured):
    folder.append(measured(1))
    assert lines(folder).read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("keep", [1, 20, -2])
def test_a_last_line_cut_short_is_left_out(folder, measured, keep):
    folder.append(measured(1))
    whole = lines(folder).read_bytes()
    folder.append(measured(2))
    second = lines(folder).read_bytes()[len(whole) :]
    lines(folder).write_bytes(whole + second[:keep])
    assert folder.load().measurements == (measured(1),)


def test_a_line_cut_short_does_not_spoil_the_next(folder, measured):
    folder.append(measured(1))
    with lines(folder).open("ab") as file:
        file.write(b'{"node_id": "cut')
    folder.append(measured(2))
    assert folder.load().measurements == (measured(1), measured(2))


def test_a_tail_of_zeros_is_left_out(folder, measured):
    folder.append(measured(1))
    with lines(folder).open("ab") as file:
        file.write(bytes(4096))
    folder.append(measured(2))
    assert folder.load().measurements == (measured(1), measured(2))


def test_a_line_of_another_kind_is_named(folder, measured):
    folder.append(measured(1))
    with lines(folder).open("ab") as file:
        file.write(b'{"node_id": 3}\n')
    with pytest.raises(ReportError, match=r"jsonl, line 2: node_id is an integer instead"):
        folder.load()


def test_nobody_else_may_write_while_a_line_is_written(folder, measured, monkeypatch):
    write = os.write
    refused: list[bool] = []

    def look(descriptor: int, content: bytes) -> int:
        with lines(folder).open("ab") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        refused.append(True)
        return write(descriptor, content)

    monkeypatch.setattr(store.os, "write", look)
    folder.append(measured(1))
    assert refused


@pytest.mark.slow
def test_two_processes_append_side_by_side(folder, measured):
    script = (
        "import sys, json\n"
        "from pathlib import Path\n"
        "from pytest_gpuenergy.record import Measurement\n"
        "from pytest_gpuenergy.report import RunFolder\n"
        "from pytest_gpuenergy.support import convert\n"
        "item = json.loads(sys.argv[2])\n"
        "for k in range(30):\n"
        "    item['node_id'] = f'{sys.argv[3]}-{k}'\n"
        "    RunFolder(Path(sys.argv[1])).append(convert(item, Measurement))\n"
    )
    item = encode(measured()).decode()
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(folder.path), item, name])
        for name in ("a", "b")
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert len(folder.load().measurements) == 60


def test_a_full_disk_is_one_sentence_and_loses_nothing(folder, measured, monkeypatch):
    folder.append(measured(1))
    write = os.write

    def half(descriptor: int, content: bytes) -> int:
        if len(content) < 200:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[: len(content) // 2])

    with monkeypatch.context() as full:
        full.setattr(store.os, "write", half)
        with pytest.raises(ReportError, match=r"jsonl cannot be written: No space left on device"):
            folder.append(measured(2))
    folder.append(measured(3))
    assert folder.load().measurements == (measured(1), measured(3))


def test_short_writes_are_continued(folder, measured, monkeypatch):
    write = os.write
    monkeypatch.setattr(store.os, "write", lambda fd, content: write(fd, content[:7]))
    folder.append(measured(1))
    assert folder.load().measurements == (measured(1),)


def test_a_run_that_cannot_be_created_is_one_sentence(tmp_path, run_info):
    (tmp_path / ".gpuenergy").write_text("a file")
    with pytest.raises(ReportError, match=r"gpuenergy.* cannot be written: "):
        RunFolder.create(tmp_path, run_info())


def test_a_run_folder_that_is_gone_cannot_be_appended_to(folder, measured):
    shutil.rmtree(folder.path)
    with pytest.raises(ReportError, match=r"cannot be written: No such file"):
        folder.append(measured())


def test_the_latest_run_is_the_one_begun_last(tmp_path, run_info):
    RunFolder.create(tmp_path, run_info(run_id="b"))
    RunFolder.create(tmp_path, run_info(run_id="a"))
    last = latest_run(tmp_path)
    assert last is not None
    assert last.path.name == "a"


@pytest.mark.parametrize("text", ["", "gone", "..", "../../elsewhere", "\0", "a" * 5000])
def test_a_latest_file_that_names_no_run_means_the_newest(tmp_path, run_info, text):
    for run_id in ("20260101T000000-b", "20260102T000000-a", "20251231T000000-c"):
        RunFolder.create(tmp_path, run_info(run_id=run_id))
    (tmp_path / ".gpuenergy" / "latest").write_text(text)
    last = latest_run(tmp_path)
    assert last is not None
    assert last.path.name == "20260102T000000-a"


def test_without_runs_there_is_no_latest(tmp_path):
    assert latest_run(tmp_path) is None


def test_a_report_is_read_from_its_file(tmp_path, run_info, measured):
    report = Report(run_info(), (measured(1), measured(2)))
    write_json(report, tmp_path / "report.json")
    assert load_report(tmp_path / "report.json") == report


def test_a_report_is_read_from_its_run_folder(folder, measured):
    folder.append(measured(1))
    assert load_report(folder.path) == folder.load()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_reports_of_earlier_releases_are_read_as_they_are(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    again = json.loads(json_document(load_report(path)))
    for before, now in zip(document["measurements"], again["measurements"], strict=True):
        now["kernel"] = {name: now["kernel"][name] for name in before["kernel"]}
        assert {name: now[name] for name in before} == before
    assert {name: again["run"][name] for name in document["run"]} == document["run"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not complete JSON"),
        ("{", r"JSON \(input data was truncated\)"),
        ("[]", "is not a report of pytest-gpuenergy"),
        ('{"run": {}}', "is not a report of pytest-gpuenergy"),
        ('{"schema_version": 2}', "schema version 2, but this release reads version 1"),
        ('{"schema_version": "1"}', "schema version '1'"),
        ('{"schema_version": 1}', "run is missing"),
        ("[" * 100_000, "is not a report of pytest-gpuenergy|nested too deeply"),
    ],
)
def test_a_file_that_is_no_report(tmp_path, text, message):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=message):
        load_report(path)


@pytest.mark.parametrize("listed", [None, {}, 3, [None], [{}], ["x"]], ids=repr)
def test_a_report_without_good_measurements_is_refused(tmp_path, run_info, listed):
    document = {"schema_version": 1, "run": plain(run_info()), "measurements": listed}
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(ReportError, match=r"report\.json: "):
        load_report(tmp_path / "report.json")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_damaged_report_is_read_or_a_report_error(tmp_path, run_info, measured, data):
    text = json_document(Report(run_info(), (measured(1),))).encode()
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 40)))
    path = tmp_path / "report.json"
    path.write_bytes(text[:begin] + data.draw(st.binary(max_size=10)) + text[end:])
    with contextlib.suppress(ReportError):
        load_report(path)


def test_bytes_are_no_report(tmp_path):
    (tmp_path / "report.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReportError, match=r"report\.json is not text"):
        load_report(tmp_path / "report.json")


def test_a_missing_report_is_named(tmp_path):
    with pytest.raises(ReportError, match=r"gone\.json does not exist"):
        load_report(tmp_path / "gone.json")


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(
        ReportError, match=r"is not a run, because it has no run\.json: name a folder in"
    ):
        load_report(tmp_path)


def test_a_path_under_a_file_is_not_there(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"report\.json does not exist: name a folder in"):
        load_report(tmp_path / "file" / "report.json")


def test_a_huge_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MAX_BYTES", 10)
    (tmp_path / "report.json").write_text(" " * 11)
    with pytest.raises(ReportError, match="larger than a report may be: 11 bytes"):
        load_report(tmp_path / "report.json")


def test_merged_runs_have_all_items_and_the_last_identity(run_info, measured):
    first = Report(run_info(run_id="a", started="2026-01-01"), (measured(1),))
    second = Report(run_info(run_id="b", started="2026-01-02"), (measured(2),))
    assert merge([second, first]) == Report(second.run, (measured(1), measured(2)))


def test_merged_runs_keep_the_last_table_of_caps(run_info):
    tables: list[tuple[float, ...]] = [(100.0, 200.0), (150.0, 300.0), ()]
    runs = [
        Report(run_info(started=f"2026-01-0{day}", cap_table_w=table_w), ())
        for day, table_w in enumerate(tables, start=1)
    ]
    assert merge(runs).run.cap_table_w == (150.0, 300.0)


def test_runs_of_a_hot_and_a_cold_cache_are_not_merged(run_info, measured):
    reports = [Report(run_info(), (measured(1, cache=state),)) for state in ("hot", "cold")]
    with pytest.raises(ReportError, match="a hot cache and others with a cold one"):
        merge(reports)


def test_runs_before_and_after_a_boards_own_limit_was_changed_are_not_merged(run_info, measured):
    def at(rank, limit_w, board="GPU-1"):
        own = {"power_limit_w": None, "enforced_power_limit_w": limit_w, "gpu_uuid": board}
        return Report(run_info(started=f"2026-01-0{rank}"), (measured(rank, **own),))

    with pytest.raises(ReportError, match="'current' was 500 W in some of them and 700 W in oth"):
        merge([at(1, 700.0), at(2, 500.0)])
    assert len(merge([at(1, 700.0), at(2, 500.0, "GPU-2")]).measurements) == 2


def test_of_an_item_in_two_runs_the_later_one_counts(run_info, measured):
    first = Report(run_info(started="2026-01-01"), (measured(1, energy_mj=50.0),))
    second = Report(run_info(started="2026-01-02"), (measured(1, energy_mj=60.0),))
    for order in ([first, second], [second, first]):
        assert merge(order).measurements == (measured(1, energy_mj=60.0),)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"emulated": False}, "emulated"), ({"gpu_name": "NVIDIA A30"}, "gpu_name")],
)
def test_runs_of_different_gpus_are_not_merged(run_info, change, name):
    runs = [Report(run_info(), ()), Report(run_info(run_id="x", **change), ())]
    with pytest.raises(ReportError, match=f"cannot be merged: {name} is"):
        merge(runs)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_the_latest_measurements_keep_the_order_of_first_appearance(ranks):
    base = Measurement(
        "", WorkloadInfo("w", {}, 1, 1), KernelInfo("k", "", "x"), "correct", "current"
    )
    items = [replace(base, node_id=str(rank), wall_s=k) for k, rank in enumerate(ranks)]
    kept = merge([Report(a_run(), tuple(items))]).measurements
    assert [item.node_id for item in kept] == [str(rank) for rank in dict.fromkeys(ranks)]
    for item in kept:
        assert item.wall_s == max(k for k, rank in enumerate(ranks) if str(rank) == item.node_id)


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="Read-only file system"):
        write_atomically(path, "new")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("kind", ["pipe", "link", "hard link"])
def test_lines_go_into_a_file_of_the_folder_alone(folder, measured, tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    if kind == "pipe":
        os.mkfifo(lines(folder))
    elif kind == "link":
        lines(folder).symlink_to(elsewhere)
    else:
        lines(folder).hardlink_to(elsewhere)
    with pytest.raises(ReportError, match=r"measurements\.jsonl cannot be written: "):
        folder.append(measured(1))
    assert elsewhere.read_text() == "kept"
