"""`--schedule` of `gpuenergy profile` and `gpuenergy replay`, as a user calls them."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_outcomes import Outcome, ended
from recorded_profile import PREFILL, copy_bloom
from replay_on_host import host_stands_in
from torch_programs import model_folder, profile

ONE = "step,batch,tokens,count\nprefill,1,1024,2\ndecode,1,1024,60\n"
TWO = "step,batch,tokens,count\nprefill,1,1024,2\ndecode,1,1024,60\ndecode,2,1024,30\n"


def two_sizes(folder: Path) -> Path:
    """Profiles of two sizes. No card has measured the second: it is the first with other figures.

    Its batch is said to be 2, and its whole steps to take twice the time.
    """
    copy_bloom(folder / "b1-t1024")
    second = copy_bloom(folder / "b2-t1024")
    record = json.loads((second / "profile.json").read_text())
    (second / "profile.json").write_text(json.dumps({**record, "batch": 2}))
    path = second / "results/measurements.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["workload"]["parameters"]["replays"].startswith("step"):
            time_ms, energy_mj = 2 * line["time_ms"], 2 * line["time_ms"] * line["power_w"]
            line |= {"time_ms": time_ms, "trials": [], "edp_mj_ms": time_ms * energy_mj}
            line |= dict.fromkeys(("energy_mj", "raw_energy_mj"), energy_mj)
            line |= dict.fromkeys(("time_ms_ci95", "energy_mj_ci95", "edp_mj_ms_ci95"))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refused(run: Path, schedule: Path, *options: str) -> str:
    words = (run, "--schedule", schedule, "--gpu-device", "emulated:h200", *options)
    return ended(2, "replay", *words).err


@dataclass(frozen=True)
class Replayed:
    """What the replay of two sizes under two limits has printed and written."""

    outcome: Outcome
    written: str

    def serving(self, cap: str, level: str) -> Any:
        sums = self.outcome.document["serving"]
        return next(one for one in sums if (one["cap"], one["level"]) == (cap, level))


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    folder = two_sizes(tmp_path_factory.mktemp("two") / "sizes")
    schedule = written(folder.parent / "steps.csv", TWO)
    words = (folder, "--schedule", schedule, "--gpu-device", "emulated:h200")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUENERGY_STATE", str(tmp_path_factory.mktemp("state")))
        outcome = ended(0, "replay", *words, "--powercap", "300W,700W", "--json")
    path = folder / "results-emulated/serving_report.json"
    return Replayed(outcome, path.read_text())


@pytest.mark.slow
class TestTwoSizes:
    """Replayed once, on the emulated GPU."""

    def test_the_report_is_printed_as_it_is_written(self, replayed):
        assert replayed.outcome.document == json.loads(replayed.written)

    def test_it_says_that_the_gpu_is_emulated(self, replayed):
        assert replayed.outcome.document["run"]["emulated"]

    @pytest.mark.parametrize("cap", ["300W", "700W"])
    @pytest.mark.parametrize("level", ["graph", "eager"])
    def test_the_sum_is_that_of_the_measured_steps(self, replayed, cap, level):
        steps = [
            one
            for one in replayed.outcome.document["steps"]
            if (one["cap"], one["level"]) == (cap, level)
        ]
        counts = {"prefill 1": 2, "decode 1": 60, "decode 2": 30}
        energy_j = sum(
            counts[f"{one['step']['phase']} {one['step']['batch']}"] * one["energy_mj"] / 1e3
            for one in steps
        )
        total = replayed.serving(cap, level)["total"]
        assert total["energy_j"] == pytest.approx(energy_j)
        assert total["joules_per_token"] == pytest.approx(energy_j / (2 + 60 + 2 * 30))

    def test_other_limits_are_compared_with_the_highest(self, replayed):
        references = {one["reference"] for one in replayed.outcome.document["best"]}
        assert references == {"700W"}

    def test_a_call_of_both_sizes_is_measured_once_and_a_step_for_each(self, replayed):
        lines = replayed.outcome.err.splitlines()
        keys = Counter(line.partition("@")[0] for line in lines if "@300W: " in line)
        assert {key for key, times in keys.items() if times > 1} == {
            "step1-graph",
            "step1-eager",
            "step1-layers",
        }


@pytest.mark.slow
@pytest.mark.slow
def test_a_replay_that_ends_early_leaves_the_sizes_that_it_has_measured(tmp_path):
    run = two_sizes(tmp_path / "sizes")
    (run / "b2-t1024/operator_calls.jsonl").write_text("broken\n")
    outcome = ended(
        2,
        *("replay", run, "--schedule", written(tmp_path / "steps.csv", TWO)),
        *("--gpu-device", "emulated:h200", "--kernels", PREFILL),
    )
    assert "sizes to replay: decode 1 x 1024, decode 2 x 1024, prefill 1 x 1024" in outcome.err
    report = json.loads((run / "results-emulated/serving_report.json").read_text())
    assert {one["step"]["batch"] for one in report["steps"]} == {1}
    assert report["missing"]["graph, current"] == "no sum, for want of decode 2 x 1024"


def test_the_time_of_a_step_is_shown_beside_that_for_arrivals(tmp_path):
    trace = written(tmp_path / "trace.csv", "arrival_s,prompt_tokens,new_tokens\n0,1000,9\n")
    options = ("--bucket-tokens", "1024", "--step-ms", "7.5", "--gpu-device", "emulated:h200")
    options += ("--kernels", PREFILL)
    words = (copy_bloom(tmp_path / "bloom"), "--schedule", trace, *options)
    assert "ms on average, and took 7.5 ms for the arrival" in ended(0, "replay", *words).out


def test_a_size_without_profile_is_refused_with_the_command_for_it(tmp_path):
    schedule = written(tmp_path / "steps.csv", ONE + "decode,4,1024,9\ndecode,1,1025,9\n")
    error = refused(copy_bloom(tmp_path / "bloom"), schedule)
    assert "has no profile for decode 1 x 1025 and 1 other step of" in error
    assert f"gpuenergy profile bloom-560m --schedule {schedule}" in error


def test_the_command_for_missing_sizes_batches_as_the_replay(tmp_path):
    trace = written(tmp_path / "trace.csv", "prompt_tokens,new_tokens\n9,2\n")
    options = ("--max-batch", "3", "--step-ms", "20")
    error = refused(copy_bloom(tmp_path / "bloom"), trace, *options)
    assert f"--schedule {trace} --max-batch 3 --step-ms 20.0" in error


def test_the_command_for_missing_sizes_profiles_the_same_program(tmp_path):
    schedule = written(tmp_path / "my steps.csv", ONE + "decode,4,1024,9\n")
    error = refused(copy_bloom(tmp_path / "bloom"), schedule)
    command = error.partition("write them with ")[2].rstrip(".\n")
    words = shlex.split(command)
    assert words[words.index("--schedule") + 1] == str(schedule)
    assert words[words.index("--dtype") + 1] == "float16"
    assert words[words.index("--attention") + 1] == "eager"


def test_steps_are_not_batched(tmp_path):
    schedule = written(tmp_path / "steps.csv", ONE)
    error = refused(copy_bloom(tmp_path / "bloom"), schedule, "--max-batch", "3")
    assert "lists steps, which run as they are, and --max-batch 3 is for requests" in error


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    error = refused(tmp_path / "nowhere", written(tmp_path / "steps.csv", ONE))
    assert "has no profile.json" in error


def test_profiles_of_different_programs_are_refused(tmp_path):
    sizes = two_sizes(tmp_path / "sizes")
    path = sizes / "b2-t1024/profile.json"
    path.write_text(path.read_text().replace("eager", "sdpa"))
    error = refused(sizes, written(tmp_path / "steps.csv", TWO))
    assert "with random weights in float16 and sdpa attention" in error


def test_the_profile_of_several_gpus_is_refused(tmp_path):
    run = copy_bloom(tmp_path / "bloom")
    record = json.loads((run / "profile.json").read_text())
    (run / "profile.json").write_text(json.dumps({**record, "ranks": 2}))
    assert "schedules are replayed on one" in refused(run, written(tmp_path / "s.csv", ONE))


def test_a_bad_schedule_is_refused_before_a_gpu_is_claimed(tmp_path):
    schedule = written(tmp_path / "steps.csv", ONE + "decode,none,1024,1\n")
    words = (copy_bloom(tmp_path / "bloom"), "--schedule", schedule, "--gpu-device", "none")
    assert "Line 4 of" in ended(2, "replay", *words).err


@pytest.mark.parametrize(
    ("options", "why"),
    [(("--html", "page.html"), "--html is a page"), (("--max-batch", "0"), "--max-batch")],
)
def test_options_that_do_not_go_with_a_schedule_are_refused(tmp_path, options, why):
    run, schedule = copy_bloom(tmp_path / "bloom"), written(tmp_path / "steps.csv", ONE)
    assert why in ended(2, "replay", run, "--schedule", schedule, *options).err


@pytest.mark.parametrize("option", ["--max-batch", "--bucket-tokens", "--step-ms"])
@pytest.mark.parametrize("command", ["profile", "replay"])
def test_options_of_batching_need_a_schedule(tmp_path, command, option):
    words = ("--out", tmp_path / "out") if command == "profile" else ()
    error = ended(2, command, tmp_path, *words, option, "4").err
    assert f"{option} is for the requests of --schedule FILE" in error


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        ("bloom-560m", ("--batch", "2", "--tp", "2"), "leave out --batch and --tp"),
        ("some:function", (), "some:function is a function"),
    ],
)
def test_what_has_no_sizes_is_not_profiled_by_a_schedule(tmp_path, model, options, why):
    schedule = written(tmp_path / "steps.csv", ONE)
    words = (model, "--schedule", schedule, "--out", tmp_path / "out", *options)
    assert why in ended(2, "profile", *words).err


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
class TestWithPyTorch:
    """A tiny model on the host."""

    OPTIONS = ("--max-batch", "2", "--bucket-tokens", "4")

    @pytest.fixture
    def trace(self, tmp_path):
        """A trace, and the profiles of its sizes."""
        trace = written(tmp_path / "trace.csv", "prompt_tokens,new_tokens\n5,4\n9,3\n4,6\n")
        model = model_folder(tmp_path / "model", "bloom")
        options = ("--schedule", str(trace), *self.OPTIONS, "--dtype", "float32")
        assert profile(model, tmp_path / "sizes", *options) == 0
        return trace

    @pytest.mark.usefixtures("trace")
    def test_each_size_of_a_trace_is_profiled_once(self, tmp_path):
        paths = (tmp_path / "sizes").glob("*/profile.json")
        records = [json.loads(path.read_text()) for path in paths]
        found = {(one["batch"], one["prompt_tokens"]): one["new_tokens"] for one in records}
        assert found == {(1, 4): 2, (1, 8): 2, (2, 4): 2, (2, 8): 2}

    def test_only_steps_of_the_trace_are_measured_and_each_call_once(
        self, tmp_path, trace, monkeypatch
    ):
        measured = host_stands_in(monkeypatch)
        words = (tmp_path / "sizes", "--schedule", trace, *self.OPTIONS, "--json")
        words = (*words, "--gpu-device", "emulated:h200")
        report = ended(0, "replay", *words).document
        sizes = {(one["step"]["phase"], one["step"]["batch"]) for one in report["steps"]}
        assert sizes == {("prefill", 1), ("decode", 1), ("decode", 2)}
        keys = Counter(measured)
        repeated = {key.partition("-")[0] for key, times in keys.items() if times > 1}
        assert repeated == {"step0", "step1"}  # wholes and windows, of each size
