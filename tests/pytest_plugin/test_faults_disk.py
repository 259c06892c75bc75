"""A disk that fills up or becomes read-only during a run; two runs that write at once."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.report import Report, load_report, write_classic_csv, write_json

pytestmark = pytest.mark.slow

FILLS_UP = """
import resource
from pathlib import Path
import pytest
from parts import LAUNCH, SCALE, SOURCE

@pytest.mark.parametrize("number", [1, 2, 3])
def test_scale(number, powercap, load_kernel, energy_benchmark):
    if number == 2:  # no file may grow beyond this; of results, blank lines take nearly all of it
        (lines,) = Path(".gpuenergy/runs").glob("*/measurements.jsonl")
        with lines.open("a") as file:
            file.write("\\n" * (LIMIT - lines.stat().st_size - 100))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
"""


# A file of buffers takes 135 kB: there is room for one, or not even one.
@pytest.mark.parametrize(
    ("limit_bytes", "sentence"),
    [
        (300_000, "*/measurements.jsonl cannot be written: File too large."),
        (100_000, "The buffers of scale, * bytes, cannot be written (File too large): make room *"),
    ],
)
def test_a_disk_that_fills_up_keeps_what_was_measured(project, limit_bytes, sentence):
    project.module(f"LIMIT = {limit_bytes}\n{FILLS_UP}")
    result = project.run_apart("--powercap", "1", "--gpuenergy-order", "file")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines([sentence])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert [m.measured for m in project.stored().measurements] == [True]
    assert project.limit_w() == 700


def test_a_measurement_that_cannot_be_written_fails_its_item_and_no_other(project, monkeypatch):
    real_open, struck = os.open, []

    def refuse_once(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if str(path).endswith("measurements.jsonl") and len(struck) < 2:
            struck.append(path)
            if len(struck) == 2:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse_once)
    result = project.run("--powercap", "1,2,3", "--gpuenergy-order", "file")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*measurements.jsonl cannot be written: Read-only file system."])
    assert [m.cap for m in project.stored().measurements] == ["200W", "450W"]
    assert project.report().measurements == project.stored().measurements
    assert project.limit_w() == 700


def test_a_report_folder_that_turns_read_only_keeps_the_run(project, monkeypatch):
    real_replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if Path(target).name in ("r.json", "report.json"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(target))
        return real_replace(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    result = project.run("--powercap", "1", "--gpuenergy-json", "out/r.json")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*r.json cannot be written (Read-only file system)*"])
    result.stdout.no_fnmatch_line("report: *")
    assert "Traceback" not in result.stdout.str()
    assert [m.measured for m in project.stored().measurements] == [True]
    assert not (project.path / "out" / "r.json").exists()
    assert project.limit_w() == 700


def test_two_runs_of_one_project_at_once_have_a_report_each(project):
    command = [project.python, "-m", "pytest", "-q", "--powercap", "1,2"]
    devices = ("emulated", "emulated:a30")
    runs = [
        subprocess.Popen(
            [*command, "--gpu-device", device, "--gpuenergy-json", "both.json"],
            cwd=project.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for device in devices
    ]
    for run in runs:
        said, _ = run.communicate()
        assert run.returncode == 0, said
    reports = {load_report(folder / "report.json").run.gpu_name for folder in project.runs}
    assert reports == {"NVIDIA H200", "NVIDIA A30"}
    # The file that both wrote is one of theirs, complete.
    both = load_report(project.path / "both.json")
    assert len(both.measurements) == 2
    assert {m.gpu_uuid for m in both.measurements} == {both.run.gpu_uuid}


def _write(report: Report, folder: Path, times: int) -> None:
    for _ in range(times):
        write_json(report, folder / "baseline.json")
        write_classic_csv(report, folder / "csv")


def test_a_file_that_two_processes_write_is_always_whole(project, tmp_path):
    project.run("--powercap", "1,2").assert_outcomes(passed=2)
    report = project.report()
    write_json(report, tmp_path / "baseline.json")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(report, tmp_path, 20)) for _ in range(2)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        assert load_report(tmp_path / "baseline.json") == report
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert reads
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    json.loads((tmp_path / "baseline.json").read_text())


REMOVES = """
import os, shutil
import pytest
from parts import LAUNCH, SCALE, SOURCE

@pytest.mark.parametrize("number", [1, 2, 3])
def test_scale(number, powercap, load_kernel, energy_benchmark):
    if number == 2:
        shutil.rmtree(os.environ[VARIABLE] if VARIABLE else ".gpuenergy")
    source = SOURCE.replace("factor *", "factor *" + number * " ")
    energy_benchmark(load_kernel(source, **LAUNCH), workload=SCALE)
"""


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("", "*/measurements.jsonl cannot be written: No such file or directory."),
        ("GPUENERGY_CACHE", "*/host-* was removed while it was in use: start again."),
        ("GPUENERGY_STATE", "*state of the emulated GPU*cannot be written*set GPUENERGY_STATE*"),
    ],
    ids=["runs", "cache", "state"],
)
def test_a_folder_that_is_removed_in_mid_run_is_told_in_one_sentence(
    project, monkeypatch, tmp_path, give_toolchain, variable, sentence
):
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "folder"))
    if variable == "GPUENERGY_CACHE":
        give_toolchain(tmp_path / "folder" / "emulated" / "host")
    project.module(f"VARIABLE = {variable!r}\n{REMOVES}")
    result = project.run("--powercap", "1", "--gpuenergy-order", "file")
    result.stdout.fnmatch_lines([sentence])
    assert result.parseoutcomes()["passed"] == 1
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert ".py:" not in result.stdout.str().partition("FAILURES")[2].partition("gpuenergy")[0]
    if variable:
        assert [m.measured for m in project.stored().measurements] == [True]


FEW_FILES = """
import resource
from parts import LAUNCH, SCALE, SOURCE

def test_scale(powercap, load_kernel, energy_benchmark):
    open_now = len(__import__("os").listdir("/proc/self/fd"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 2, hard))
    try:
        energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
"""


def test_too_few_open_files_are_told_in_one_sentence(project):
    project.module(FEW_FILES)
    result = project.run_apart("--powercap", "1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Too many open files*"])
    assert "Traceback" not in result.stdout.str()
    assert project.limit_w() == 700
