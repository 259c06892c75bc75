"""`gpuenergy gemm perf`: the bench of matrix products from anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuenergy.cli import main

EMULATED = ("--gpu-device", "emulated", "--powercap", "current")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_contenders_are_measured_and_written_by_size(elsewhere):
    (elsewhere / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    sizes = ["M=8", "N=12", "K=20", "layout=nt"]
    clock = ("--smclock", "1500MHz", "--allow", "clocks")
    assert main(["gemm", "perf", *sizes, *EMULATED, *clock, "--out", "out"]) == 0
    names = {path.name for path in (elsewhere / "out").iterdir()}
    assert names == {"M=8_N=12_K=20", "csv", "report.html", "report.json"}
    (measured,) = json.loads((elsewhere / "out" / "report.json").read_text())["measurements"]
    assert (measured["kernel"]["label"], measured["outcome"]) == ("template", "correct")
    assert measured["locked_sm_clock_max_mhz"] == 1500
    text = (elsewhere / "out" / "M=8_N=12_K=20" / "best_perf.txt").read_text()
    assert text.splitlines()[-1].split()[:4] == ["gemm_8x12x20_nt", "1500MHz", "1", "template"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["MNK"], "which is not understood: give sizes such as"),
        (["MNK=8", "--contender", "template,mkl"], "no contender 'mkl': choose from template, tvm"),
        (["MNK=8", "--contender", "cutlass_profiler"], "needs --cutlass-profiler PATH"),
        (["MNK=8", "--records", "none"], "--records none: there is no such folder"),
    ],
)
def test_bad_input_is_told_before_pytest_starts(arguments, told, capfd):
    assert main(["gemm", "perf", *arguments, *EMULATED]) == 2
    captured = capfd.readouterr()
    assert told in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_where_no_contender_is_here_the_command_fails(capfd):
    arguments = ["MNK=8 layout=nn", "--contender", "tvm", *EMULATED]
    assert main(["gemm", "perf", *arguments]) == 2
    captured = capfd.readouterr()
    assert "no records for gemm_8x8x8_nn" in captured.out
    assert "Nothing was measured, for the reasons above." in captured.err
