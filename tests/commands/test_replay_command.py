"""`gpuenergy replay` as a user calls it, without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace
from recorded_profile import copy_bloom

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.engine.harness import Harness
from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.infos import KernelInfo
from pytest_gpuenergy.replay.plan import planner_for
from pytest_gpuenergy.replay.recorded import argument_bytes
from pytest_gpuenergy.support.errors import InputError

CONFIG = {"model_type": "bloom", "vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}
SCHEMA = Path(__file__).parents[2] / "docs/reference/replay.schema.json"
TWO_PRODUCTS = """
import torch

layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
value = torch.ones(4, 8)


def compute():
    return layers[1](layers[0](value))
"""
SMALL = ("--prompt-tokens", "8", "--new-tokens", "3", "--dtype", "float32")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A copy of the replay of BLOOM-560M on an H200."""
    return copy_bloom(tmp_path / "bloom")


def replayed(line: Any) -> str:
    """The key of what a line of measurements.jsonl is of."""
    return str(line["workload"]["parameters"]["replays"])


def emulated(run: Path, *options: str) -> tuple[int, Any]:
    """The exit status of a replay on an emulated H200, and its report."""
    status = main(["replay", str(run), "--gpu-device", "emulated:h200", *options])
    path = run / "results-emulated/gpu_energy_report.json"
    return status, json.loads(path.read_text()) if path.is_file() else None


def replay(run: Path, *options: str) -> int:
    """The exit status of a replay of a model itself, where `measured` stands in for a GPU."""
    return main(["replay", str(run), "--gpu-device", "emulated", *options])


def test_without_pytorch_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    card: Any = SimpleNamespace(name="NVIDIA H200", ordinal=0)
    with pytest.raises(InputError, match=r"needs torch: pip install 'pytest-gpuenergy\[replay\]'"):
        planner_for(card, tmp_path, "model")


class TestRecordedFigures:
    """Replayed on the emulated GPU, without PyTorch."""

    def test_the_calls_take_the_recorded_time_and_energy(self, recorded: Path) -> None:
        lines = (recorded / "results/measurements.jsonl").read_text().splitlines()
        figures = {replayed(one): one for one in map(json.loads, lines)}
        status, report = emulated(recorded)
        assert status == 0
        assert len(report["measurements"]) == len(figures) == 82
        for one in report["measurements"]:
            found = figures[replayed(one)]
            assert one["time_ms"] == pytest.approx(found["time_ms"], rel=0.01)
            assert one["energy_mj"] == pytest.approx(found["energy_mj"], rel=0.05)

    def test_the_recording_stays_as_it_is(self, recorded: Path) -> None:
        path = recorded / "results/measurements.jsonl"
        before = path.read_bytes()
        assert emulated(recorded)[0] == 0
        assert path.read_bytes() == before

    def test_all_output_is_called_emulated(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, report = emulated(recorded)
        assert report["run"]["emulated"]
        assert "on NVIDIA H200 (emulated)" in capsys.readouterr().out

    def test_the_accounts_of_whole_steps_cover_all_calls(self, recorded: Path) -> None:
        _, report = emulated(recorded)
        found = {(one["step"], one["level"]): one for one in report["accounts"]}
        levels = ("graph", "eager", "layers")
        assert found.keys() == {(step, level) for step in (0, 1) for level in levels}
        assert all(one["coverage"] == 1.0 for one in found.values())
        assert found[0, "graph"]["tokens"] == 1024
        assert found[1, "graph"]["joules_per_token"] == pytest.approx(0.558, rel=0.05)

    def test_what_is_not_recorded_counts_as_missing(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = recorded / "results/measurements.jsonl"
        first, *others = path.read_text().splitlines()
        path.write_text("\n".join(others))
        _, report = emulated(recorded)
        label = replayed(json.loads(first))
        assert report["missing"][label] == "no figures of it are recorded"
        assert "no figures of it are recorded" in capsys.readouterr().out

    def test_a_call_that_the_limit_holds_back_alone_is_measured_with_gaps(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        held_back = "c15f2f3c2fe37"
        path = recorded / "results/measurements.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        gap = next(one for one in lines if replayed(one) == held_back)
        gap = msgspec.json.decode(msgspec.json.encode(gap))
        gap["workload"]["parameters"] = {"replays": "gap", "cache": "model"}
        gap |= {"time_ms": 0.02, "power_w": 120.0, "energy_mj": 2.4, "raw_energy_mj": 2.4}
        pair = msgspec.json.decode(msgspec.json.encode(gap))
        pair["workload"]["parameters"] |= {"replays": f"{held_back}-spaced", "gaps": 60, "turns": 1}
        pair |= {"time_ms": 1.94, "power_w": 410.0, "energy_mj": 795.4, "raw_energy_mj": 795.4}
        path.write_text("\n".join(map(json.dumps, [*lines, gap, pair])))
        _, report = emulated(recorded)
        prefill = next(one for one in report["accounts"] if one["step"] == 0)
        assert held_back in prefill["spaced"]
        assert held_back not in prefill["limited"]
        part = next(one for one in prefill["parts"] if one["call"] == held_back)
        assert part["time_ms"] == pytest.approx(0.74, rel=0.01)
        assert part["energy_mj"] == pytest.approx(795.4 - 60 * 2.4, rel=0.02)
        assert "with gaps between" in capsys.readouterr().out

    def test_several_power_limits_make_a_table(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status, report = emulated(recorded, "--powercap", "300W,700W")
        assert status == 0
        assert {one["cap"] for one in report["accounts"]} == {"300W", "700W"}
        steps = {(one["step"], one["cap"]): one for one in report["accounts"]}
        assert steps[0, "300W"]["energy_mj"] < steps[0, "700W"]["energy_mj"]
        assert sum(one["saved_mj"] for one in report["savings"]) > 0
        assert "each call under the limit that suits it best" in capsys.readouterr().out

    def test_after_an_interrupt_resume_measures_what_is_left(
        self, recorded: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, labels = Harness.measure_callable, []

        def counted(self: Harness, repeater: Any, workload: Any, subject: Any, kind: str) -> Any:
            if len(labels) == 9:
                raise KeyboardInterrupt
            labels.append(str(workload.parameters["replays"]))
            return plain(self, repeater, workload, subject, kind)

        with monkeypatch.context() as patched:
            patched.setattr(Harness, "measure_callable", counted)
            assert emulated(recorded)[0] != 0
        results = recorded / "results-emulated/measurements.jsonl"
        begun = results.read_text()
        assert len(begun.splitlines()) == 9
        with results.open("a") as file:
            file.write('{"node_id": "half a li')
        assert emulated(recorded, "--resume")[0] == 0
        assert results.read_text().startswith(begun)
        assert len(results.read_text().splitlines()) == 82

    def test_figures_of_another_cache_are_not_used(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert emulated(recorded, "--cache", "cold") == (2, None)
        assert "has none with --cache cold" in capsys.readouterr().err

    def test_another_card_is_refused(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["replay", str(recorded), "--gpu-device", "emulated:a100"]) == 2
        assert "are those of NVIDIA H200, and" in capsys.readouterr().err

    def test_an_unknown_kernel_is_refused(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert emulated(recorded, "--kernels", "c0ffee") == (2, None)
        assert "have no kernel 'c0ffee': give ids from" in capsys.readouterr().err

    def test_only_the_chosen_calls_are_replayed(self, recorded: Path) -> None:
        first = json.loads((recorded / "operator_calls.jsonl").read_text().splitlines()[0])
        _, report = emulated(recorded, "--kernels", first["id"])
        assert "it was not chosen" in report["missing"].values()
        assert len(report["measurements"]) == 7
        assert any(one["coverage"] < 1.0 for one in report["accounts"])

    def test_a_limit_outside_the_cards_range_is_refused_before_anything_is_measured(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert emulated(recorded, "--powercap", "900W") == (2, None)
        assert "900" in capsys.readouterr().err

    def test_the_page_has_the_accounts_beside_the_measurements(
        self, recorded: Path, tmp_path: Path
    ) -> None:
        page = tmp_path / "page.html"
        _, report = emulated(recorded, "--powercap", "300W,700W", "--html", str(page))
        text = page.read_text()
        data = json.loads(text.partition('id="report-data">')[2].partition("</script>")[0])
        assert len(data["rows"]) == 164
        assert data["emulated"]
        accounts = data["replay"]["accounts"]
        assert len({(one["step"], one["level"], one["cap"]) for one in accounts}) == 2 * 3 * 2
        assert data["replay"]["savings"] == report["savings"]

    def test_the_results_are_a_run(self, recorded: Path, tmp_path: Path) -> None:
        _, found = emulated(recorded)
        path = tmp_path / "merged.json"
        assert main(["report", str(recorded / "results-emulated"), "--json", str(path)]) == 0
        assert json.loads(path.read_text())["measurements"] == found["measurements"]

    def test_the_report_is_valid_by_the_published_schema(
        self, recorded: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "schema.json"
        assert main(["replay", "--schema", str(path)]) == 0
        assert path.read_text() == SCHEMA.read_text(), f"gpuenergy replay --schema {SCHEMA}"
        validator = jsonschema.Draft202012Validator(json.loads(path.read_text()))
        _, report = emulated(recorded, "--powercap", "300W,700W")
        validator.validate(report)
        assert not validator.is_valid(report | {"accounts": [{}]})

    def test_no_folder_is_told_in_one_sentence(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["replay"]) == 2
        assert "Name the folder that gpuenergy profile has written" in capsys.readouterr().err

    def test_json_is_the_report(self, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, report = emulated(recorded, "--json")
        assert json.loads(capsys.readouterr().out) == report

    @pytest.mark.parametrize(
        ("name", "content", "sentence"),
        [
            ("profile.json", None, "has no profile.json: name one that gpuenergy profile has"),
            ("profile.json", b"{}", "is damaged"),
            ("operator_calls.jsonl", None, "has no operator_calls.jsonl"),
            ("operator_calls.jsonl", b"garbage", "Line 1 of"),
            ("results/measurements.jsonl", None, "has none with --cache model"),
            ("results/measurements.jsonl", b"\x00garbage", "has none with --cache model"),
        ],
    )
    def test_a_damaged_run_gives_one_sentence(
        self,
        recorded: Path,
        capsys: pytest.CaptureFixture[str],
        name: str,
        content: bytes | None,
        sentence: str,
    ) -> None:
        if content is None:
            (recorded / name).unlink()
        else:
            (recorded / name).write_bytes(content)
        assert emulated(recorded) == (2, None)
        assert sentence in capsys.readouterr().err

    def test_a_step_that_was_not_profiled_is_refused(
        self, recorded: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert emulated(recorded, "--step", "2") == (2, None)
        assert "has no decode step 2: give 1 to 1" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "size"),
        [
            ([{"shape": [2, 3], "dtype": "float16"}], 12),
            ([{"shape": [4], "dtype": "bool"}, {"shape": [], "dtype": "bfloat16"}], 6),
            ({"list": [{"shape": [2], "dtype": "complex64"}], "scalar": 7}, 16),
            ([{"shape": [8], "dtype": "float8_e4m3fn"}], 8),
        ],
    )
    def test_arguments_have_the_size_of_their_tensors(self, arguments: Any, size: int) -> None:
        assert argument_bytes(arguments) == size


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a profile on the host."""
    pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("transformers", reason="needs transformers")
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run = folder / "run"
    assert main(["profile", str(folder), *SMALL, "--gpu-device", "cpu", "--out", str(run)]) == 0
    return run


def _prefill_first(path: Path) -> list[Any]:
    """The unique calls of a file; those of the prefill come first."""
    calls = map(json.loads, path.read_text().splitlines())
    return sorted(calls, key=lambda one: "0" not in one["steps"])


@pytest.mark.torch
class TestWithPyTorch:
    """Needs PyTorch and transformers, and no GPU."""

    @pytest.fixture(autouse=True)
    def packages(self) -> None:
        pytest.importorskip("torch", reason="needs PyTorch")
        pytest.importorskip("transformers", reason="needs transformers")

    @pytest.fixture
    def run(self, profile: Path, tmp_path: Path) -> Path:
        """A copy of the profile that a test may change."""
        for path in profile.iterdir():
            if path.is_file():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        return tmp_path

    @pytest.fixture
    def measured(self, packages: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: ARG002
        """Lets the host stand in for a GPU; the labels of what has been measured."""
        import torch.cuda

        from pytest_gpuenergy.devices.cuda import graphs
        from pytest_gpuenergy.replay import live, plan
        from pytest_gpuenergy.replay.launches import host_operators

        labels: list[str] = []

        def measure(self: Harness, repeater: Any, workload: Any, subject: Any, kind: str) -> Any:
            with repeater():
                labels.append(str(workload.parameters["replays"]))
            draft = self._draft(subject, KernelInfo(subject.label, "", kind), workload)
            draft = replace(draft, time_ms=1.0, energy_mj=2.0, raw_energy_mj=2.0, edp_mj_ms=2.0)
            draft = replace(draft, power_w=2.0, gflops=0.0, gflops_per_w=0.0)
            return replace(draft, energy_mj_ci95=Interval(1.9, 2.1))

        def repeat(turns: Any, multiple: int, **_options: object) -> Any:
            for _ in range(multiple):
                turns[0]()
            return SimpleNamespace(start=lambda: None, stop=lambda: None)

        def planner(_device: object, _folder: Path, cache: Any) -> plan.Planner:
            return live.live_planner("cpu", cache)

        monkeypatch.setattr(plan, "planner_for", planner)
        monkeypatch.setattr(graphs, "GraphRepeater", repeat)
        monkeypatch.setattr(Harness, "measure_callable", measure)
        monkeypatch.setattr(live, "launches", host_operators)
        l2 = SimpleNamespace(L2_cache_size=1000)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: l2)
        return labels

    @pytest.mark.parametrize("cache", ["model", "hot", "cold"])
    def test_every_call_of_both_steps_is_measured_once(
        self, run: Path, measured: list[str], cache: str
    ) -> None:
        assert replay(run, "--cache", cache) == 0
        calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        expected = {one["id"] for one in calls if {"0", "1"} & set(one["steps"])}
        levels = {
            f"step{step}-{level}" for step in (0, 1) for level in ("graph", "eager", "layers")
        }
        assert len(measured) == len(set(measured))
        assert set(measured) == expected | levels

    def test_the_report_has_an_account_of_each_step_and_level(
        self, run: Path, measured: list[str]
    ) -> None:
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        found = {(one["step"], one["level"]) for one in report["accounts"]}
        assert found == {(step, how) for step in (0, 1) for how in ("graph", "eager", "layers")}
        assert all(one["coverage"] == 1.0 for one in report["accounts"])
        assert report["missing"] == {}
        assert len(report["measurements"]) == len(measured)

    def test_all_layers_are_measured_together(self, run: Path, measured: list[str]) -> None:
        assert replay(run) == 0
        assert "step0-layers" in measured
        lines = (run / "results-emulated/measurements.jsonl").read_text().splitlines()
        found = {replayed(one): one for one in map(json.loads, lines)}
        assert found["step0-layers"]["workload"]["name"].endswith("-prefill-layers")

    def test_after_an_interrupt_resume_measures_what_is_left(
        self, run: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = Harness.measure_callable

        def interrupted(*args: Any) -> Any:
            if len(measured) == 9:
                raise KeyboardInterrupt
            return plain(*args)

        with monkeypatch.context() as patched:
            patched.setattr(Harness, "measure_callable", interrupted)
            assert replay(run) != 0
        results = run / "results-emulated/measurements.jsonl"
        assert len(results.read_text().splitlines()) == 9
        with results.open("a") as file:
            file.write('{"node_id": "half a li')
        assert replay(run, "--resume") == 0
        assert len(measured) == len(set(measured))

    @pytest.mark.parametrize("by_kernel", [False, True])
    def test_only_the_chosen_calls_are_replayed(
        self, run: Path, measured: list[str], *, by_kernel: bool
    ) -> None:
        first = _prefill_first(run / "operator_calls.jsonl")[0]
        name = first["launches"][0]["kernel"] if by_kernel else first["id"]
        assert replay(run, "--kernels", name) == 0
        assert first["id"] in measured
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert "it was not chosen" in report["missing"].values()
        assert all(one["coverage"] < 1.0 for one in report["accounts"] if one["level"] == "graph")

    def test_an_unknown_kernel_is_refused(
        self, run: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert replay(run, "--kernels", "c0ffee") == 2
        assert "have no kernel 'c0ffee': give ids from" in capsys.readouterr().err
        assert not measured

    def test_without_resume_all_is_measured_again(self, run: Path, measured: list[str]) -> None:
        assert replay(run) == replay(run) == 0
        assert len(measured) == 2 * len(set(measured))

    def test_figures_of_another_cache_are_not_kept(self, run: Path, measured: list[str]) -> None:
        assert replay(run, "--cache", "hot") == 0
        before = len(measured)
        assert replay(run, "--cache", "cold", "--resume") == 0
        assert len(measured) == 2 * before

    def test_a_model_that_runs_differently_now_counts_as_missing(
        self, run: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = run / "operator_calls.jsonl"
        first, *others = _prefill_first(path)
        first["operator"] = "aten.other.default"
        path.write_text("".join(json.dumps(one) + "\n" for one in (first, *others)))
        assert replay(run) == 0
        assert first["id"] not in measured
        assert f"{first['id']}: the model makes another call" in capsys.readouterr().out
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert any(first["id"] in one["missing"] for one in report["accounts"])

    def test_a_call_that_launches_another_kernel_alone_counts_as_missing(
        self, run: Path, measured: list[str]
    ) -> None:
        path = run / "operator_calls.jsonl"
        first, *others = _prefill_first(path)
        first["launches"][0]["name"] = "another"
        path.write_text("".join(json.dumps(one) + "\n" for one in (first, *others)))
        assert replay(run) == 0
        assert first["id"] not in measured
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert report["missing"][first["id"]].startswith("alone it launches")

    def test_a_call_that_fails_alone_costs_itself_only(
        self, run: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = Harness.measure_callable  # that of `measured`

        def failing(self: Harness, repeater: Any, workload: Any, subject: Any, kind: str) -> Any:
            if workload.parameters["replays"] == "step0-graph":
                raise RuntimeError("operation not permitted when stream is capturing")
            return plain(self, repeater, workload, subject, kind)

        monkeypatch.setattr(Harness, "measure_callable", failing)
        assert replay(run) == 0
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert "not permitted" in report["missing"]["step0-graph"]
        assert "step0-eager" in measured
        assert {(one["step"], one["level"]) for one in report["accounts"]} >= {(0, "eager")}

    def test_calls_that_the_limit_holds_back_alone_are_launched_with_gaps(
        self, run: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch.cuda

        plain, gaps = Harness.measure_callable, []
        held_back = _prefill_first(run / "operator_calls.jsonl")[0]["id"]

        def measure(*args: Any) -> Any:
            before = len(gaps)
            found = plain(*args)
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

    def test_arguments_that_do_not_fit_into_memory_get_one_sentence(
        self,
        run: Path,
        measured: list[str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        import torch

        from pytest_gpuenergy.replay import capture

        def copy_of(_: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

        monkeypatch.setattr(capture, "copy_of", copy_of)
        assert replay(run) == 1
        assert "choose fewer with --kernels" in capsys.readouterr().err
        assert not measured

    def test_a_function_is_replayed_like_a_model(
        self,
        tmp_path: Path,
        measured: list[str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "two_products.py").write_text(TWO_PRODUCTS)
        monkeypatch.syspath_prepend(tmp_path)
        run = tmp_path / "run"
        name = "two_products:compute"
        assert main(["profile", name, "--gpu-device", "cpu", "--out", str(run)]) == 0
        assert replay(run) == 0
        assert {"step0-graph", "step0-eager", "step0-layers"} < set(measured)
        report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
        assert all(one["coverage"] == 1.0 for one in report["accounts"])
        assert {one["joules_per_token"] for one in report["accounts"]} == {None}
        assert "call, graph, current" in capsys.readouterr().out

    def test_the_weights_of_each_layer_of_a_function_are_read_in_turn(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "same_products.py").write_text(TWO_PRODUCTS)
        monkeypatch.syspath_prepend(tmp_path)
        name, run = "same_products:compute", tmp_path / "run"
        assert main(["profile", name, "--gpu-device", "cpu", "--out", str(run)]) == 0
        calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
        (product,) = [one for one in calls if one["operator"] == "aten.linear.default"]
        assert (product["calls"], len(product["turns"]), product["layers"]) == (2, 2, [0, 1])
