"""A model that several GPUs share: its profile, and its replay."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import replay_on_host
from command_outcomes import ended
from recorded_profile import copy_bloom

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.replay import device_word, extract_kernels, rank_folders, ranks
from pytest_gpuenergy.support import DeviceError, InputError, run_together

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BLOOM = {"model_type": "bloom", "vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}
SMALL = ("--prompt-tokens", "8", "--new-tokens", "2", "--dtype", "float32", "--gpu-device", "cpu")


def model_in(folder: Path, **config: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


class TestRecordedFigures:
    """Needs no PyTorch."""

    @pytest.fixture
    def recorded(self, tmp_path: Path) -> Path:
        """The profile of two ranks, each of which has the figures of the whole BLOOM-560M."""
        for rank in (0, 1):
            folder = copy_bloom(tmp_path / f"rank{rank}")
            profile = json.loads((folder / "profile.json").read_text())
            text = json.dumps({**profile, "rank": rank, "ranks": 2})
            (folder / "profile.json").write_text(text)
            (tmp_path / "profile.json").write_text(text)
        return tmp_path

    @pytest.mark.slow
    def test_the_energy_of_all_gpus_is_added_up(self, recorded, capsys):
        chosen = ["--kernels", "c229cf67f982a"]
        device = ["--gpu-device", "emulated:h200x2"]
        assert main(["replay", str(recorded), *device, *chosen]) == 0
        report = json.loads((recorded / "results-emulated/gpu_energy_report.json").read_text())
        accounts = report["accounts"]
        assert {one["rank"] for one in accounts} == {0, 1}
        for total in report["totals"]:
            parts = [
                one
                for one in accounts
                if (one["step"], one["level"]) == (total["step"], total["level"])
            ]
            energy_mj = sum(one["energy_mj"] for one in parts)
            assert total["energy_mj"] == pytest.approx(energy_mj)
            assert total["time_ms"] == max(one["time_ms"] for one in parts)
            assert total["joules_per_token"] == pytest.approx(energy_mj / 1e3 / total["tokens"])
        assert len(report["totals"]) == 6
        assert len({one["gpu_uuid"] for one in report["measurements"]}) == 2
        assert "all 2 GPUs, prefill, graph" in capsys.readouterr().out

    def test_the_ranks_of_an_earlier_profile_are_left_alone(self, recorded):
        copy_bloom(recorded / "again")
        for path in (recorded / "again").iterdir():
            path.rename(recorded / path.name)
        assert rank_folders(recorded) == []
        assert extract_kernels(recorded).exchanges is None

    @pytest.mark.parametrize("command", [["replay"], ["extract"]])
    @pytest.mark.parametrize(
        ("lost", "told"), [((1,), "has no folder rank1"), ((0, 1), "has no folder rank0")]
    )
    def test_a_lost_rank_is_named(self, recorded, command, lost, told):
        for rank in lost:
            shutil.rmtree(recorded / f"rank{rank}")
        device = ["--gpu-device", "emulated:h200x2"] if command == ["replay"] else []
        assert told in ended(2, *command, str(recorded), *device).err

    def test_a_number_of_launches_is_refused(self, recorded):
        assert (
            "--runs is for models on one GPU"
            in ended(2, "replay", str(recorded), "--runs", "1000").err
        )

    def test_a_replay_that_has_too_few_gpus_is_refused(self, recorded):
        assert (
            "2 ranks need 2 GPUs, and --gpu-device 0 names 1"
            in ended(2, "replay", str(recorded), "--gpu-device", "0").err
        )


@pytest.mark.parametrize(
    ("spec", "rank", "expected"),
    [("auto", 0, ("auto", 0)), ("0,1", 1, ("1", 0)), ("GPU-a, GPU-b", 0, ("GPU-a", 0))],
)
def test_each_rank_has_a_gpu_of_the_list(spec, rank, expected, monkeypatch):
    monkeypatch.setattr("pytest_gpuenergy.opening.count_gpus", lambda _: 2)
    assert device_word(spec, rank, 2) == expected


@pytest.mark.parametrize("spec", ["auto", "3", "0,1,2"])
def test_other_numbers_of_gpus_are_refused(spec, monkeypatch):
    monkeypatch.setattr("pytest_gpuenergy.opening.count_gpus", lambda _: 1)
    with pytest.raises(InputError, match="2 ranks need 2 GPUs"):
        device_word(spec, 0, 2)


def test_a_rank_that_was_killed_is_named(monkeypatch):
    monkeypatch.setattr(ranks, "run_together", lambda *_: [75, -9])
    with pytest.raises(DeviceError, match="Rank 1 of 2 was ended by SIGKILL: what had been"):
        ranks.run_ranks(["replay", "run"], 2, Path("run"))


def test_a_function_cannot_be_divided():
    pytest.importorskip("torch", reason="needs PyTorch")
    assert (
        "json:dumps is a function: leave it out"
        in ended(2, "profile", "json:dumps", "--tp", "2", "--out", "run").err
    )


@pytest.fixture(scope="module")
def profile(
    transformers: None,  # noqa: ARG001 -- it skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of a profile of two ranks on the host."""
    folder = tmp_path_factory.mktemp("model")
    run = folder / "run"
    model = model_in(folder, **LLAMA)
    assert main(["profile", model, *SMALL, "--tp", "2", "--out", str(run)]) == 0
    return run


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
class TestWithPyTorch:
    """Needs PyTorch and transformers, and no GPU."""

    @pytest.mark.parametrize("config", [LLAMA, BLOOM], ids=["llama", "bloom"])
    def test_the_parts_generate_what_the_whole_does(self, tmp_path, config):
        model = model_in(tmp_path, **config)
        text = f"""
import torch
from pytest_gpuenergy.replay.profile.language_models import load_model
from pytest_gpuenergy.replay.ranks import joined

with joined(2, "cpu") as ranks:
    whole = load_model({model!r}, dtype="float32")
    part = load_model({model!r}, dtype="float32", ranks=ranks)
    tokens = torch.arange(16).reshape(2, 8)
    with torch.inference_mode():
        torch.testing.assert_close(part.model(tokens).logits, whole.model(tokens).logits)
    sizes = [sum(one.numel() for one in model.model.parameters()) for model in (part, whole)]
    assert sizes[0] < 0.6 * sizes[1]
"""
        assert ranks_of([sys.executable, "-c", text], tmp_path) == [0, 0]

    def test_each_rank_has_a_trace_and_calls(self, profile):
        for rank in (0, 1):
            folder = profile / f"rank{rank}"
            record = json.loads((folder / "profile.json").read_text())
            assert (record["rank"], record["ranks"]) == (rank, 2)
            calls = (folder / "operator_calls.jsonl").read_text().splitlines()
            operators = {json.loads(line)["operator"] for line in calls}
            assert {"gpuenergy.all_reduce_.default", "gpuenergy.all_gather.default"} < operators
            assert (folder / "trace.json.gz").is_file()

    def test_the_launches_of_all_ranks_are_put_together(self, profile):
        lines = (profile / "kernel_launch_params.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert {one["rank"] for one in found} == {0, 1}
        begins = [one["begin_us"] for one in found]
        assert begins == sorted(begins)

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"num_key_value_heads": 1}, "1 num_key_value_heads"),
            ({"vocab_size": 63}, "63 features"),
        ],
    )
    def test_a_model_that_cannot_be_divided_gets_one_sentence(self, tmp_path, capfd, changed, said):
        model = model_in(tmp_path / "model", **LLAMA | changed)
        out = str(tmp_path / "run")
        assert main(["profile", model, *SMALL, "--tp", "2", "--out", out]) == 2
        errors = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
        assert len(errors) == 1
        assert said in errors[0]

    def test_all_ranks_replay_at_the_same_time(self, profile, tmp_path):
        run = copied_tensor(profile, tmp_path)
        assert replay(run) == [0, 0]
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        found = {(one["rank"], one["step"], one["level"]) for one in report["accounts"]}
        names = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
        levels = ("graph", "eager", "layers", *(f"module.{name}" for name in names))
        assert found == {(r, s, level) for r in (0, 1) for s in (0, 1) for level in levels}
        assert all(one["coverage"] == 1.0 for one in report["accounts"])
        assert report["missing"] == {}
        assert len(report["totals"]) == 2 * len(levels)
        windows = [one["windows"] for one in report["accounts"] if one["level"] == "graph"]
        assert windows == [[f"step{step}-window{n}" for n in (0, 1)] for step in (0, 1)] * 2
        keys = [one["workload"]["parameters"]["replays"] for one in report["measurements"]]
        assert keys.count("step0-eager-gaps") == keys.count("step1-eager-gaps") == 2

    def test_links_are_measured_at_the_distance_of_exchanges_in_each_step(self, profile, tmp_path):
        run = copied_tensor(profile, tmp_path)
        assert replay(run) == [0, 0]
        for rank in (0, 1):
            lines = (run / f"rank{rank}/results-emulated/measurements.jsonl").read_text()
            found = [json.loads(line)["workload"]["parameters"] for line in lines.splitlines()]
            keys = [one["replays"] for one in found]
            assert keys.count("gap") == 1
            links = [one for one in found if one["replays"].endswith("-links")]
            assert [one["replays"] for one in links] == [
                f"step{step}-{level}-links" for step in (0, 1) for level in ("graph", "eager")
            ]
            assert all(one["exchange"] in keys and one["gaps"] >= 1 for one in links)
            alone = [key for key in keys if key.startswith("c")]  # exchanges come first
            exchanges = {one["exchange"] for one in links}
            others = [number for number, key in enumerate(alone) if key not in exchanges]
            assert keys.index(links[-1]["replays"]) < keys.index(alone[others[-1]])

    def test_what_was_measured_before_a_rank_was_killed_is_kept(self, profile, tmp_path):
        run = copied_tensor(profile, tmp_path)
        codes = replay(run, killed_after="1:8")
        assert codes[1] == -9
        assert codes[0] in (None, 75)
        lines = (run / "rank1/results-emulated/measurements.jsonl").read_text().splitlines()
        assert len(lines) == 8
        kept = {json.loads(line)["started"] for line in lines}
        assert replay(run, "--resume") == [0, 0]
        after = (run / "rank1/results-emulated/measurements.jsonl").read_text().splitlines()
        assert kept <= {json.loads(line)["started"] for line in after}


def ranks_of(command: list[str], folder: Path, **more: str) -> list[int | None]:
    """Exit codes of the ranks that run ``command``."""
    environments = [{**one, **more} for one in ranks.rank_environments(2)]
    return run_together(command, folder, environments, [None, None])


def replay(run: Path, *options: str, killed_after: str = "") -> list[int | None]:
    more = {replay_on_host.KILLED_AFTER: killed_after} if killed_after else {}
    command = [sys.executable, replay_on_host.__file__, "replay", str(run), *options]
    return ranks_of(command, run, **more)


def copied_tensor(profile: Path, folder: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(profile, folder / "run"))
