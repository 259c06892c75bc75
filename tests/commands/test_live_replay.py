"""`gpuenergy replay` of a model itself, for which the host stands in for a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch_programs
from msgspec.structs import replace
from replay_on_host import host_stands_in
from torch_card import REFUSED, capturing, card_stands_in
from torch_programs import TWO_PRODUCTS, model_folder, write_module

from pytest_gpuenergy import devices
from pytest_gpuenergy.cli import main
from pytest_gpuenergy.engine import Harness
from pytest_gpuenergy.replay import read_calls

SPARSE_PRODUCT = """
import torch

sparse, dense = torch.eye(8).to_sparse(), torch.ones(8, 8)


def compute():
    return torch.sparse.mm(sparse, dense) + dense
"""
CAUTIOUS = """
import torch

value = torch.ones(8, 8)
told = []


def compute():
    product = value @ value
    told.append(torch.cuda.is_current_stream_capturing())
    if told[-1]:
        return product.relu() @ value
    return product.exp()
"""
FAILS_IN_GRAPH = """
import torch

value = torch.ones(8, 8)


def compute():
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("it reads a value on the host")
    return value @ value
"""
COPIES_FROM_HOST = """
import torch

value = torch.ones(8).to("card")
numbers = iter(range(1000))


def compute():
    return value + torch.tensor(2.0, device="card")


def count():
    return value + torch.tensor(next(numbers), device="card")
"""
LAYERS = """
import torch


class Layer(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.weight = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, value):
        return value + torch.nn.functional.linear(value.exp(), self.weight).mul(self.scale)


layers, value = torch.nn.ModuleList(map(Layer, (0.5, 0.25, 0.2))), torch.ones(4, 8)


def compute():
    result = value
    for layer in layers:
        result = layer(result)
    return result
"""
CHANGES_IN_PLACE = """
import torch


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(8))

    def forward(self, value):
        return torch.nn.functional.linear(value.mul_(2.0).clamp_(max=64.0), self.weight)


layers, value = torch.nn.ModuleList(Layer() for _ in range(3)), torch.ones(4, 8)


def compute():
    result = value.clone()
    for layer in layers:
        result = layer(result)
    return result
"""
ENCODER = """
import torch

layers = torch.nn.ModuleList(
    torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval() for _ in range(3)
)
value = torch.ones(1, 4, 8)


def compute():
    result = value
    for layer in layers:
        result = layer(result)
    return result
"""
TAKES_FUNCTIONS = """
import torch

value = torch.ones(8, 8)


def compute():
    return torch.cond(value.sum() > 0, torch.sin, torch.cos, (value @ value,))
"""
CALLED_ONCE = """
import torch


class Layer(torch.nn.Module):
    fresh = True

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, value):
        if not self.fresh:
            raise ValueError("it has been called already")
        self.fresh = False
        return torch.nn.functional.linear(value, self.weight)


layers, value = torch.nn.ModuleList(Layer() for _ in range(3)), torch.ones(4, 8)


def compute():
    result = value
    for layer in layers:
        layer.fresh = True
        result = layer(result)
    return result
"""
LEVELS = (
    *("graph", "eager", "layers", "module.transformer.word_embeddings"),
    *("module.transformer.word_embeddings_layernorm", "module.transformer.ln_f", "module.lm_head"),
)
SMALL = ("--prompt-tokens", "8", "--new-tokens", "3", "--dtype", "float32")


def replayed(line: Any) -> str:
    """The key of what a line of measurements.jsonl is of."""
    return str(line["workload"]["parameters"]["replays"])


def replay(run: Path, *options: str) -> int:
    """The exit status of a replay of a model itself, where `measured` stands in for a GPU."""
    return main(["replay", str(run), "--gpu-device", "emulated", *options])


@pytest.fixture(scope="module")
def profile(
    transformers: None,  # noqa: ARG001 -- it skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of a profile on the host."""
    folder = tmp_path_factory.mktemp("model")
    run = folder / "run"
    assert torch_programs.profile(model_folder(folder / "model", "bloom"), run, *SMALL) == 0
    return run


def _prefill_first(path: Path) -> list[Any]:
    """The unique calls of a file; those of the prefill come first."""
    calls = map(json.loads, path.read_text().splitlines())
    return sorted(calls, key=lambda one: "0" not in one["steps"])


@pytest.mark.torch
@pytest.mark.usefixtures("transformers")
class TestWithPyTorch:
    """Needs PyTorch and transformers, and no GPU."""

    @pytest.fixture
    def run(self, profile: Path, tmp_path: Path) -> Path:
        """A copy of the profile that a test may change."""
        for path in profile.iterdir():
            if path.is_file():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        return tmp_path

    @pytest.fixture
    def measured(self, transformers: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: ARG002
        """Lets the host stand in for a GPU; the labels of what has been measured."""
        return host_stands_in(monkeypatch)

    @pytest.mark.parametrize("cache", ["model", "hot", "cold"])
    def test_every_call_of_both_steps_is_measured_once(self, run, measured, cache):
        assert replay(run, "--cache", cache) == 0
        calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        expected = {one["id"] for one in calls if {"0", "1"} & set(one["steps"])}
        all_levels = (*LEVELS, "graph-gaps", "eager-gaps")
        levels = {f"step{step}-{level}" for step in (0, 1) for level in all_levels}
        assert len(measured) == len(set(measured))
        assert {
            key for key in measured if "-layer" not in key or "-layers" in key
        } == expected | levels

    def test_the_report_has_an_account_of_each_step_and_level(self, run, measured):
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        found = {(one["step"], one["level"]) for one in report["accounts"]}
        assert found == {(step, level) for step in (0, 1) for level in LEVELS}
        assert all(one["coverage"] == 1.0 for one in report["accounts"])
        assert report["missing"] == {}
        assert len(report["measurements"]) == len(measured)

    def test_all_layers_are_measured_together(self, run, measured):
        assert replay(run) == 0
        assert "step0-layers" in measured
        lines = (run / "results-emulated/measurements.jsonl").read_text().splitlines()
        found = {replayed(one): one for one in map(json.loads, lines)}
        assert found["step0-layers"]["workload"]["name"].endswith("-prefill-layers")

    def test_calls_can_be_chosen_by_their_kernels(self, run, measured):
        first = _prefill_first(run / "operator_calls.jsonl")[0]
        assert replay(run, "--kernels", first["launches"][0]["kernel"]) == 0
        assert first["id"] in measured
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert "it was not chosen" in report["missing"].values()
        assert all(one["coverage"] < 1.0 for one in report["accounts"] if one["level"] == "graph")

    def test_figures_of_another_cache_are_not_kept(self, run, measured):
        assert replay(run, "--cache", "hot") == 0
        before = len(measured)
        assert replay(run, "--cache", "cold", "--resume") == 0
        assert len(measured) == 2 * before

    def test_a_model_that_runs_differently_now_counts_as_missing(self, run, measured, capsys):
        path = run / "operator_calls.jsonl"
        first, *others = _prefill_first(path)
        first["operator"] = "aten.other.default"
        path.write_text("".join(json.dumps(one) + "\n" for one in (first, *others)))
        assert replay(run) == 0
        assert first["id"] not in measured
        assert f"{first['id']}: the model makes another call" in capsys.readouterr().out
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert any(first["id"] in one["missing"] for one in report["accounts"])

    def test_a_call_that_later_steps_make_in_other_layers_is_replayed(self, run, measured):
        path = run / "operator_calls.jsonl"
        calls = _prefill_first(path)
        shared = next(one for one in calls if {"1", "2"} <= one["steps"].keys())
        shared["turns"].append(1 + max(turn for one in calls for turn in one["turns"]))
        path.write_text("".join(json.dumps(one) + "\n" for one in calls))
        assert replay(run) == 0
        assert shared["id"] in measured

    def test_a_module_that_cannot_be_called_again_costs_itself_only(
        self, tmp_path, measured, monkeypatch
    ):
        name, run = write_module(tmp_path, monkeypatch, CALLED_ONCE), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert report["missing"] == {"step0-layers": "ValueError: it has been called already"}
        assert {"step0-graph", "step0-eager"} < set(measured)

    def test_an_operator_that_takes_functions_is_one_call(self, tmp_path, measured, monkeypatch):
        name, run = write_module(tmp_path, monkeypatch, TAKES_FUNCTIONS), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        assert replay(run) == 0
        calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        (found,) = [one["id"] for one in calls if one["operator"].startswith("cond")]
        assert {found, "step0-graph-gaps"} < set(measured)

    def test_a_program_that_fails_now_gets_one_sentence(
        self, tmp_path, measured, monkeypatch, capsys
    ):
        name, run = write_module(tmp_path, monkeypatch, TWO_PRODUCTS), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        monkeypatch.setattr(sys.modules[name], "layers", ())
        assert replay(run) == 1
        assert f"{name}:compute failed on cpu" in capsys.readouterr().err
        assert not measured

    def test_what_no_operator_launched_counts_as_missing(self, run, measured):
        path = run / "operator_calls.jsonl"
        first, *others = _prefill_first(path)
        outside = {**first, "operator": "none", "arguments": None, "turns": []}
        path.write_text("".join(json.dumps(one) + "\n" for one in (outside, *others)))
        assert replay(run) == 0
        assert first["id"] not in measured
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert report["missing"][first["id"]] == "it was launched outside of PyTorch's operators"
        assert any(first["id"] in one["missing"] for one in report["accounts"])

    def test_a_call_that_launches_another_kernel_alone_counts_as_missing(self, run, measured):
        path = run / "operator_calls.jsonl"
        first, *others = _prefill_first(path)
        first["launches"][0]["name"] = "another"
        path.write_text("".join(json.dumps(one) + "\n" for one in (first, *others)))
        assert replay(run) == 0
        assert first["id"] not in measured
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert report["missing"][first["id"]].startswith("alone it launches")

    def test_a_call_that_fails_alone_costs_itself_only(self, run, measured, monkeypatch):
        plain = Harness.measure_callable  # that of `measured`

        def failing(self: Harness, repeater: Any, workload: Any, *rest: Any, **options: Any) -> Any:
            if workload.parameters["replays"] == "step0-graph":
                raise RuntimeError("operation not permitted when stream is capturing")
            return plain(self, repeater, workload, *rest, **options)

        monkeypatch.setattr(Harness, "measure_callable", failing)
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert "not permitted" in report["missing"]["step0-graph"]
        assert "step0-eager" in measured
        assert {(one["step"], one["level"]) for one in report["accounts"]} >= {(0, "eager")}

    def test_calls_that_the_limit_holds_back_alone_are_launched_with_gaps(
        self, run, measured, monkeypatch
    ):
        import torch.cuda

        plain, gaps = Harness.measure_callable, []
        calls = _prefill_first(run / "operator_calls.jsonl")
        held_back = next(one["id"] for one in calls if not one["steps_in_layers"])

        def measure(*args: Any, **options: Any) -> Any:
            before = len(gaps)
            found = plain(*args, **options)
            key = args[2].parameters["replays"]
            if key == f"{held_back}-spaced":
                turns = args[2].parameters["turns"]
                assert len(gaps) - before == turns * args[2].parameters["gaps"]
            return replace(found, cap_binding=key == held_back)

        monkeypatch.setattr(torch.cuda, "_sleep", gaps.append)
        monkeypatch.setattr(Harness, "measure_callable", measure)
        assert replay(run) == 0
        assert [one for one in measured if one == "gap" or one.endswith("-spaced")] == [
            "gap",
            f"{held_back}-spaced",
        ]

    def test_a_layer_that_the_limit_holds_back_has_the_gaps_of_the_host(
        self, run, measured, monkeypatch
    ):
        plain, gaps = Harness.measure_callable, {}
        launched_ms = sum(call.steps.get(1, 0) * call.call_us for call in read_calls(run)) / 1e3

        def measure(*args: Any, **options: Any) -> Any:
            parameters = args[2].parameters
            gaps[parameters["replays"]] = parameters.get("gaps")
            found = plain(*args, **options)
            # 2 ms of the host's step for each one that the profile's calls have taken.
            is_step = parameters["replays"] == "step1-eager"
            time_ms = 2 * launched_ms if is_step else 1.0
            found = replace(found, time_ms=time_ms, edp_mj_ms=2.0 * time_ms, power_w=2.0 / time_ms)
            return replace(found, cap_binding="layer" in parameters)

        monkeypatch.setattr(Harness, "measure_callable", measure)
        assert replay(run) == 0
        spaced = [key for key in measured if key.endswith("-spaced") and key.startswith("step1")]
        assert spaced
        assert {gaps[key] for key in spaced} == {50}  # of 20 µs each

    def test_arguments_that_do_not_fit_into_memory_get_one_sentence(
        self, run, measured, monkeypatch, capsys
    ):
        import torch

        from pytest_gpuenergy.replay.profile import capture

        def copied_tensor(_: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

        monkeypatch.setattr(capture, "copied_tensor", copied_tensor)
        assert replay(run) == 1
        assert "choose fewer with --kernels" in capsys.readouterr().err
        assert not measured

    @pytest.mark.parametrize("runs", ["1", "3"])
    def test_a_function_is_replayed_like_a_model(
        self, tmp_path, runs, measured, monkeypatch, capsys
    ):
        name, run = write_module(tmp_path, monkeypatch, TWO_PRODUCTS), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run, "--runs", runs) == 0
        assert replay(run) == 0
        assert {"step0-graph", "step0-eager", "step0-layers"} < set(measured)
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert all(one["coverage"] == 1.0 for one in report["accounts"])
        assert {one["joules_per_token"] for one in report["accounts"]} == {None}
        parts = [one["parts"] for one in report["accounts"] if one["level"] == "graph"]
        assert sum(part["calls"] for part in parts[0]) == 2
        assert "call, graph, current" in capsys.readouterr().out

    def test_the_weights_of_each_layer_of_a_function_are_read_in_turn(self, tmp_path, monkeypatch):
        name, run = write_module(tmp_path, monkeypatch, TWO_PRODUCTS), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        (product,) = [one for one in calls if one["operator"] == "aten.linear.default"]
        assert (product["calls"], len(product["turns"]), product["layers"]) == (2, 2, [0, 1])

    @pytest.mark.parametrize("runs", ["1", "2"])
    def test_calls_that_only_a_graph_makes_count_in_its_account(
        self, tmp_path, runs, monkeypatch, capsys
    ):
        told: list[bool] = []
        measured = host_stands_in(monkeypatch, lambda _: told.append(sys.modules[name].told[-1]))
        monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
        name, run = write_module(tmp_path, monkeypatch, CAUTIOUS), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run, "--runs", runs) == 0
        assert (
            "while a CUDA graph is captured, such as aten.matmul.default, aten.relu.default"
            in capsys.readouterr().err
        )
        assert replay(run, "--changes") == 0
        calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        operators = {one["id"]: one["operator"].split(".")[1] for one in calls}
        assert set(operators) < set(measured)
        steps = {key: one for key, one in zip(measured, told, strict=True) if "step" in key}
        steps.pop("step0-eager-gaps")  # empty kernels, which tell nothing
        assert steps == {
            "step0-graph": True,
            "step0-eager": False,
            "step0-graph-gaps": True,
            "step0-graph-from-host": False,
        }
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        counted = {
            one["level"]: {operators[part["call"]]: part["calls"] for part in one["parts"]}
            for one in report["accounts"]
        }
        assert counted == {"graph": {"matmul": 2, "relu": 1}, "eager": {"matmul": 1, "exp": 1}}
        assert all(one["coverage"] == 1.0 for one in report["accounts"])
        (saving,) = report["changes"]
        assert saving["change"]["words"] == "capture the calls that are made from the host"

    @pytest.mark.usefixtures("measured")
    def test_a_graph_that_only_leaves_out_calls_has_windows(self, tmp_path, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
        asks = (
            "    if not torch.cuda.is_current_stream_capturing():\n        result = value.tan()\n"
        )
        text = LAYERS.replace("    result = value\n", f"    result = value\n{asks}")
        name, run = write_module(tmp_path, monkeypatch, text), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        windows = {one["level"]: one["windows"] for one in report["accounts"]}
        assert windows == {key: ["step0-layer0"] for key in ("graph", "eager", "layers")}

    @pytest.mark.usefixtures("measured")
    def test_the_card_is_not_heated_while_calls_are_profiled_alone(self, tmp_path, monkeypatch):
        from pytest_gpuenergy.replay.play import turns

        seen, launches = [], turns.launches

        @contextmanager
        def heating(_: Harness) -> Iterator[None]:
            seen.append("heats")
            yield
            seen.append("has heated")

        def launched(events: Any) -> Any:
            seen.append("profiles calls")
            return launches(events)

        monkeypatch.setattr(Harness, "heating", heating)
        monkeypatch.setattr(turns, "launches", launched)
        name, run = write_module(tmp_path, monkeypatch, TWO_PRODUCTS), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        assert replay(run) == 0
        assert seen[:3] == ["heats", "has heated", "profiles calls"]

    def test_a_trace_is_written_before_another_profiler_begins(self, tmp_path, monkeypatch):
        from pytest_gpuenergy.replay.profile import profiling

        monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
        begin, write, seen = profiling.profiler_on, profiling.write_trace, []

        def profiler_on(device: str) -> Any:
            seen.append("begins")
            return begin(device)

        def write_trace(profiler: Any, path: Path) -> None:
            seen.append("is written")
            write(profiler, path)

        monkeypatch.setattr(profiling, "profiler_on", profiler_on)
        monkeypatch.setattr(profiling, "write_trace", write_trace)
        name = write_module(tmp_path, monkeypatch, CAUTIOUS)
        assert torch_programs.profile(f"{name}:compute", tmp_path / "run") == 0
        assert seen == ["begins", "is written"] * 2

    def test_a_program_that_fails_while_it_is_captured_is_profiled_as_it_runs(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
        name, run = write_module(tmp_path, monkeypatch, FAILS_IN_GRAPH), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        assert json.loads((run / "profile.json").read_text())["graph_differs"] is False

    @pytest.mark.parametrize(
        ("function", "missing"),
        [("compute", set()), ("count", {"step0-graph", "step0-graph-gaps"})],
    )
    def test_a_step_that_copies_from_the_host_has_a_graph_if_it_copies_the_same_each_time(
        self, tmp_path, measured, monkeypatch, function, missing
    ):
        card_stands_in()
        launching = devices.GraphRepeater

        def repeat(turns: Any, *, from_host: bool = False, **options: Any) -> Any:
            turns[0]()
            with nullcontext() if from_host else capturing():
                return launching(turns, **options)

        monkeypatch.setattr(devices, "GraphRepeater", repeat)
        name, run = write_module(tmp_path, monkeypatch, COPIES_FROM_HOST), tmp_path / "run"
        assert torch_programs.profile(f"{name}:{function}", run) == 0
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert report["missing"].pop("step0-layers")
        assert report["missing"].keys() == missing
        assert all(reason.startswith(REFUSED) for reason in report["missing"].values())
        assert {"step0-graph", "step0-graph-gaps", "step0-eager"} - set(measured) == missing

    @pytest.mark.parametrize(("options", "brief"), [((), False), (("--brief",), True)])
    def test_a_call_is_measured_for_as_long_as_its_share_deserves(
        self, run, measured, options, brief, monkeypatch
    ):
        longest_s: dict[str, float] = {}
        stand_in = Harness.measure_callable

        def measure(self: Harness, *args: Any, settings: Any = None, **others: Any) -> Any:
            found = stand_in(self, *args, settings=settings, **others)
            longest_s[measured[-1]] = 5.0 if settings is None else settings.max_measure_s
            return found

        monkeypatch.setattr(Harness, "measure_callable", measure)
        calls = _prefill_first(run / "operator_calls.jsonl")
        large = next(one for one in calls if not one["layers"])
        small = next(one for one in calls if one["layers"])  # it is in a window, too
        for one in calls:  # all others are tiny
            one["total_us"] = 1e-3
            one["steps"] = {"0": 1, "1": 1}
        large["total_us"], small["total_us"] = 1e6 * large["calls"], 2e4 * small["calls"]
        (run / "operator_calls.jsonl").write_text("\n".join(map(json.dumps, calls)))
        assert replay(run, *options) == 0
        found = {one["id"]: longest_s[one["id"]] for one in calls if one["id"] in longest_s}
        assert longest_s["step0-graph"] == found.pop(large["id"]) == (1.0 if brief else 5.0)
        assert longest_s["step1-eager"] == (1.0 if brief else 2.0)
        assert found.pop(small["id"]) == (0.2 if brief else 0.6)
        assert set(found.values()) == {0.2}

    def test_calls_with_sparse_tensors_count_as_missing(self, tmp_path, measured, monkeypatch):
        name, run = write_module(tmp_path, monkeypatch, SPARSE_PRODUCT), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        (missing,) = report["missing"].keys() - {"step0-layers"}
        assert report["missing"][missing].startswith("tensors that are sparse")
        assert missing not in measured
        assert all(0.0 < one["coverage"] < 1.0 for one in report["accounts"])

    def test_layers_that_make_other_calls_with_hooks_are_replayed_as_they_are(
        self, tmp_path, measured, monkeypatch
    ):
        name, run = write_module(tmp_path, monkeypatch, ENCODER), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        (found,) = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        assert found["operator"] == "aten._transformer_encoder_layer_fwd.default"
        assert found["steps_in_layers"] == {"0": 3}
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert report["missing"] == {}
        assert {"step0-layers", found["id"]} < set(measured)

    def test_a_function_needs_no_transformers(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        name, run = write_module(tmp_path, monkeypatch, TWO_PRODUCTS), tmp_path / "run"
        assert torch_programs.profile(f"{name}:compute", run) == 0
        assert torch_programs.profile("bloom-560m", run) != 0


@pytest.mark.torch
def test_successive_calls_of_layers_are_replayed_together(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch")
    name, run = write_module(tmp_path, monkeypatch, LAYERS), tmp_path / "run"
    assert torch_programs.profile(f"{name}:compute", run) == 0
    labels = host_stands_in(monkeypatch)
    assert replay(run) == 0
    layer, *alone = labels[-5:]
    assert layer == "step0-layer0"
    lines = (run / "results-emulated/measurements.jsonl").read_text().splitlines()
    parameters = json.loads(lines[-5])["workload"]["parameters"]
    assert (parameters["step"], parameters["count"]) == (0, 3)
    # Each of them is replayed alone after that, those with most time first.
    calls = [json.loads(line) for line in (run / "operator_calls.jsonl").read_text().splitlines()]
    assert sorted(parameters["calls"].split()) == sorted(alone)
    assert alone == [one["id"] for one in sorted(calls, key=lambda one: -one["total_us"])]
    report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
    graph = next(one for one in report["accounts"] if one["level"] == "graph")
    assert graph["windows"] == ["step0-layer0"]
    # Each measurement takes 1 ms: three windows in place of the four calls of three layers.
    assert graph["neighbours_ms"] == 3 - 3 * 4


@pytest.mark.torch
def test_what_calls_read_and_change_is_restored_before_each_of_them(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    name, run = write_module(tmp_path, monkeypatch, CHANGES_IN_PLACE), tmp_path / "run"
    assert torch_programs.profile(f"{name}:compute", run) == 0
    largest: list[set[float]] = []
    found: dict[str, set[float]] = {}
    labels = host_stands_in(
        monkeypatch, lambda number: found.update({labels[number - 1]: largest[-1]})
    )
    launching = devices.GraphRepeater

    def repeat(turns: Any, **options: Any) -> Any:
        returned = [turns[0]() for _ in range(5)]
        results = [one[-1] if isinstance(one, list) else one for one in returned]
        largest.append({float(one.max()) for one in results if isinstance(one, torch.Tensor)})
        return launching(turns, **options)

    monkeypatch.setattr(devices, "GraphRepeater", repeat)
    assert replay(run) == 0
    calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
    ids = {one["operator"].split(".")[1]: one["id"] for one in calls}
    assert found[ids["mul_"]] == {2.0}  # not 4, 8, 16, ...
    assert found["step0-layer0"] == {4.0}
    restored = {key.removesuffix("-restores") for key in labels if key.endswith("-restores")}
    assert restored == {ids["mul_"], "step0-layer0"}  # a second clamp_ changes nothing
    report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
    graph = next(one for one in report["accounts"] if one["level"] == "graph")
    # Each measurement takes 1 ms, the restores too: nothing is left of three of ten calls, nor of
    # three windows in place of the other six.
    assert (graph["kernels_ms"], graph["neighbours_ms"]) == (7, -6)
