"""What a run leaves on disk, even when it is interrupted."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from points import MORE

from pytest_gpuenergy.report import Report, RunFolder, latest_run

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow


def three(project: Project, *, blow: signal.Signals | None = None) -> None:
    """Three items; the second ends with a signal to its own process."""
    blows = "" if blow is None else f"if number == 2: os.kill(os.getpid(), {blow:d})"
    project.bench(
        marks='@pytest.mark.parametrize("number", [1, 2, 3])',
        arguments="number, powercap, ",
        after=blows,
    )


def test_a_run_has_a_line_for_each_item_and_the_views(project):
    project.run("--powercap", "1,3").assert_outcomes(passed=2)
    (folder,) = project.runs
    lines = (folder / "measurements.jsonl").read_text().splitlines()
    assert [json.loads(line)["cap"] for line in lines] == ["200W", "450W"]
    assert project.report() == project.stored()
    assert (folder / "csv" / "scale" / "powercap3" / "results.csv").exists()
    # The folder keeps itself out of version control.
    assert (project.path / ".gpuenergy" / ".gitignore").read_text().splitlines()[-1] == "*"


def test_the_report_names_the_run(project):
    project.run("--powercap", "1", "--gpuenergy-timeout", "30").assert_outcomes(passed=1)
    run = project.report().run
    assert run.emulated
    assert run.gpu_name == "NVIDIA H200"
    assert run.power_limits_w == {"min": 200, "max": 700, "at_start": 700}
    assert run.options == {
        "gpu-device": "emulated",
        "powercap": "1",
        "gpuenergy-timeout": "30",
        "gpuenergy-cache": "hot",
        "gpuenergy-order": "interleaved",
        "gpuenergy-preheat": "0",
        "gpuenergy-anchor": "300",
    }
    assert {"python", "pytest", "pytest-gpuenergy", "host_compiler"} <= set(run.software)


def test_views_are_written_where_asked(project):
    project.run(
        "--powercap", "all", "--gpuenergy-json", "out/r.json", "--gpuenergy-csv", "classic"
    ).assert_outcomes(passed=5)
    document = json.loads((project.path / "out" / "r.json").read_text())
    assert document["schema_version"] == 1
    assert len(document["measurements"]) == 5
    with (project.path / "classic" / "scale" / "all.csv").open() as file:
        header, row = csv.reader(file)
    assert header == ["id", *(["perf(GFLOP/s)", "energy(mJ)", "EDP(ms*mJ)"] * 5)]
    by_cap = sorted(document["measurements"], key=lambda m: m["cap_index"])
    energies = [m["energy_mj"] for m in by_cap]
    assert [float(cell) for cell in row[2::3]] == pytest.approx(energies, rel=1e-5)
    for index in range(1, 6):
        name = f"powercap{index}"
        text = (project.path / "classic" / "scale" / name / "results.csv").read_text()
        assert text.startswith("id,perf(GFLOP/s),energy(mJ),EDP(ms*mJ)\n")


def all_csv(project: Project) -> list[list[str]]:
    (folder,) = project.runs
    with (folder / "csv" / "scale" / "all.csv").open() as file:
        return list(csv.reader(file))


def test_a_cap_that_the_card_cannot_take_has_empty_columns(project):
    project.run("--gpu-device", "emulated:v100").assert_outcomes(passed=4, skipped=1)
    assert project.report().run.cap_table_w == (100, 150, 200, 250, 300)
    header, row = all_csv(project)
    assert len(header) == len(row) == 16
    assert [cell != "" for cell in row[1:]] == [False] * 3 + [True] * 12


def test_table_columns_are_there_when_only_another_cap_could_be_set(project, inject):
    inject(power_limit="no_permission")
    project.run("--powercap", "1,2,current").assert_outcomes(passed=1, skipped=2)
    header, row = all_csv(project)
    assert len(header) == 19
    assert [cell != "" for cell in row[1:]] == [False] * 15 + [True] * 3


def test_a_run_that_asks_for_no_cap_of_the_table_has_columns_for_its_own(project):
    project.run("--powercap", "current,350W").assert_outcomes(passed=2)
    assert project.report().run.cap_table_w == ()
    header, row = all_csv(project)
    assert len(header) == len(row) == 7
    assert "" not in row


def test_a_resumed_run_keeps_the_table_that_it_asked_for(project):
    project.run("--powercap", "2").assert_outcomes(passed=1)
    project.run("--powercap", "current", "--gpuenergy-resume").assert_outcomes(passed=1)
    assert project.report().run.cap_table_w == (200, 325, 450, 575, 700)


def test_a_view_that_cannot_be_written_at_the_end_fails_the_run(project):
    project.bench(after="os.mkdir('late.json')")
    result = project.run("--powercap", "1", "--gpuenergy-json", "late.json")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpuenergy: error: */late.json cannot be written (*): * The measurements are in *"]
    )
    assert len(project.report().measurements) == 1


def test_a_run_is_read_once_at_its_end(project, monkeypatch):
    load, loaded = RunFolder.load, []

    def count(folder: RunFolder) -> Report:
        report = load(folder)
        loaded.append(len(report.measurements))
        return report

    monkeypatch.setattr(RunFolder, "load", count)
    views = ("--gpuenergy-json=r.json", "--gpuenergy-csv=csv")
    views = (*views, "-p", "benchmark", "--benchmark-json=b.json")
    result = project.run("--powercap", "1,5", *views)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*best of each workload (emulated)", "report: *r.json*"])
    assert loaded == [2]


def test_a_damaged_run_folder_is_told_and_fails_the_run(project):
    project.module(
        """
        from pathlib import Path

        def test_spoils(powercap):
            (path,) = Path(".gpuenergy/runs").glob("*/run.json")
            path.write_text("{")
        """
    )
    result = project.run("--powercap", "1")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gpuenergy: error: */run.json: it is not complete JSON (*)."])


def test_where_no_folder_can_be_made_nothing_is_measured(project):
    (project.path / ".gpuenergy").write_text("in the way")
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    assert text.count("error: ") == 1
    assert ".gpuenergy/runs" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("number", [signal.SIGINT, MORE(signal.SIGTERM)])
def test_a_signal_restores_the_cap_and_keeps_the_results(project, number):
    three(project, blow=number)
    result = project.run_apart("--powercap", "1", "--gpuenergy-json", "r.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert project.limit_w() == 700
    assert len(project.report().measurements) == 2
    assert (project.path / "r.json").exists()
    result.stdout.fnmatch_lines(["scale at 200W (emulated)*"])


def test_what_was_measured_survives_a_kill_and_the_next_start_restores_the_cap(project):
    three(project, blow=signal.SIGKILL)
    result = project.run_apart("--powercap", "1")
    assert result.ret == -signal.SIGKILL
    stored = project.stored().measurements
    assert [m.node_id for m in stored] == [
        f"test_scale.py::test_scale[{number}-200W]" for number in (1, 2)
    ]
    assert all(m.measured for m in stored)
    assert project.limit_w() == 200
    three(project)
    project.run("--powercap", "current").assert_outcomes(passed=3)
    assert project.limit_w() == 700
    last = latest_run(project.path)
    assert last is not None
    assert {m.enforced_power_limit_w for m in last.load().measurements} == {700}


def test_a_line_cut_short_does_not_spoil_the_others(project):
    project.run("--powercap", "1,2").assert_outcomes(passed=2)
    (folder,) = project.runs
    path = folder / "measurements.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert [m.cap for m in project.stored().measurements] == ["200W"]
    project.run("--powercap", "1,2", "--gpuenergy-resume")
    assert [m.cap for m in project.report().measurements] == ["200W", "325W"]


def test_the_page_is_written_where_it_was_asked_for(project):
    project.run("--powercap", "450W", "--gpuenergy-html", "out/p.html").assert_outcomes(passed=1)
    page = (project.path / "out" / "p.html").read_text(encoding="utf-8")
    assert "<title>NVIDIA H200 (emulated), run " in page


def test_a_revision_whose_files_were_changed_says_so(project, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=project.path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "pyproject.toml", "parts.py", "test_scale.py")
    git("commit", "-qm", "One")
    git("tag", "-am", "A release", "v1")
    commit = git("rev-parse", "HEAD")
    project.run("--powercap", "1")
    assert project.stored().run.git_revision == commit
    (first,) = project.runs
    project.ini("# changed")
    project.run("--powercap", "1")
    (second,) = set(project.runs) - {first}
    run = RunFolder(second).load().run
    assert run.git_revision == f"{commit}-dirty"
    assert run.short_revision == f"{commit[:12]}-dirty"
