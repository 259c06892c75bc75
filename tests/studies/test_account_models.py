"""The study that profiles and replays several models, with commands that stand in for ours."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import account_models
import pytest

RUNS = """
import sys, pathlib, time
sys.stdin.readline()
run = pathlib.Path("models/{name}.run")
run.mkdir(parents=True)
(run / "profile.json").write_text("{name}")
time.sleep({seconds})
sys.exit({status})
"""


def study(folder: Path, patch: pytest.MonkeyPatch, *options: str) -> int:
    """The exit status of the study in a folder."""
    patch.chdir(folder)
    patch.setattr(sys, "argv", ["account_models.py", "models", *options, "--keep", "keep"])
    return account_models.main()


def one_model(
    folder: Path, patch: pytest.MonkeyPatch, *options: str, fails: str = "none"
) -> tuple[int, list[list[str]]]:
    """The exit status of the process of a model, and the commands that it has run."""
    commands: list[list[str]] = []

    def gpuenergy(words: list[str]) -> int:
        commands.append(words)
        sys.stdout.write(f"said by {words[0]}\n")
        if fails in words:
            raise ValueError(f"{fails} is wrong")
        if words[0] == "profile":
            run = Path(words[words.index("--out") + 1])
            run.mkdir(parents=True)
        elif words[0] == "replay":
            results = Path(words[1]) / "results"
            results.mkdir(exist_ok=True)
            reasons = {"c2": "no memory", "c3": "no memory"}
            report = json.dumps({"missing": reasons})
            (results / "gpu_energy_report.json").write_text(report)
        return 0

    (folder / "keep").mkdir()
    patch.setattr(account_models, "gpuenergy", gpuenergy)
    patch.setattr(account_models, "_SLOW_IMPORTS", ())
    patch.setattr(sys, "stdin", io.StringIO("\n"))
    return study(folder, patch, *options, "--only"), commands


def test_a_model_is_profiled_and_replayed_and_then_changed(tmp_path, monkeypatch):
    status, commands = one_model(tmp_path, monkeypatch, "qwen2-0.5b", "--changes")
    assert status == 0
    assert [words[0] for words in commands] == ["profile", "replay", "replay"]
    assert {"--resume", "--changes", "--brief"} < set(commands[2])
    config = json.loads((tmp_path / "models/qwen2-0.5b/config.json").read_text())
    assert (config["model_type"], config["vocab_size"]) == ("qwen2", 151936)


def test_the_steps_of_a_schedule_have_their_own_sizes(tmp_path, monkeypatch):
    _, (profile, replay) = one_model(tmp_path, monkeypatch, "opt-350m", "--schedule", "steps.csv")
    for command in (profile, replay):
        assert command[command.index("--schedule") + 1] == "steps.csv"
    assert "--batch" not in profile


def test_a_model_may_have_fewer_layers_and_a_decode_step_alone(tmp_path, monkeypatch):
    name = "zamba2-2.7b@decode:8x512x2x14"
    _, (profile, _) = one_model(tmp_path, monkeypatch, name)
    folder = tmp_path / "models/zamba2-2.7b-decode-8x512x2x14"
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], len(config["layers_block_type"])) == (14, 14)
    schedule = Path(profile[profile.index("--schedule") + 1])
    assert schedule.read_text().splitlines()[1] == "decode,8,512,1"
    assert "--batch" not in profile


def test_a_model_that_the_command_knows_has_no_configuration_of_its_own(tmp_path, monkeypatch):
    _, (profile, _) = one_model(tmp_path, monkeypatch, "bloom-560m@2x64x1")
    assert profile[:2] == ["profile", "bloom-560m"]
    assert profile[profile.index("--prompt-tokens") + 1] == "64"
    assert not (tmp_path / "models/bloom-560m-2x64x1/config.json").exists()


def test_a_function_has_no_prompt(tmp_path, monkeypatch):
    _, commands = one_model(tmp_path, monkeypatch, "vit-base", "--full")
    assert commands[0][:3] == ["profile", "account_encoders:vit_base.compute", "--out"]
    assert "--brief" not in commands[1]


def test_what_is_missing_is_told(tmp_path, monkeypatch):
    one_model(tmp_path, monkeypatch, "opt-350m")
    assert (tmp_path / "keep/exits.txt").read_text().endswith("misses c2, c3: no memory\n")


def test_what_comes_after_a_failure_is_not_tried(tmp_path, monkeypatch):
    options = ("opt-350m", "--changes")
    status, commands = one_model(tmp_path, monkeypatch, *options, fails="--brief")
    assert (status, len(commands)) == (70, 2)
    lines = (tmp_path / "keep/exits.txt").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "opt-350m profile 0: exit 0",
        "opt-350m replay 1: exit 70",
    ]
    assert "ValueError: --brief is wrong" in (tmp_path / "keep/opt-350m-1-replay.txt").read_text()


def test_a_model_that_fails_or_takes_too_long_leaves_the_others_as_they_are(tmp_path, monkeypatch):
    behaviours = {"opt-350m": (0, 3), "pythia-410m": (60, 0), "gemma-2b": (0, 0)}

    def started(name: str) -> Popen[bytes]:
        seconds, status = behaviours[name]
        text = RUNS.format(name=name, seconds=seconds, status=status)
        return Popen([sys.executable, "-c", text], stdin=PIPE)

    monkeypatch.setattr(account_models, "started", started)
    monkeypatch.setattr(account_models, "_KEEP_S", 0.3)
    assert study(tmp_path, monkeypatch, *behaviours, "--limit-s", "6") > 0
    for name in behaviours:
        kept = gzip.decompress((tmp_path / f"keep/{name}-profile.json.gz").read_bytes())
        assert kept.decode() == name
    lines = (tmp_path / "keep/exits.txt").read_text().splitlines()
    assert lines == ["pythia-410m: ended, since its time was over"]


def test_no_model_is_begun_when_the_time_of_all_is_over(tmp_path, monkeypatch):
    begun = []

    def started(name: str) -> Popen[bytes]:
        begun.append(name)
        text = RUNS.format(name=name, seconds=60, status=0)
        return Popen([sys.executable, "-c", text], stdin=PIPE)

    monkeypatch.setattr(account_models, "started", started)
    monkeypatch.setattr(account_models, "_KEEP_S", 0.3)
    study(tmp_path, monkeypatch, "opt-350m", "gemma-2b", "--budget-s", "1")
    assert begun == ["opt-350m", "gemma-2b"]  # the second one only waits
    assert not (tmp_path / "models/gemma-2b.run").exists()


def test_a_process_says_what_is_wrong_in_its_own_files(tmp_path, monkeypatch):
    device = ("--gpu-device", "emulated")
    assert study(tmp_path, monkeypatch, "opt-350m", *device) > 0
    assert (tmp_path / "keep/exits.txt").read_text().startswith("opt-350m profile 0: exit ")
    assert "gpuenergy: error: " in (tmp_path / "keep/opt-350m-0-profile.txt").read_text()
