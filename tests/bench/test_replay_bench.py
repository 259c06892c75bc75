"""The bench of language models: which items there are, and a run of some."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bench_folder import bench_folder, ids as ids_of
from recorded_profile import BLOOM, copy_bloom

from pytest_gpuenergy.report import load_report

NAMED = "bench/test_replay.py"
EMULATED = ("--gpu-device", "emulated:h200", "--powercap", "5")


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the bench, and the profile ``bloom/``."""
    bench_folder(pytester, NAMED)
    copy_bloom(pytester.path / "bloom")
    return pytester


def ids(folder: pytest.Pytester, *arguments: str) -> list[str]:
    return ids_of(folder, *EMULATED, *arguments)


def test_each_call_and_each_whole_is_an_item(folder):
    calls = [
        json.loads(line)["id"] for line in (BLOOM / "operator_calls.jsonl").read_text().splitlines()
    ]
    wholes = [
        f"{step}-{how}" for step in ("prefill", "decode1") for how in ("graph", "eager", "layers")
    ]
    found = ids(folder, NAMED, "--model", "bloom")
    assert sorted(found) == sorted(f"bloom-560m-{one}-700W" for one in (*calls, *wholes))


def test_without_a_model_all_of_the_project_run(folder):
    (folder.path / "bench/profiles").mkdir()
    shutil.move(folder.path / "bloom", folder.path / "bench/profiles/bloom")
    assert len(ids(folder, NAMED)) == len(ids(folder, NAMED, "--model", "bloom")) == 76


def test_nobody_runs_them_who_does_not_name_them(folder):
    assert ids(folder, "bench") == []
    assert len(ids(folder, "bench", "--model", "bloom")) == 76


def test_each_is_a_workload_of_its_own_in_the_report(folder):
    words = "bloom-560m-prefill-graph or bloom-560m-decode1-graph or c229cf67f982a"
    result = folder.runpytest_inprocess(
        NAMED, "--model", "bloom", *EMULATED, "-k", words, "--gpuenergy-json", "report.json"
    )
    result.assert_outcomes(passed=3)
    found = {
        (one.workload.name, one.kernel.label): one
        for one in load_report(folder.path / "report.json").measurements
    }
    assert found.keys() == {
        ("bloom-560m-prefill", "graph"),
        ("bloom-560m-decode1", "graph"),
        ("bloom-560m-c229cf67f982a", "aten.softmax.int"),
    }
    whole = found["bloom-560m-prefill", "graph"]
    assert whole.energy_mj == pytest.approx(4896.0, rel=0.05)


def test_a_model_on_several_gpus_is_for_the_command(folder):
    for rank in (0, 1):
        copy_bloom(folder.path / f"bloom/rank{rank}")
    path = folder.path / "bloom/profile.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ranks": 2}))
    result = folder.runpytest_inprocess(NAMED, "--model", "bloom", *EMULATED)
    result.stderr.fnmatch_lines(["ERROR: *which an item cannot hold: replay it with gpuenergy *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_profile_that_cannot_be_replayed_is_told_once(folder):
    (folder.path / "bloom/results/measurements.jsonl").write_text("")
    result = folder.runpytest_inprocess(NAMED, *EMULATED, "--model", "bloom", "-k", "prefill")
    result.assert_outcomes(errors=1, skipped=2)
    result.stdout.fnmatch_lines(["An emulated GPU replays figures that a real one has recorded*"])


def test_what_cannot_be_replayed_is_skipped_with_the_reason(folder):
    path = folder.path / "bloom/results/measurements.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(one for one in lines if "step0-eager" not in one))
    words = ("-k", "prefill and eager", "-rs")
    result = folder.runpytest_inprocess(NAMED, "--model", "bloom", *EMULATED, *words)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no figures of it are recorded*"])


def test_a_resumed_run_measures_what_is_left(folder):
    def run(*options: str) -> pytest.RunResult:
        return folder.runpytest_inprocess(NAMED, "--model", "bloom", *EMULATED, *options)

    run("-k", "prefill and graph").assert_outcomes(passed=1)
    again = run("-k", "graph", "--gpuenergy-resume")
    again.assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize(
    ("bounds", "failed"),
    [
        ("prefill:0.004", 1),
        ("prefill:0.004,decode:0.5", 2),
        ("prefill:0.005, decode:1", 0),
    ],
)
def test_a_step_that_takes_too_many_joules_per_token_fails(folder, bounds, failed):
    result = folder.runpytest_inprocess(
        *(NAMED, "--model", "bloom", *EMULATED, "-k", "graph", "--joules-per-token", bounds)
    )
    result.assert_outcomes(passed=2 - failed, failed=failed)
    if failed:
        result.stdout.fnmatch_lines(
            ["*J per token (emulated), more than the * J of --joules-per-token."]
        )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "none"), "--model none: neither * nor * is a folder that gpuenergy profile"),
        ((), "bench/profiles has no profile: name a folder"),
        (("--model", " ,"), "--model is empty: name a folder"),
        (("--model", "bloom", "--decode-step", "x"), "--decode-step 'x' is not a number"),
        (("--model", "bloom", "--decode-step", "7"), "has no decode step 7: give 1 to 1"),
        (("--model", "bloom", "--joules-per-token", "prefill"), "'prefill' is not understood"),
        (("--model", "bloom", "--joules-per-token", "decode:-1"), "'decode:-1' is not understood"),
    ],
)
def test_bad_options_are_told_in_one_sentence(folder, options, sentence):
    result = folder.runpytest_inprocess(NAMED, *EMULATED, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{sentence}*"])


def test_a_damaged_profile_is_told_in_one_sentence(folder):
    Path(folder.path, "bloom/operator_calls.jsonl").write_text("garbage")
    result = folder.runpytest_inprocess(NAMED, *EMULATED, "--model", "bloom")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *Line 1 of * is not a call*profile again.*"])
