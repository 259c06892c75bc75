"""`gpuenergy profile` as a user calls it: a tiny language model on the host."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.cli import main

TINY = {
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
}
SMALL = ("--prompt-tokens", "8", "--new-tokens", "3", "--dtype", "float32")


def folder_of(path: Path, kind: str) -> str:
    """A model's folder without weights."""
    path.mkdir()
    config = {"model_type": kind, "vocab_size": 64, **TINY[kind]}
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_without_pytorch_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["profile", "bloom-560m", "--out", str(tmp_path / "run")]) == 2
    assert "needs torch: pip install 'pytest-gpuenergy[replay]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word", ["0", "-1", "many"])
def test_a_batch_that_is_no_number_is_refused(word: str, capsys: Any) -> None:
    assert main(["profile", "bloom-560m", "--out", "run", "--batch", word]) == 2
    assert "not a number above zero" in capsys.readouterr().err


@pytest.mark.torch
class TestWithPyTorch:
    """Needs PyTorch and transformers, and no GPU."""

    @pytest.fixture(autouse=True)
    def packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("torch", reason="needs PyTorch")
        pytest.importorskip("transformers", reason="needs transformers")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    @pytest.mark.parametrize(("kind", "layers"), [("bloom", 2), ("llama", 3)])
    def test_phases_and_layers_of_a_model_are_told_apart(
        self, tmp_path: Path, kind: str, layers: int
    ) -> None:
        model = folder_of(tmp_path / "model", kind)
        run = tmp_path / "run"
        assert main(["profile", model, *SMALL, "--gpu-device", "cpu", "--out", str(run)]) == 0
        text = (run / "kernel_launch_params.jsonl").read_text()
        calls = [json.loads(line) for line in text.splitlines()]
        products = [
            one for one in calls if one["name"] in ("aten::addmm", "aten::mm", "aten::baddbmm")
        ]
        assert {one["phase"] for one in products} == {"prefill", "decode"}
        assert {one["layer"] for one in products} - {None} == set(range(layers))

    def test_what_was_profiled_is_on_disk(self, tmp_path: Path) -> None:
        model = folder_of(tmp_path / "model", "bloom")
        run = tmp_path / "run"
        main(["profile", model, *SMALL, "--gpu-device", "cpu", "--out", str(run)])
        record = json.loads((run / "profile.json").read_text())
        assert (record["weights"], record["layers"]) == ("random", 2)
        assert (record["prompt_tokens"], record["new_tokens"]) == (8, 3)
        assert record["attention"] in ("eager", "sdpa")

    def test_the_same_seed_gives_the_same_weights(self, tmp_path: Path) -> None:
        import torch

        from pytest_gpuenergy.replay.models import load_model

        name = folder_of(tmp_path / "model", "bloom")
        one, same, other = (
            next(load_model(name, dtype="float32", seed=seed).model.parameters())
            for seed in (1, 1, 2)
        )
        assert torch.equal(one, same)
        assert not torch.equal(one, other)

    def test_weights_in_the_folder_are_used(self, tmp_path: Path) -> None:
        from pytest_gpuenergy.replay.models import load_model

        name = folder_of(tmp_path / "model", "bloom")
        load_model(name, dtype="float32").model.save_pretrained(tmp_path / "saved")
        assert load_model(str(tmp_path / "saved"), dtype="float32").weights == "checkpoint"

    @pytest.mark.parametrize(
        ("content", "said"), [(None, "no config.json"), ("{", "cannot be loaded")]
    )
    def test_a_folder_without_a_model_gets_one_sentence(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
    ) -> None:
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        out = str(tmp_path / "run")
        assert main(["profile", str(tmp_path), "--gpu-device", "cpu", "--out", out]) == 2
        assert said in capsys.readouterr().err

    def test_the_emulated_gpu_cannot_be_profiled(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = folder_of(tmp_path / "model", "bloom")
        assert main(["profile", model, "--gpu-device", "emulated", "--out", str(tmp_path)]) == 2
        assert "--gpu-device cpu" in capsys.readouterr().err

    def test_what_does_not_fit_into_memory_gets_one_sentence(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        from pytest_gpuenergy.replay import profiling

        def generate(*_: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

        monkeypatch.setattr(profiling, "generate", generate)
        model = folder_of(tmp_path / "model", "bloom")
        out = str(tmp_path / "run")
        assert main(["profile", model, *SMALL, "--gpu-device", "cpu", "--out", out]) == 1
        assert "smaller --batch or --prompt-tokens" in capsys.readouterr().err
