"""`gpuenergy profile` as a user calls it: a tiny language model on the host."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_outcomes import ended
from msgspec import structs
from torch_programs import TWO_PRODUCTS, model_folder, profile, write_module

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.replay import CLOCK, read_power

SMALL = ("--prompt-tokens", "8", "--new-tokens", "3", "--dtype", "float32")


def refused(*words: object) -> str:
    return ended(2, "profile", *words).err


class HostNvml:
    """Samples of 300 W, of each 100 µs by the host's clock."""

    NVML_TOTAL_POWER_SAMPLES = 0
    missing = False

    class NVMLError(Exception):
        """As in pynvml."""

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 -- pynvml's name
        """No samples."""

    NVMLError_NoPermission = NVMLError_FunctionNotFound = NVMLError_NotFound

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        """Never any samples."""

    def nvmlDeviceGetSamples(  # noqa: N802
        self, _handle: object, _kind: int, since_us: int
    ) -> tuple[int, list[Any]]:
        if self.missing:
            raise self.NVMLError_NotSupported
        last = time.time_ns() // 100_000
        first = max(last - 50_000, since_us // 100 + 1)
        value = SimpleNamespace(uiVal=300_000)
        return 1, [
            SimpleNamespace(timeStamp=100 * number, sampleValue=value)
            for number in range(first, last + 1)
        ]


class HostCard:
    """A device of which nothing is used but its samples and its clock."""

    name, emulated, handle = "A card", False, None

    def __init__(self) -> None:
        self.nvml = HostNvml()
        self.clock = SimpleNamespace(now_s=time.monotonic, sleep_s=lambda _: None)


def test_without_pytorch_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "needs torch: pip install 'pytest-gpuenergy[replay]'" in refused(
        "bloom-560m", "--out", str(tmp_path / "run")
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word", ["0", "-1", "many"])
def test_a_batch_that_is_no_number_is_refused(word):
    assert "not a whole number from 1 to" in refused("bloom-560m", "--out", "run", "--batch", word)


@pytest.mark.parametrize("word", ["-1", "many", str(1 << 63)])
def test_a_seed_that_pytorch_cannot_use_is_refused(word):
    assert "is not a number from 0 to 9223372036854775807" in refused(
        "bloom-560m", "--out", "run", "--seed", word
    )


@pytest.mark.torch
@pytest.mark.usefixtures("transformers")
class TestWithPyTorch:
    """Needs PyTorch and transformers, and no GPU."""

    @pytest.mark.parametrize(("kind", "layers"), [("bloom", 2), ("llama", 3)])
    def test_phases_and_layers_of_a_model_are_told_apart(self, tmp_path, kind, layers):
        model = model_folder(tmp_path / "model", kind)
        run = tmp_path / "run"
        assert profile(model, run, *SMALL) == 0
        text = (run / "kernel_launch_params.jsonl").read_text()
        calls = [json.loads(line) for line in text.splitlines()]
        products = [
            one for one in calls if one["name"] in ("aten::addmm", "aten::mm", "aten::baddbmm")
        ]
        assert {one["phase"] for one in products} == {"prefill", "decode"}
        assert {one["layer"] for one in products} - {None} == set(range(layers))

    def test_states_are_the_cache_of_a_recurrent_model(self, tmp_path):
        run = tmp_path / "run"
        assert profile(model_folder(tmp_path / "model", "rwkv"), run, *SMALL) == 0
        calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        shapes = [one["arguments"][0]["shape"] for one in calls if one["phase"] == "decode"]
        assert shapes
        assert [1, 8, 32] not in shapes

    def test_a_model_without_a_cache_has_a_prefill_alone(self, tmp_path):
        model, run = model_folder(tmp_path / "model", "openai-gpt"), tmp_path / "run"
        words = (model, "--gpu-device", "cpu", "--out", str(tmp_path / "other"), *SMALL)
        assert "returns no cache, which its decode steps need: give --new-tokens 1" in refused(
            *words
        )
        assert profile(model, run, *SMALL, "--new-tokens", "1") == 0

    @pytest.mark.parametrize("kind", ["bert", "llama"])
    def test_a_decode_step_is_repeated_on_the_same_cache(self, tmp_path, kind):
        import torch

        from pytest_gpuenergy.replay import CallRecorder, load_program
        from pytest_gpuenergy.replay.profile.programs import Prompt

        name = model_folder(tmp_path / "model", kind)
        program = load_program(name, dtype="float32", attention="auto", seed=0, device="cpu")
        forms = []
        with torch.inference_mode():
            step = program.step(program.inputs(Prompt(8), "cpu"), 1)
            for _ in range(2):
                recorder = CallRecorder({})
                with recorder:
                    step()
                forms.append([str(form) for form in recorder.forms])
        assert forms[0] == forms[1]

    def test_what_was_profiled_is_on_disk(self, tmp_path):
        model = model_folder(tmp_path / "model", "bloom")
        run = tmp_path / "run"
        assert profile(model, run, *SMALL) == 0
        record = json.loads((run / "profile.json").read_text())
        assert (record["weights"], record["layers"]) == ("random", 2)
        assert (record["prompt_tokens"], record["new_tokens"]) == (8, 3)
        assert record["attention"] in ("eager", "sdpa")

    def test_a_trace_without_times_is_refused(self, tmp_path, monkeypatch, capsys):
        from pytest_gpuenergy.replay.profile import profiling

        found = profiling.extract_kernels

        def extract_kernels(*args: Any, **options: Any) -> Any:
            extraction = found(*args, **options)
            launches = [structs.replace(one, duration_us=0.0) for one in extraction.launches]
            return dataclasses.replace(extraction, launches=launches)

        monkeypatch.setattr(profiling, "extract_kernels", extract_kernels)
        model = model_folder(tmp_path / "model", "bloom")
        assert profile(model, tmp_path / "run", *SMALL) == 1
        assert "profile again, while no other process" in capsys.readouterr().err

    def test_the_same_seed_gives_the_same_weights(self, tmp_path):
        import torch

        from pytest_gpuenergy.replay import load_model

        name = model_folder(tmp_path / "model", "bloom")
        one, same, other = (
            next(load_model(name, dtype="float32", seed=seed).model.parameters())
            for seed in (1, 1, 2)
        )
        assert torch.equal(one, same)
        assert not torch.equal(one, other)

    def test_the_attention_of_a_model_whose_parts_differ_in_it_is_that_which_was_asked_for(
        self, tmp_path
    ):
        from pytest_gpuenergy.replay import load_model

        text = {"model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1}
        text |= {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 32}
        vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        vision |= {"image_size": 64, "mlp_dim": 32, "output_channels": 32}
        config = {"model_type": "got_ocr2", "text_config": text, "vision_config": vision}
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = load_model(str(tmp_path), dtype="float32")
        parts = found.model.config, found.model.config.text_config
        assert {one._attn_implementation for one in parts} == {"eager", "sdpa"}
        assert found.attention == "auto"
        assert load_model(str(tmp_path), dtype="float32", attention="eager").attention == "eager"

    def test_weights_in_the_folder_are_used(self, tmp_path):
        from pytest_gpuenergy.replay import load_model

        name = model_folder(tmp_path / "model", "bloom")
        load_model(name, dtype="float32").model.save_pretrained(tmp_path / "saved")
        assert load_model(str(tmp_path / "saved"), dtype="float32").weights == "checkpoint"

    @pytest.mark.parametrize(
        ("content", "said"), [(None, "no config.json"), ("{", "cannot be loaded")]
    )
    def test_a_folder_without_a_model_gets_one_sentence(self, tmp_path, content, said):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        out = str(tmp_path / "run")
        assert said in refused(str(tmp_path), "--gpu-device", "cpu", "--out", out)

    @pytest.mark.parametrize("name", ["./absent", "/absent", "some/folder/absent"])
    def test_a_folder_that_is_not_there_is_named(self, tmp_path, name):
        words = (name, "--gpu-device", "cpu", "--out", str(tmp_path / "run"))
        assert "There is no folder" in refused(*words)

    @pytest.mark.parametrize(
        ("change", "weights", "said"),
        [
            ({"pad_token_id": 99}, "", "Padding_idx must be within num_embeddings"),
            ({"vocab_size": "many"}, "", "'vocab_size': TypeError: Field 'vocab_size' expected"),
            ({"num_attention_heads": 0}, "", "division or modulo by zero"),
            ({"num_attention_heads": 5}, "", "not a multiple of the number of attention heads"),
            ({"torch_dtype": "absent"}, "", "has no attribute 'absent'"),
            ({"hidden_act": "absent"}, "", "KeyError: 'absent'"),
            ({}, "model.safetensors", "header"),
            ({}, "pytorch_model.bin", "Weights only load failed"),
        ],
    )
    def test_a_model_that_cannot_be_loaded_gets_one_sentence(self, tmp_path, change, weights, said):
        model = Path(model_folder(tmp_path / "model", "llama"))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | change))
        if weights:
            (model / weights).write_bytes(b"no weights" * 10)
        out = str(tmp_path / "run")
        message = refused(str(model), "--gpu-device", "cpu", "--out", out).splitlines()[-1]
        assert message.startswith("gpuenergy: error: The model")
        assert said in message

    def test_weights_that_do_not_fit_into_the_hosts_memory_get_one_sentence(self, tmp_path):
        model = Path(model_folder(tmp_path / "model", "llama"))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"vocab_size": 10**12}))
        out = str(tmp_path / "run")
        assert (
            "do not fit into the memory of cpu"
            in ended(1, "profile", str(model), "--gpu-device", "cpu", "--out", out).err
        )

    def test_a_folder_that_cannot_be_written_is_refused_before_the_model_is_loaded(self, tmp_path):
        (tmp_path / "file").touch()
        out = str(tmp_path / "file")
        assert (
            "file cannot be written"
            in ended(1, "profile", "absent/model", "--gpu-device", "cpu", "--out", out).err
        )

    def test_the_profile_of_the_host_can_be_extracted_again(self, tmp_path):
        model = model_folder(tmp_path / "model", "bloom")
        run = tmp_path / "run"
        assert profile(model, run, *SMALL) == 0
        before = (run / "unique_kernels_compute.jsonl").read_bytes()
        (run / "unique_kernels_compute.jsonl").unlink()
        assert main(["extract", str(run)]) == 0
        assert (run / "unique_kernels_compute.jsonl").read_bytes() == before

    def test_the_emulated_gpu_cannot_be_profiled(self, tmp_path):
        model = model_folder(tmp_path / "model", "bloom")
        assert "--gpu-device cpu" in refused(
            model, "--gpu-device", "emulated", "--out", str(tmp_path)
        )

    def test_what_does_not_fit_into_memory_gets_one_sentence(self, tmp_path, monkeypatch):
        import torch

        from pytest_gpuenergy.replay import LanguageModel

        def run(*_: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

        monkeypatch.setattr(LanguageModel, "run", run)
        model = model_folder(tmp_path / "model", "bloom")
        out = str(tmp_path / "run")
        assert (
            "smaller batch or shorter prompts"
            in ended(1, "profile", model, *SMALL, "--gpu-device", "cpu", "--out", out).err
        )

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
            ("def compute():\n    exit(3)", "{}:compute", "(it ends the process with 3): mend it"),
            ("exit(3)", "{}:compute", "cannot be imported (SystemExit: 3)"),
        ],
    )
    def test_a_function_that_cannot_be_called_gets_one_sentence(
        self, tmp_path, monkeypatch, capsys, text, name, sentence
    ):
        module = write_module(tmp_path, monkeypatch, text)
        assert profile(name.format(module), tmp_path / "run") in (1, 2)
        err = capsys.readouterr().err
        assert sentence in err
        assert "Traceback" not in err

    def test_a_method_of_a_module_has_its_layers_and_parameters(self, tmp_path, monkeypatch):
        text = (
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
        module = write_module(tmp_path, monkeypatch, text)
        run = tmp_path / "run"
        assert profile(f"{module}:net.compute", run) == 0
        record = json.loads((run / "profile.json").read_text())
        assert (record["layers"], record["parameters"], record["weights"]) == (3, 60, "own")

    @pytest.fixture
    def products(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """A function with two products, which takes longer than some samples are apart."""
        return f"{write_module(tmp_path, monkeypatch, TWO_PRODUCTS)}:compute"

    @pytest.fixture
    def card(self, monkeypatch: pytest.MonkeyPatch) -> HostCard:
        """A card whose driver stamps samples by the host's clock; the host runs the program."""
        found = HostCard()
        monkeypatch.setattr(
            "pytest_gpuenergy.replay.profile.profiling.claim_for_torch", lambda *_: ("cpu", found)
        )
        return found

    def test_the_host_has_reads_of_its_clock_and_no_power(self, tmp_path, products):
        run = tmp_path / "run"
        assert profile(products, run) == 0
        document = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))
        spans = [one for one in document["traceEvents"] if one.get("name") == CLOCK]
        assert len(spans) == 64
        assert not (run / "power.csv").exists()
        assert json.loads((run / "profile.json").read_text())["power"] is None

    @pytest.mark.slow
    @pytest.mark.usefixtures("card")
    def test_power_samples_are_on_the_clock_of_the_trace(self, tmp_path, products):
        run = tmp_path / "run"
        assert (
            "whose clock is aligned with the profiler's within ±"
            in ended(0, "profile", products, "--out", str(run)).out
        )
        power = json.loads((run / "profile.json").read_text())["power"]
        curve = read_power(run / "power.csv")
        assert power["samples"] == len(curve.times_us) > 0
        assert power["brackets"] == 64
        stamps = [(us + power["offset_us"]) / 100 for us in curve.times_us]
        error = (2 * power["error_us"] + 1) / 100
        assert all(abs(one - round(one)) < error for one in stamps)

    @pytest.mark.usefixtures("card")
    def test_the_base_of_a_traces_times_agrees_with_the_reads(self, tmp_path, products):
        run = tmp_path / "run"
        assert main(["profile", products, "--out", str(run)]) == 0
        power = json.loads((run / "profile.json").read_text())["power"]
        document = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))
        # PyTorch converts the processor's counter with an error of its own, some µs under load.
        assert power["offset_us"] == pytest.approx(
            document["baseTimeNanoseconds"] / 1e3, abs=power["error_us"] + 100.0
        )

    def test_samples_that_fail_cost_the_profile_nothing_else(self, tmp_path, products, card):
        run = tmp_path / "run"
        run.mkdir()
        (run / "power.csv").write_text("of another profile")
        card.nvml.missing = True
        assert (
            "The profile has no power samples. A card keeps no"
            in ended(0, "profile", products, "--out", str(run)).err
        )
        assert (run / "operator_calls.jsonl").is_file()
        assert not (run / "power.csv").exists()

    def test_several_runs_have_as_many_times_the_calls_and_the_same_steps(
        self, tmp_path, products, capsys
    ):
        found = {}
        for runs in (1, 3):
            folder = tmp_path / str(runs)
            assert profile(products, folder, "--runs", str(runs)) == 0
            lines = (folder / "operator_calls.jsonl").read_text().splitlines()
            found[runs] = {one["id"]: one for one in map(json.loads, lines)}
            assert json.loads((folder / "profile.json").read_text())["runs"] == runs
        once, thrice = found[1], found[3]
        assert once.keys() == thrice.keys()
        for key, one in thrice.items():
            assert one["calls"] == 3 * once[key]["calls"]
            assert (one["steps"], one["turns"]) == (once[key]["steps"], once[key]["turns"])
        shown = capsys.readouterr()
        assert "in 3 runs" in shown.out
        assert "equally often" not in shown.err

    def test_calls_that_not_every_run_makes_are_told(self, tmp_path, monkeypatch):
        text = (
            "import torch\n"
            "values = [torch.ones(4)]\n"
            "def compute():\n"
            "    values.append(values[-1] + 1)\n"
            "    return torch.cat(values)\n"
        )
        module = write_module(tmp_path, monkeypatch, text)
        options = ("--runs", "2", "--gpu-device", "cpu", "--out", str(tmp_path / "run"))
        assert (
            "2 of 3 unique calls were not made equally often"
            in ended(0, "profile", f"{module}:compute", *options).err
        )
