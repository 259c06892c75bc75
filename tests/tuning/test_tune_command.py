"""``gpuenergy tune`` on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.kernels.database import load_database
from pytest_gpuenergy.kernels.records import find_records, load_records
from pytest_gpuenergy.workloads import CASES

COMMAND = [sys.executable, "-m", "pytest_gpuenergy.cli", "tune", "--gpu-device", "emulated"]


def tune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, "--case", "case7", "--keep", "1", "--out", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_it_tunes_on_the_emulated_gpu_and_measures_later(tmp_path: Path) -> None:
    done = tune(tmp_path, "--trials", "3", "--no-energy", "--json")
    (outcome,) = json.loads(done.stdout)
    assert (outcome["workload"], outcome["tried"], outcome["kept"]) == ("case7", 3, 1)
    assert "case7: 3 of 3 trials" in done.stderr
    path = find_records(tmp_path, CASES["case7"])
    assert outcome["path"] == str(path)
    assert load_records(path).gpu.endswith("(emulated)")
    assert load_records(path).recorded(1) == ()

    header, row = tune(tmp_path, "--trials", "0").stdout.splitlines()
    assert header.split()[:4] == ["workload", "trials", "valid", "kept"]
    assert row.split()[:4] == ["case7", "3", "3", "1"]
    (figures,) = load_records(path).recorded(1)
    assert figures.energy_mj == pytest.approx(figures.time_ms * figures.power_w, rel=0.05)


def test_an_interrupt_keeps_what_was_tried(tmp_path: Path) -> None:
    arguments = ["--case", "case7", "--trials", "20", "--no-energy"]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if " trials, best " in line:  # a trial has ended
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 130, (lines, rest)
    assert "what was tried is kept in" in rest
    journal = (tmp_path / "case7" / "raw" / "trials.jsonl").read_text().splitlines()
    assert len(load_database(tmp_path / "case7" / "raw").records) == len(journal) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "case99"], "no workload 'case99'"),
        (["--case", ","], "names no workload"),
        (["--case", "case1", "--trials", "many"], "'many' is not a number from 0 to 100000"),
        (["--case", "case1", "--keep", "0"], "'0' is not a number from 1 to 25"),
        (["--case", "case1", "--keep", "26"], "'26' is not a number from 1 to 25"),
        (["--case", "case1", "--seed", "-1"], "--seed"),
        ([], "--case"),
    ],
)
def test_wrong_usage_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["tune", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--case", "case1", "--out", str(tmp_path), "--gpu-device", "nonsense"]
    assert main(["tune", *arguments]) == 2
    assert "--gpu-device 'nonsense' is not understood" in capsys.readouterr().err
