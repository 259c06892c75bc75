"""`gpuenergy gemm perf`: the bench of matrix products from anywhere."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from recorded_profile import BLOOM, copy_bloom

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.commands import gemm
from pytest_gpuenergy.support import run_child

EMULATED = ("--gpu-device", "emulated", "--powercap", "current")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the command in a folder of its own, whose pytest is a fork."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(warm_python))
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
        ([], "Name matrix products by their sizes, or --model RUN."),
        (["MNK=8", "--mode", "fp16"], "--mode 'fp16' is not known"),
        (["MNK=8 mode=tf32", "--mode", "float16"], "has the mode tf32, and --mode names float16"),
        (["--model", "none", "--mode", "tf32"], "--mode is for SIZES"),
        (["MNK=8", "--json"], "--json is for --model RUN"),
        (["MNK=8", "--step", "1"], "--step is for --model RUN"),
        (["MNK=8", "--model", "none"], "SIZES and --model name different products"),
        (["--model", "none"], "none"),
        (["--model", str(BLOOM), "--step", "9"], "has no decode step 9: give 1 to 1"),
        (["--model", str(BLOOM / "profile.json")], "is not a trace of PyTorch's profiler"),
    ],
)
def test_bad_input_is_told_before_pytest_starts(arguments, told, capfd):
    assert main(["gemm", "perf", *arguments, *EMULATED]) == 2
    captured = capfd.readouterr()
    assert told in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_a_run_that_another_command_begins_meanwhile_is_left_alone(elsewhere, monkeypatch):
    def run_and_see_another_begin(*arguments, **options):
        ended = run_child(*arguments, **options)
        (own,) = (elsewhere / ".gpuenergy/runs").iterdir()
        other = shutil.copytree(own, own.with_name("20990101T000000-aaaaaa"))
        (other / "measurements.jsonl").write_text("")
        (elsewhere / ".gpuenergy/latest").write_text(f"{other.name}\n")
        return ended

    monkeypatch.setattr(gemm, "run_child", run_and_see_another_begin)
    arguments = ["MNK=8 layout=nn", "--contender", "template", *EMULATED, "--out", "out"]
    assert main(["gemm", "perf", *arguments]) == 0
    assert (elsewhere / "out/M=8_N=8_K=8/best_perf.txt").exists()


@pytest.mark.slow
def test_where_no_contender_is_here_the_command_fails(capfd):
    arguments = ["MNK=8 layout=nn", "--contender", "tvm", *EMULATED]
    assert main(["gemm", "perf", *arguments]) == 2
    captured = capfd.readouterr()
    assert "no records for gemm_8x8x8_nn" in captured.out
    assert "Nothing was measured, for the reasons above." in captured.err


def small_bloom(run: Path) -> Path:
    """The profile of BLOOM with two of its linear layers, whose matrices are small."""
    copy_bloom(run)
    path = run / "operator_calls.jsonl"
    calls = list(map(json.loads, path.read_text().splitlines()))
    kept = [call for call in calls if call["operator"] == "aten.bmm.default"]
    for call in kept:  # all products of a batch share B, so that they are left out
        call["arguments"][1]["strides"][0] = 0
    for m, phase in ((6, "prefill"), (1, "decode")):
        (call, *_) = (
            call
            for call in calls
            if call["operator"] == "aten.linear.default"
            and call["phase"] == phase
            and call["calls"] == 24
        )
        matrices = (
            (("shape", [1, m, 16]), ("strides", [m * 24, 24, 1])),
            (
                ("shape", [12, 16]),
                ("strides", [16, 1]),
            ),
        )
        for argument, changes in zip(call["arguments"], matrices, strict=False):
            argument |= dict(changes)
        kept.append(call)
    path.write_text("".join(f"{json.dumps(call)}\n" for call in kept))
    return run


def test_small_products_need_a_hot_cache(elsewhere, capfd):
    run = small_bloom(elsewhere / "bloom")
    assert main(["gemm", "perf", "--model", str(run), *EMULATED]) == 2
    assert "too small to be kept out of the L2 cache, which takes --cache hot" in (
        capfd.readouterr().err
    )


@pytest.mark.slow
def test_the_products_of_a_model_are_measured_weighted_by_calls(elsewhere, capfd):
    run = small_bloom(elsewhere / "bloom")
    arguments = ["--model", str(run), "--contender", "template", "--cache", "hot", "--json"]
    assert main(["gemm", "perf", *arguments, *EMULATED, "--out", "out"]) == 0
    captured = capfd.readouterr()
    found = json.loads(captured.out)
    assert found == json.loads((elsewhere / "out" / "product_savings.json").read_text())
    assert "2 passed" in captured.err
    assert (found["model"], found["emulated"]) == ("bloom-560m", True)
    (cap,) = found["caps"]
    assert cap["cache"] == "hot"
    products = {one["product"]: one for one in cap["products"]}
    prefill, decode = "gemm_6x12x16_tn_float16_lda24", "gemm_1x12x16_tn_float16"
    assert {name: one["calls"] for name, one in products.items()} == {
        prefill: {"prefill": 24},
        decode: {"decode step 1": 24},
    }
    for step, name in zip(cap["steps"], (prefill, decode), strict=True):
        alone = products[name]["contenders"]["template"]["energy_mj"]["value"]
        assert step["fastest"]["energy_mj"]["value"] == pytest.approx(24 * alone)
        assert (step["calls"], step["measured_calls"]) == (48, 24)
        assert step["now"] is step["saved_by_fastest"] is None  # there is no cuBLAS
    assert found["left_out"][0]["calls"] == {"prefill": 24, "decode step 1": 24}
