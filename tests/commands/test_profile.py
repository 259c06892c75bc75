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

        from pytest_gpuenergy.replay.models import LanguageModel

        def run(*_: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

        monkeypatch.setattr(LanguageModel, "run", run)
        model = folder_of(tmp_path / "model", "bloom")
        out = str(tmp_path / "run")
        assert main(["profile", model, *SMALL, "--gpu-device", "cpu", "--out", out]) == 1
        assert "smaller --batch or --prompt-tokens" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "name", "sentence"),
        [
            ("", "absent_module:compute", "The module absent_module cannot be imported"),
            ("1 / 0", "{}:compute", "cannot be imported (ZeroDivisionError: division by zero)"),
            ("compute = 7", "{}:compute", "has no function compute: name one that can be called"),
            ("", "{}:compute", "has no function compute: name one that can be called"),
            (
                "def compute():\n    raise KeyError('k')",
                "{}:compute",
                "failed on cpu ('k'): mend it",
            ),
            ("def compute(x):\n    return x", "{}:compute", "failed on cpu (compute() missing"),
        ],
    )
    def test_a_function_that_cannot_be_called_gets_one_sentence(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        request: pytest.FixtureRequest,
        text: str,
        name: str,
        sentence: str,
    ) -> None:
        module = f"module_{abs(hash(request.node.name))}"
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        options = ("--gpu-device", "cpu", "--out", str(tmp_path / "run"))
        assert main(["profile", name.format(module), *options]) in (1, 2)
        err = capsys.readouterr().err
        assert sentence in err
        assert "Traceback" not in err

    def test_a_method_of_a_module_has_its_layers_and_parameters(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bound_method.py").write_text(
            "import torch\n"
            "class Net(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))\n"
            "    def compute(self):\n"
            "        value = torch.ones(2, 4)\n"
            "        for block in self.blocks:\n"
            "            value = block(value)\n"
            "        return value\n"
            "net = Net()\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        run = tmp_path / "run"
        options = ("--gpu-device", "cpu", "--out", str(run))
        assert main(["profile", "bound_method:net.compute", *options]) == 0
        record = json.loads((run / "profile.json").read_text())
        assert (record["layers"], record["parameters"], record["weights"]) == (3, 60, "own")
