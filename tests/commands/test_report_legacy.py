"""`gpuenergy report` on the text outputs of an older tool."""

from __future__ import annotations

import csv
import os
import random
import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from closed_folders import close
from command_outcomes import Outcome, outcome_of
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.report import RunFolder, load_report

TEXT = """=== GPU Configuration ===
  Power Cap: 300.00 W
=========================

[Per-Iteration Performance] (single kernel execution)
  Mean time per iteration: 0.500000000 ms (0.000500000000 s)
  GFLOP/s: 2000.250

[Large Round Statistics] (100000 executions per lround)
  Mean energy per lround: 10000000.0 mJ (10000.0 J)
[Per-Iteration Energy] (single kernel execution)
  Mean energy per iteration: 100.000000000 mJ (0.100000000000 J)
"""
FIGURES = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
each_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def report(*words: object) -> Outcome:
    return outcome_of("report", *words)


def first(outcome: Outcome) -> Any:
    """The first measurement of a JSON report."""
    return outcome.document["measurements"][0]


def only(outcome: Outcome) -> Any:
    """The only measurement of a JSON report."""
    (measurement,) = outcome.document["measurements"]
    return measurement


def write(
    folder: Path, text: str = TEXT, *, case: int = 1, cap: object = 3, kernel: int = 1
) -> Path:
    """One output below ``folder``, which is returned."""
    path = folder / f"case{case}" / f"powercap{cap}" / f"output_kernel{kernel}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def report_beside(folder: Path, text: str) -> Outcome:
    """A report of an output of kernel 1, and of another output that is usable."""
    write(folder, kernel=2)
    return report(write(folder, text), "--json", "-")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two workloads, two power caps, two kernels."""
    folder = tmp_path / "kernel_outputs"
    for case in (10, 2):
        for cap in (3, 1):
            for kernel in (11, 9):
                write(folder, case=case, cap=cap, kernel=kernel)
    return folder


def test_an_output_becomes_a_measurement(tmp_path):
    found = only(report(write(tmp_path), "--json", "-"))
    assert found["node_id"] == "case1/powercap3/output_kernel1.txt"
    assert (found["workload"]["name"], found["kernel"]["label"]) == ("case1", "k01")
    assert (found["kernel"]["rank"], found["cap"], found["cap_index"]) == (1, "powercap3", 3)
    assert {name: found[name] for name in FIGURES} == pytest.approx(
        {
            "time_ms": 0.5,
            "energy_mj": 100.0,
            "edp_mj_ms": 50.0,
            "power_w": 200.0,
            "gflops": 2000.25,
            "gflops_per_w": 10.00125,
        }
    )


def test_nothing_is_claimed_that_is_not_known(tmp_path):
    outcome = report(write(tmp_path), "--json", "-")
    run, found = outcome.document["run"], only(outcome)
    assert (run["gpu_name"], run["legacy"], run["emulated"]) == ("unknown GPU", True, False)
    assert found["validity"] == ["legacy"]
    assert found["cache"] == "unknown"
    unknown = ("correctness", "power_limit_w", "enforced_power_limit_w", "cap_binding", "begin")
    intervals = ("time_ms_ci95", "energy_mj_ci95", "edp_mj_ms_ci95")
    assert {found[name] for name in (*unknown, *intervals)} == {None}
    assert found["trials"] == []


def test_the_user_names_the_gpu(tree):
    outcome = report(tree, "--gpu", "NVIDIA A100", "--md", "-")
    assert outcome.out.startswith("# NVIDIA A100, run legacy-kernel_outputs\n")
    assert outcome.out.count("| legacy |") == 8


def test_the_summary_flags_every_row(tree):
    lines = report(tree).out.splitlines()
    assert lines[:2] == ["unknown GPU, run legacy-kernel_outputs", "case2 at powercap1"]
    assert sum(line.endswith("  legacy") for line in lines) == 8


def test_names_are_sorted_by_their_numbers(tree):
    found = report(tree, "--json", "-").document["measurements"]
    places = [(m["workload"]["name"], m["cap_index"], m["kernel"]["rank"]) for m in found]
    assert places == [
        (case, cap, k) for case in ("case2", "case10") for cap in (1, 3) for k in (9, 11)
    ]


@pytest.mark.parametrize("named", [".", "kernel_outputs", "kernel_outputs/case2"])
def test_the_folder_above_and_below_can_be_named_too(tree, named):
    found = report(tree.parent / named, "--json", "-").document["measurements"]
    assert found[0]["node_id"] == "case2/powercap1/output_kernel9.txt"


def test_the_folder_of_one_power_cap_is_told_apart_from_a_run(tree):
    outcome = report(tree / "case2/powercap1")
    assert (outcome.code, outcome.out) == (2, "")
    assert "contains no power cap folders with text outputs" in outcome.err


def test_the_classic_tables_have_the_figures(tmp_path):
    tree = tmp_path / "old"
    for cap in range(1, 6):
        write(tree, TEXT.replace("100.0000", f"10{cap}.0000"), cap=cap)
    assert report(tree, "--csv", tmp_path / "csv").code == 0
    assert (tmp_path / "csv/case1/powercap3/results.csv").read_text() == (
        "id,perf(GFLOP/s),energy(mJ),EDP(ms*mJ)\n1,2000.25,103.0,51.5\n"
    )
    header, row = csv.reader((tmp_path / "csv/case1/all.csv").read_text().splitlines())
    assert len(header) == 16
    assert row[2::3] == ["101.0", "102.0", "103.0", "104.0", "105.0"]


@pytest.mark.parametrize(("cap", "folder"), [("_350W", "powercap_350W"), ("07", "powercap7")])
def test_other_power_caps_keep_their_names(tmp_path, cap, folder):
    report(write(tmp_path / "old", cap=cap), "--csv", tmp_path / "csv")
    assert (tmp_path / "csv/case1" / folder / "results.csv").is_file()


def test_the_json_report_is_read_again(tree, tmp_path):
    path = tmp_path / "old.json"
    assert report(tree, "--json", path).code == 0
    assert load_report(path).run.legacy
    assert report(path, "--json", "-").document == report(tree, "--json", "-").document


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("  Mean energy per iteration: 100.000000000 mJ (0.100000000000 J)\n", "", "energy"),
        ("  GFLOP/s: 2000.250\n", "", "GFLOP/s"),
        ("  Mean time per iteration: 0.500000000 ms", "", "time"),
        ("100.000000000 mJ", "0.000000000 mJ", "energy"),
        ("100.000000000 mJ", "-nan mJ", "energy"),
        ("100.000000000 mJ", "100.000000000 J", "energy"),
        ("2000.250", "inf", "GFLOP/s"),
        ("2000.250", "2,000.250", "GFLOP/s"),
        ("2000.250", "9" * 100_000, "GFLOP/s"),
        ("  GFLOP/s:", "  Peak GFLOP/s:", "GFLOP/s"),
        (TEXT, "", "GFLOP/s, energy and time"),
    ],
)
def test_a_missing_figure_gives_no_energy(tmp_path, old, new, missing):
    outcome = report_beside(tmp_path, TEXT.replace(old, new))
    found = first(outcome)
    assert {found[name] for name in FIGURES} == {None}
    assert found["outcome"] == "runtime"
    said = f"The output case1/powercap3/output_kernel1.txt cannot be used: it has no {missing}."
    assert found["error"] == said
    assert outcome.err == f"1 of 2 outputs have no figures: {said}\n"


@pytest.mark.parametrize("words", [[], ["--json", "-"], ["--csv", "csv"], ["--html", "a.html"]])
def test_outputs_of_which_none_can_be_used_are_refused(tmp_path, words):
    write(tmp_path / "old", "killed", kernel=2)
    outcome = report(write(tmp_path / "old", "killed"), *words)
    assert (outcome.code, outcome.out) == (2, "")
    said = "None of the 2 outputs can be used: The output case1/powercap3/output_kernel1.txt cannot"
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_figures_may_share_a_line(tmp_path, order):
    parts = (
        "GFLOP/s: 2000.25",
        "Mean energy per iteration: 100 mJ",
        "Mean time per iteration: 0.5 ms",
    )
    found = only(report(write(tmp_path, " ".join(parts[i] for i in order)), "--json", "-"))
    assert (found["gflops"], found["energy_mj"], found["time_ms"]) == (2000.25, 100.0, 0.5)


def test_a_failed_output_has_no_row_in_the_classic_tables(tmp_path):
    write(tmp_path / "old", kernel=1)
    write(tmp_path / "old", "killed", kernel=2)
    report(tmp_path / "old", "--csv", tmp_path / "csv")
    assert len((tmp_path / "csv/case1/powercap3/results.csv").read_text().splitlines()) == 2


def test_two_runs_in_one_output_are_not_mixed(tmp_path):
    found = first(report_beside(tmp_path, TEXT + TEXT.replace("0.500", "0.600")))
    assert "it has different values for time" in found["error"]
    assert first(report_beside(tmp_path, TEXT + TEXT))["error"] is None


def test_figures_that_multiply_to_nothing_are_refused(tmp_path):
    text = (
        "GFLOP/s: 1e-200\nMean energy per iteration: 1e-200 mJ\nMean time per iteration: 1e-200 ms"
    )
    assert "out of range" in first(report_beside(tmp_path, text))["error"]


def test_an_output_that_is_huge_or_no_file_harms_no_other(tmp_path):
    write(tmp_path, kernel=1)
    write(tmp_path, " " * (1 << 20) + TEXT, kernel=2)
    (tmp_path / "case1/powercap3/output_kernel3.txt").mkdir()
    os.mkfifo(tmp_path / "case1/powercap3/output_kernel4.txt")
    found = report(tmp_path, "--json", "-").document["measurements"]
    errors = [m["error"] for m in found]
    assert errors[0] is None
    assert "larger than 1 MiB" in errors[1]
    assert all("is not a file" in error for error in errors[2:])


def test_names_that_are_no_text_can_be_written(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write(folder)
    target = tmp_path / "old.md"
    (folder / "case1").rename(folder / os.fsdecode(b"case\xff"))
    assert report(folder, "--md", target).code == 0
    assert "case\N{REPLACEMENT CHARACTER}, powercap3" in target.read_text(encoding="utf-8")


def test_old_and_measured_runs_do_not_mix(tmp_path, tree):
    run = a_run(gpu_name="NVIDIA A100", emulated=False)
    measured = RunFolder.create(tmp_path, run).path
    outcome = report(tree, measured, "--gpu", "NVIDIA A100")
    assert outcome.code == 2
    assert "cannot be merged: legacy is" in outcome.err
    other = RunFolder.create(tmp_path, replace(run, run_id="b")).path
    assert "has no measurements" in report(other, measured).err  # but they can be merged


def test_trees_are_merged_when_the_gpu_is_named(tree):
    both = [tree / "case2", tree / "case10"]
    outcome = report(*both)
    assert outcome.code == 2
    assert "GPUs are unknown: name the GPU with --gpu" in outcome.err
    named = report(*both, "--gpu", "NVIDIA A100", "--json", "-")
    assert len(named.document["measurements"]) == 8


def test_a_gpu_named_for_a_measured_run_is_refused(tmp_path):
    run = a_run(gpu_name="NVIDIA A100", emulated=False)
    outcome = report(RunFolder.create(tmp_path, run).path, "--gpu", "NVIDIA H200")
    assert outcome.code == 2
    assert "omit --gpu" in outcome.err


def test_a_folder_without_outputs_is_no_run(tmp_path):
    outcome = report(tmp_path)
    assert outcome.code == 2
    assert "is not a run, because it has no run.json: name a folder in" in outcome.err


@pytest.mark.parametrize("call", ["iterdir", "open"])
def test_what_vanishes_meanwhile_is_left_out(tree, monkeypatch, call):
    """Folders while outputs are looked for, or outputs before they are read."""
    inner = getattr(Path, call)

    def vanishing(path: Path, *arguments: Any, **named: Any) -> Any:
        if "powercap3" in path.parts:
            shutil.rmtree(tree / "case2" / "powercap3", ignore_errors=True)
        return inner(path, *arguments, **named)

    monkeypatch.setattr(Path, call, vanishing)
    outcome = report(tree, "--json", "-")
    assert (outcome.code, outcome.err) == (0, "")
    assert {(m["workload"]["name"], m["cap"]) for m in outcome.document["measurements"]} == {
        ("case2", "powercap1"),
        ("case10", "powercap1"),
        ("case10", "powercap3"),
    }


def test_a_folder_of_another_user_among_outputs_is_skipped(tree, monkeypatch):
    close(tree / "case2", monkeypatch)
    found = report(tree, "--json", "-").document["measurements"]
    assert {m["workload"]["name"] for m in found} == {"case10"}


def test_only_outputs_are_looked_for_in_a_folder(tmp_path, monkeypatch):
    """Not all that is below it, which takes long in ``/``."""
    looked: list[str] = []
    inner = Path.iterdir

    def noted(path: Path) -> Any:
        looked.append(path.name)
        return inner(path)

    (tmp_path / "home" / "user" / "texts").mkdir(parents=True)
    monkeypatch.setattr(Path, "iterdir", noted)
    assert report(tmp_path).code == 2
    assert "home" in looked
    assert "user" not in looked


figures = st.floats(min_value=1e-6, max_value=1e9)
powers = st.floats(min_value=1.0, max_value=9.9e3)
noise = st.lists(
    st.sampled_from(["", "=====", "Total time: 12.0 ms (0.012 s)", "Mean energy per lround: 7 mJ"])
    | st.text(st.characters(blacklist_characters="GM", codec="utf-8"), max_size=30),
    max_size=3,
)


@pytest.mark.slow
@each_example
@given(gflops=figures, power_w=powers, time_ms=figures, around=noise, data=st.data())
def test_figures_are_found_in_any_order_and_company(
    tmp_path, gflops, power_w, time_ms, around, data
):
    energy_mj = power_w * time_ms
    lines = [
        f"  GFLOP/s: {gflops!r}",
        f"  Mean energy per iteration: {energy_mj!r} mJ (x J)",
        f"Mean time per iteration: {time_ms!r} ms",
        *around,
    ]
    text = "\n".join(data.draw(st.permutations(lines)))
    found = only(report(write(tmp_path, text), "--json", "-"))
    assert [found[name] for name in ("gflops", "energy_mj", "time_ms")] == [
        gflops,
        energy_mj,
        time_ms,
    ]


@each_example
@given(st.data())
def test_a_truncated_output_has_all_figures_or_none(tmp_path, data):
    end = data.draw(st.integers(0, len(TEXT)))
    found = first(report_beside(tmp_path, TEXT[:end]))
    if TEXT.index(" mJ (0.1") + len(" mJ") <= end:
        assert found["energy_mj"] == 100.0
    else:
        assert {found[name] for name in FIGURES} == {None}


@each_example
@given(content=st.binary(max_size=200), seed=st.integers())
def test_garbage_has_no_figures(tmp_path, content, seed):
    pieces = [content, b"GFLOP/s: ", b"12.5 ", b"Mean energy per iteration:", b" 1 mJ"]
    random.Random(seed).shuffle(pieces)
    write(write(tmp_path), kernel=2)
    (tmp_path / "case1/powercap3/output_kernel1.txt").write_bytes(b"".join(pieces))
    assume(b"Mean time" not in content)
    found = first(report(tmp_path, "--json", "-"))
    assert {found[name] for name in FIGURES} == {None}
    assert found["error"].count("\n") == 0
