"""The study that profiles and replays several models, with a command that stands in for ours."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import account_models
import pytest

CALLS = [
    {"id": "c1", "steps": {"0": 3}},
    {"id": "c2", "steps": {"0": 1, "1": 1}},
    {"id": "c3", "steps": {}, "graph": {"steps": {"1": 2}}},
]


def study(
    folder: Path, patch: pytest.MonkeyPatch, *options: str, fails: str = "none"
) -> tuple[int, list[list[str]]]:
    """The exit status of the study, and the commands that it has run."""
    commands: list[list[str]] = []

    def gpuenergy(words: list[str]) -> int:
        commands.append(words)
        sys.stdout.write(f"said by {words[0]}\n")
        if words[0] == "profile":
            run = Path(words[words.index("--out") + 1])
            run.mkdir()
            (run / "operator_calls.jsonl").write_text("\n".join(map(json.dumps, CALLS)))
        return 1 if fails in words else 0

    patch.setattr(account_models, "gpuenergy", gpuenergy)
    keep = folder / "keep"
    keep.mkdir()
    words = ["account_models.py", str(folder / "models"), *options, "--keep", str(keep)]
    patch.setattr(sys, "argv", words)
    return account_models.main(), commands


def test_each_model_is_profiled_and_replayed_decode_step_first(tmp_path, monkeypatch):
    models = ("qwen2-0.5b", "opt-350m")
    status, commands = study(tmp_path, monkeypatch, *models, "--changes")
    assert status == 0
    assert [words[0] for words in commands] == ["profile", "replay", "replay"] * 2
    assert commands[1][commands[1].index("--kernels") + 1] == "c2,c3"
    assert {"--resume", "--changes", "--brief"} < set(commands[2])
    config = json.loads((tmp_path / "models/qwen2-0.5b/config.json").read_text())
    assert (config["model_type"], config["vocab_size"]) == ("qwen2", 151936)


def test_exits_and_results_are_kept(tmp_path, monkeypatch):
    status, commands = study(tmp_path, monkeypatch, "opt-350m", "--full", fails="--kernels")
    assert status == 1
    assert len(commands) == 2  # what comes after a failure is not tried
    assert "--brief" not in commands[1]
    lines = (tmp_path / "keep/exits.txt").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "opt-350m profile 0: exit 0",
        "opt-350m replay 1: exit 1",
    ]
    assert (tmp_path / "keep/opt-350m-1-replay.txt").read_text() == "said by replay\n"
    kept = gzip.decompress((tmp_path / "keep/opt-350m-operator_calls.jsonl.gz").read_bytes())
    assert json.loads(kept.splitlines()[0]) == CALLS[0]
