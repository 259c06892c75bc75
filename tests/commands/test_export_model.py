"""`gpuenergy profile --export`, and what the exported file is good for."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from recorded_profile import BLOOM
from replay_on_host import host_stands_in
from torch_programs import model_folder, profile, write_module

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.replay import (
    ExportRecord,
    read_profile,
    read_record,
    replay_source,
    write_profile,
)
from pytest_gpuenergy.support import InputError, encode

SMALL = ("--prompt-tokens", "8", "--new-tokens", "4", "--dtype", "float32")
RECORD = ExportRecord(
    model="bloom-560m",
    weights="random",
    attention="eager",
    dtype="float16",
    vocabulary=64,
    prompt_tokens=8,
    new_tokens=4,
    batch=1,
    seed=0,
    device="cuda:0",
    layers=("parts.0.h.0",),
    torch="2.13.0",
    transformers="5.24.0",
)
FUNCTIONS = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, value):
        for block in self.blocks:
            value = block(value).relu()
        return {"sum": value + offset, "words": "none"}


net = Net()
value = torch.ones(4, 8)
offset = torch.arange(8.0)


def compute():
    with torch.no_grad():
        return net(value)


def undecided():
    return net(value)["sum"] if value.sum() > 0 else value
"""


def calls_of(run: Path) -> dict[str, Any]:
    """The unique calls of a profile, by their ids, without what differs between two runs.

    An export does not know the modules outside of layers, and makes the calls of a run while a CUDA
    graph is captured, too.
    """
    lines = (run / "operator_calls.jsonl").read_text().splitlines()
    differing = {"total_us": 0, "steps_in_modules": {}, "graph": None}
    return {one.pop("id"): one | differing for one in map(json.loads, lines) if one["steps"]}


def replay(run: Path, *options: str) -> int:
    """The exit status of a replay where the host stands in for a GPU."""
    return main(["replay", str(run), "--gpu-device", "emulated", *options])


def report_of(run: Path) -> Any:
    """That of a replay."""
    return json.loads((run / "results-emulated/gpu_energy_report.json").read_text())


def test_the_record_of_an_export_is_read_as_it_was_written(tmp_path):
    assert read_record(encode(RECORD).decode(), tmp_path) == RECORD
    assert RECORD.prompt.tokens == 8
    assert replace(RECORD, vocabulary=0).prompt.tokens == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (encode(replace(RECORD, schema_version=2)).decode(), "is 2, but this gpuenergy reads 1"),
        ('{"schema_version": 1}', "is damaged ("),
        ('{"schema_version"', "is damaged ("),
    ],
)
def test_a_record_of_another_form_gets_one_sentence(text, said):
    with pytest.raises(InputError) as caught:
        read_record(text, Path("model.pt"))
    assert said in str(caught.value)
    assert "export the model again" in str(caught.value)


@pytest.mark.parametrize("option", [("--dtype", "float32"), ("--attention", "eager")])
def test_an_exported_file_keeps_its_type_and_attention(tmp_path, capsys, option):
    file = tmp_path / "model.pt"
    file.touch()
    assert profile(str(file), tmp_path / "run", *option) == 2
    assert "leave out --dtype and --attention" in capsys.readouterr().err


def test_an_exported_file_is_not_exported_again(tmp_path, capsys):
    file = tmp_path / "model.pt"
    file.touch()
    assert profile(str(file), tmp_path / "run", "--export", str(tmp_path / "other.pt")) == 2
    assert "is an exported file already: copy it" in capsys.readouterr().err


def test_what_cannot_be_written_is_refused_before_the_model_runs(tmp_path, capsys):
    run = tmp_path / "run"
    assert profile("bloom-560m", run, "--export", str(tmp_path)) != 0
    assert "it is a folder" in capsys.readouterr().err
    assert not run.exists()


def test_an_emulated_gpu_replays_no_export(capsys):
    assert replay(BLOOM, "--export", "bloom.pt") == 2
    assert "leave out --export" in capsys.readouterr().err


def test_an_export_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        replay_source(read_profile(BLOOM), str(tmp_path / "bloom.pt"))


@pytest.fixture(scope="module")
def models(
    transformers: None,  # noqa: ARG001 -- it skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """A folder with a model of a kind, its profile ``run``, and its export ``model.pt``."""

    @cache
    def made(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        model = model_folder(folder / "model", kind)
        export = ("--export", str(folder / "model.pt"))
        assert profile(model, folder / "run", *SMALL, *export) == 0
        return folder

    return made


@pytest.mark.torch
@pytest.mark.usefixtures("transformers")
class TestWithPyTorch:
    """Needs PyTorch and transformers, and no GPU."""

    @pytest.fixture(params=["bloom", "llama"])
    def both(
        self, models: Callable[[str], Path], request: pytest.FixtureRequest, tmp_path: Path
    ) -> tuple[Path, Path]:
        """A profile and an export of each kind, which a test may change."""
        return self._copied(models(request.param), tmp_path)

    @pytest.fixture
    def exported(self, models: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path]:
        """The folder of a profile, and the exported file, which a test may change."""
        return self._copied(models("bloom"), tmp_path)

    def _copied(self, folder: Path, target: Path) -> tuple[Path, Path]:
        shutil.copytree(folder, target, dirs_exist_ok=True)
        run, file = target / "run", target / "model.pt"
        write_profile(replace(read_profile(run), export=str(file)), run)
        return run, file

    @pytest.mark.slow
    def test_an_exported_model_makes_the_calls_of_the_model(self, both, tmp_path, monkeypatch):
        run, file = both
        monkeypatch.setitem(sys.modules, "transformers", None)
        again = tmp_path / "again"
        assert profile(str(file), again) == 0
        assert calls_of(again) == calls_of(run)
        first, second = (json.loads((one / "profile.json").read_text()) for one in (run, again))
        assert first.pop("export") == str(file)
        assert second.pop("graph_differs") <= first.pop("graph_differs")
        assert (first.pop("modules") != [], second.pop("modules")) == (True, [])
        assert second == {**first, "model": str(file), "export": ""}

    @pytest.mark.slow
    def test_an_exported_model_computes_what_the_model_computes(self, both):
        import torch

        from pytest_gpuenergy.replay import Prompt, load_program

        run, file = both
        prompt = Prompt(8, 6, 1, 3)
        names = (str(run.parent / "model"), str(file))
        found = []
        for name in names:
            program = load_program(name, dtype="float32", attention="auto", seed=0, device="cpu")
            with torch.inference_mode():
                inputs = program.inputs(prompt, "cpu")
                found.append([program.step(inputs, number)() for number in range(6)])
        assert all(map(torch.equal, *found))

    @pytest.mark.slow
    def test_the_summary_counts_the_calls_that_are_the_same(self, tmp_path, monkeypatch, capsys):
        module = write_module(tmp_path, monkeypatch, FUNCTIONS)
        name, file = f"{module}:compute", str(tmp_path / "net.pt")
        assert profile(name, tmp_path / "run", "--export", file) == 0
        assert "7 of 7 calls of operators are those of the model" in capsys.readouterr().out
        assert profile(name, tmp_path / "run", "--export", file, "--json") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["export"] == {"file": file, "calls": 7, "same_calls": 7}

    @pytest.mark.slow
    @pytest.mark.parametrize("step", [0, 2])
    def test_the_layers_of_an_export_do_what_those_of_the_model_do(self, both, step):
        import torch

        from pytest_gpuenergy.replay import CallRecorder, Prompt, capture_step, load_program

        run, file = both
        programs = [
            load_program(str(path), dtype="float32", attention="auto", seed=0, device="cpu")
            for path in (run.parent / "model", file)
        ]
        recorders = [CallRecorder(program.modules) for program in programs]
        model, export = programs
        ends: list[int] = []

        def note(*_: object) -> None:
            ends.append(len(recorders[0].forms))

        for layer in model.layers:
            layer.register_forward_pre_hook(note)
            layer.register_forward_hook(note)
        with torch.inference_mode():
            whole = model.step(model.inputs(Prompt(8, 4), "cpu"), step)
            ends.clear()
            with recorders[0]:
                whole()
            _, levels = capture_step(export, export.inputs(Prompt(8, 4), "cpu"), step)
            with recorders[1]:
                levels["layers"][0]()
        calls = [[(one.operator, one.arguments) for one in each.forms] for each in recorders]
        of_layers = [
            call
            for begin, end in zip(ends[::2], ends[1::2], strict=True)
            for call in calls[0][begin:end]
        ]
        assert of_layers
        assert calls[1] == of_layers

    @pytest.mark.slow
    def test_a_prompt_of_one_token_is_exported(self, tmp_path):
        model, file = model_folder(tmp_path / "model", "llama"), tmp_path / "model.pt"
        run, again = tmp_path / "run", tmp_path / "again"
        small = ("--prompt-tokens", "1", "--new-tokens", "2", "--dtype", "float32")
        assert profile(model, run, *small, "--batch", "3", "--export", str(file)) == 0
        assert profile(str(file), again) == 0
        assert calls_of(again) == calls_of(run)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--batch", "2"), "was exported for a batch of 1 and 8 tokens, not for 2 and 8"),
            (("--prompt-tokens", "9"), "a batch of 1 and 8 tokens, not for 1 and 9"),
        ],
    )
    def test_an_export_for_another_prompt_is_refused(
        self, exported, tmp_path, capsys, options, said
    ):
        assert profile(str(exported[1]), tmp_path / "again", *options) == 2
        assert said in capsys.readouterr().err

    @pytest.mark.slow
    def test_an_exported_model_runs_on_another_device(self, exported):
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves, tree_map_only

        from pytest_gpuenergy.replay import Export, exported_program

        content = torch.load(exported[1])
        moved = tree_map_only(torch.Tensor, lambda one: one.to("meta"), content)
        export = Export(
            read_record(content["gpuenergy_export"], exported[1]),
            {name: bytes(one.numpy()) for name, one in content["programs"].items()},
            moved["weights"],
            moved["constants"],
        )
        program = exported_program(export, "model.pt", "meta")
        inputs = program.inputs(program.prompt, "meta")
        devices = set()

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, _: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                returned = func(*args, **(kwargs or {}))
                found = [one for one in tree_leaves(returned) if isinstance(one, torch.Tensor)]
                devices.update(one.device.type for one in found)
                return returned

        with Watch():
            program.step(inputs, 2)()
        assert devices == {"meta"}

    @pytest.mark.slow
    def test_a_profile_of_another_prompt_is_not_replayed_from_an_export(
        self, exported, monkeypatch, capsys
    ):
        run, file = exported
        write_profile(replace(read_profile(run), prompt_tokens=9), run)
        host_stands_in(monkeypatch)
        assert replay(run, "--export", str(file)) == 2
        assert "a batch of 1 and 8 tokens, not for 1 and 9" in capsys.readouterr().err

    @pytest.mark.slow
    def test_an_export_of_a_prefill_has_no_decode_steps(self, tmp_path, capsys):
        model, file = model_folder(tmp_path / "model", "bloom"), tmp_path / "model.pt"
        small = (*SMALL, "--new-tokens", "1")
        assert profile(model, tmp_path / "run", *small, "--export", str(file)) == 0
        assert profile(str(file), tmp_path / "again") == 0
        assert profile(str(file), tmp_path / "again", "--new-tokens", "2") == 2
        assert "without decode steps: export the model" in capsys.readouterr().err

    @pytest.mark.slow
    def test_an_export_is_replayed_in_a_process_without_transformers(self, exported, tmp_path):
        code = "import sys; sys.modules['transformers'] = None; import pytest_gpuenergy.cli as c; "
        code += "sys.exit(c.main(sys.argv[1:]))"
        options = ["--gpu-device", "cpu", "--out", str(tmp_path / "again")]
        command = [sys.executable, "-c", code, "profile", str(exported[1]), *options]
        subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
        assert calls_of(tmp_path / "again") == calls_of(exported[0])

    @pytest.mark.slow
    @pytest.mark.parametrize("told", [True, False])
    def test_a_profile_is_replayed_from_its_export(self, exported, monkeypatch, capsys, *, told):
        run, file = exported
        measured = host_stands_in(monkeypatch)
        options = ("--export", str(file)) if told else ()
        if not told:
            monkeypatch.setitem(sys.modules, "transformers", None)
        assert replay(run, "--step", "3", *options) == 0
        assert f"is replayed from {file}" in capsys.readouterr().err
        report = report_of(run)
        assert report["missing"] == {}
        assert report["run"]["options"]["export"] == str(file)
        assert {f"step{step}-layers" for step in (0, 3)} < set(measured)
        assert all(one["coverage"] == 1.0 for one in report["accounts"])

    @pytest.mark.slow
    def test_a_profile_of_an_export_is_replayed(self, exported, tmp_path, monkeypatch):
        again = tmp_path / "again"
        assert profile(str(exported[1]), again) == 0
        host_stands_in(monkeypatch)
        monkeypatch.setitem(sys.modules, "transformers", None)
        assert replay(again) == 0
        report = report_of(again)
        assert report["missing"] == {}
        found = {(one["step"], one["level"]) for one in report["accounts"]}
        assert found == {(step, how) for step in (0, 1) for how in ("graph", "eager", "layers")}

    def test_without_transformers_and_export_one_sentence_says_what_is_missing(
        self, exported, monkeypatch, capsys
    ):
        run, file = exported
        file.unlink()
        host_stands_in(monkeypatch)
        monkeypatch.setitem(sys.modules, "transformers", None)
        assert replay(run) == 2
        assert "needs transformers: pip install" in capsys.readouterr().err

    @pytest.mark.parametrize("how", ["cut", "empty", "text", "another", "newer", "damaged"])
    def test_a_file_that_is_no_export_gets_one_sentence(self, exported, tmp_path, capfd, how):
        import torch

        file = exported[1]
        whole = file.read_bytes()
        content = torch.load(file)
        if how == "newer":
            content["gpuenergy_export"] = encode(replace(RECORD, schema_version=2)).decode()
        elif how == "damaged":
            content["programs"]["prefill"] = content["programs"]["prefill"][:1000]
        elif how == "another":
            content = {"weight": torch.ones(3)}
        if how in ("cut", "empty", "text"):
            changed = {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"no export\n"}
            file.write_bytes(changed[how])
        else:
            torch.save(content, file)
        capfd.readouterr()
        assert profile(str(file), tmp_path / "again") == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1
        assert "export the model again" in err

    @pytest.mark.slow
    def test_a_model_that_cannot_be_exported_is_profiled(self, tmp_path, capsys):
        model, file = model_folder(tmp_path / "model", "mistral"), tmp_path / "model.pt"
        assert profile(model, tmp_path / "run", *SMALL, "--export", str(file)) == 2
        err = capsys.readouterr().err
        assert "cannot export it (its cache of keys and values changes in more than its" in err
        assert not file.exists()
        assert read_profile(tmp_path / "run").export == ""
        assert calls_of(tmp_path / "run")

    def test_a_function_is_exported_with_its_layers(self, tmp_path, monkeypatch):
        module = write_module(tmp_path, monkeypatch, FUNCTIONS)
        run, file, again = tmp_path / "run", tmp_path / "net.pt", tmp_path / "again"
        assert profile(f"{module}:compute", run, "--export", str(file)) == 0
        monkeypatch.delitem(sys.modules, module)
        (tmp_path / f"{module}.py").unlink()
        assert profile(str(file), again) == 0
        assert calls_of(again) == calls_of(run)
        assert read_profile(again).layers == 3
        host_stands_in(monkeypatch)
        assert replay(run, "--export", str(file)) == 0
        assert report_of(run)["missing"] == {}

    def test_a_function_that_depends_on_values_gets_one_sentence(
        self, tmp_path, monkeypatch, capfd
    ):
        module = write_module(tmp_path, monkeypatch, FUNCTIONS)
        run, file = tmp_path / "run", tmp_path / "net.pt"
        capfd.readouterr()
        assert profile(f"{module}:undecided", run, "--export", str(file)) == 2
        lines = capfd.readouterr().err.splitlines()
        (line,) = [one for one in lines if one.startswith("gpuenergy: error: ")]
        assert f"{module}:undecided was profiled, but PyTorch cannot export it (" in line
        assert calls_of(run)
        assert not file.exists()

    @pytest.mark.parametrize(
        "error", [RuntimeError("unexpected pos 64 vs 0"), OSError(28, "No space left on device")]
    )
    def test_a_full_disk_leaves_the_profile_and_no_half_file(
        self, tmp_path, monkeypatch, capsys, error
    ):
        import torch

        plain = torch.save

        def save(content: object, file: Any, **options: Any) -> None:
            if isinstance(file, io.BytesIO):  # a part of the export, in memory
                return plain(content, file, **options)
            file.write(b"half")
            raise error

        module = write_module(tmp_path, monkeypatch, FUNCTIONS)
        monkeypatch.setattr(torch, "save", save)
        run, folder = tmp_path / "run", tmp_path / "exports"
        file = folder / "net.pt"
        assert profile(f"{module}:compute", run, "--export", str(file)) == 2
        assert f"The export {file} cannot be written (" in capsys.readouterr().err
        assert calls_of(run)
        assert not list(folder.iterdir())

    def test_a_replay_says_why_it_has_no_layers(self, tmp_path, monkeypatch):
        text = "import torch\nvalue = torch.ones(4)\ndef compute():\n    return value + 1\n"
        module = write_module(tmp_path, monkeypatch, text)
        run, file = tmp_path / "run", tmp_path / "plain.pt"
        assert profile(f"{module}:compute", run, "--export", str(file)) == 0
        host_stands_in(monkeypatch)
        assert replay(run, "--export", str(file)) == 0
        assert report_of(run)["missing"] == {
            "step0-layers": "no layers of the model are known",
        }
