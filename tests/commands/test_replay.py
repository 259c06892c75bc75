"""`gpuenergy replay` as a user calls it, without a GPU: a tiny model, and figures made up."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.engine.harness import Harness
from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.infos import KernelInfo

CONFIG = {"model_type": "bloom", "vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}
SMALL = ("--prompt-tokens", "8", "--new-tokens", "3", "--dtype", "float32")


def test_without_pytorch_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["replay", str(tmp_path)]) == 2
    assert "needs torch: pip install 'pytest-gpuenergy[replay]'" in capsys.readouterr().err


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

    @pytest.fixture
    def run(self, profile: Path, tmp_path: Path) -> Path:
        """A copy of the profile that a test may change."""
        for path in profile.iterdir():
            if path.is_file():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        return tmp_path

    @pytest.fixture
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Lets the host stand in for a GPU; the labels of what has been measured."""
        import torch.cuda

        from pytest_gpuenergy.commands import replay
        from pytest_gpuenergy.devices.cuda import graphs
        from pytest_gpuenergy.devices.select import open_device
        from pytest_gpuenergy.engine.station import Station
        from pytest_gpuenergy.replay import live
        from pytest_gpuenergy.replay.launches import host_operators

        labels: list[str] = []

        def measure(self: Harness, repeater: Any, workload: Any, subject: Any, kind: str) -> Any:
            with repeater():
                labels.append(subject.label)
            draft = self._draft(subject, KernelInfo(subject.label, "", kind), workload)
            draft = replace(draft, time_ms=1.0, energy_mj=2.0, raw_energy_mj=2.0)
            return replace(draft, energy_mj_ci95=Interval(1.9, 2.1))

        def repeat(turns: Any, multiple: int, **_options: object) -> None:
            for _ in range(multiple):
                turns[0]()

        def device(_: str, stack: ExitStack) -> tuple[str, Station]:
            gpu = stack.enter_context(open_device("emulated:h200"))
            return "cpu", stack.enter_context(Station(gpu))

        monkeypatch.setattr(replay, "torch_device", device)
        monkeypatch.setattr(graphs, "GraphRepeater", repeat)
        monkeypatch.setattr(Harness, "measure_callable", measure)
        monkeypatch.setattr(live, "launches", host_operators)
        l2 = SimpleNamespace(L2_cache_size=1000)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: l2)
        return labels

    def test_an_emulated_gpu_is_refused(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["replay", str(run), "--gpu-device", "emulated"]) == 2
        assert "PyTorch's kernels need a real GPU" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("name", "content", "sentence"),
        [
            ("profile.json", None, "has no profile.json: name one that gpuenergy profile has"),
            ("profile.json", b"{}", "is damaged"),
            ("operator_calls.jsonl", None, "has no operator_calls.jsonl"),
            ("operator_calls.jsonl", b"garbage", "Line 1 of"),
        ],
    )
    def test_a_damaged_run_gives_one_sentence(
        self,
        run: Path,
        measured: list[str],
        capsys: pytest.CaptureFixture[str],
        name: str,
        content: bytes | None,
        sentence: str,
    ) -> None:
        if content is None:
            (run / name).unlink()
        else:
            (run / name).write_bytes(content)
        assert main(["replay", str(run)]) == 2
        assert sentence in capsys.readouterr().err
        assert not measured

    def test_a_step_that_was_not_profiled_is_refused(
        self, run: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["replay", str(run), "--step", "3"]) == 2
        assert "has 2 decode steps: give --step 1 to 2" in capsys.readouterr().err
        assert not measured

    @pytest.mark.parametrize("cache", ["model", "hot", "cold"])
    def test_every_call_of_both_steps_is_measured_once(
        self, run: Path, measured: list[str], cache: str
    ) -> None:
        assert main(["replay", str(run), "--cache", cache]) == 0
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
        assert main(["replay", str(run)]) == 0
        report = json.loads((run / "results/gpu_energy_report.json").read_text())
        found = {(one["step"], one["level"]) for one in report["accounts"]}
        assert found == {(step, how) for step in (0, 1) for how in ("graph", "eager", "layers")}
        assert all(one["coverage"] == 1.0 for one in report["accounts"])
        assert report["missing"] == {}
        assert len(report["measurements"]) == len(measured)

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
            assert main(["replay", str(run)]) != 0
        results = run / "results/measurements.jsonl"
        assert len(results.read_text().splitlines()) == 9
        with results.open("a") as file:
            file.write('{"node_id": "half a li')
        assert main(["replay", str(run), "--resume"]) == 0
        assert len(measured) == len(set(measured))

    @pytest.mark.parametrize("by_kernel", [False, True])
    def test_only_the_chosen_calls_are_replayed(
        self, run: Path, measured: list[str], *, by_kernel: bool
    ) -> None:
        first = _prefill_first(run / "operator_calls.jsonl")[0]
        name = first["launches"][0]["kernel"] if by_kernel else first["id"]
        assert main(["replay", str(run), "--kernels", name]) == 0
        assert first["id"] in measured
        report = json.loads((run / "results/gpu_energy_report.json").read_text())
        assert "it was not chosen" in report["missing"].values()
        assert all(one["coverage"] < 1.0 for one in report["accounts"] if one["level"] == "graph")

    def test_an_unknown_kernel_is_refused(
        self, run: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["replay", str(run), "--kernels", "c0ffee"]) == 2
        assert "have no kernel 'c0ffee': give ids from" in capsys.readouterr().err
        assert not measured

    def test_without_resume_all_is_measured_again(self, run: Path, measured: list[str]) -> None:
        assert main(["replay", str(run)]) == main(["replay", str(run)]) == 0
        assert len(measured) == 2 * len(set(measured))

    def test_figures_of_another_cache_are_not_kept(self, run: Path, measured: list[str]) -> None:
        assert main(["replay", str(run), "--cache", "hot"]) == 0
        before = len(measured)
        assert main(["replay", str(run), "--cache", "cold", "--resume"]) == 0
        assert len(measured) == 2 * before

    def test_a_model_that_runs_differently_now_counts_as_missing(
        self, run: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = run / "operator_calls.jsonl"
        first, *others = _prefill_first(path)
        first["operator"] = "aten.other.default"
        path.write_text("".join(json.dumps(one) + "\n" for one in (first, *others)))
        assert main(["replay", str(run)]) == 0
        assert first["id"] not in measured
        assert f"{first['id']}: the model makes another call" in capsys.readouterr().out
        report = json.loads((run / "results/gpu_energy_report.json").read_text())
        assert any(first["id"] in one["missing"] for one in report["accounts"])

    def test_a_call_that_launches_another_kernel_alone_counts_as_missing(
        self, run: Path, measured: list[str]
    ) -> None:
        path = run / "operator_calls.jsonl"
        first, *others = _prefill_first(path)
        first["launches"][0]["name"] = "another"
        path.write_text("".join(json.dumps(one) + "\n" for one in (first, *others)))
        assert main(["replay", str(run)]) == 0
        assert first["id"] not in measured
        report = json.loads((run / "results/gpu_energy_report.json").read_text())
        assert report["missing"][first["id"]].startswith("alone it launches")

    def test_a_call_that_fails_alone_costs_itself_only(
        self, run: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = Harness.measure_callable  # that of `measured`

        def failing(self: Harness, repeater: Any, workload: Any, subject: Any, kind: str) -> Any:
            if subject.label == "step0-graph":
                raise RuntimeError("operation not permitted when stream is capturing")
            return plain(self, repeater, workload, subject, kind)

        monkeypatch.setattr(Harness, "measure_callable", failing)
        assert main(["replay", str(run)]) == 0
        report = json.loads((run / "results/gpu_energy_report.json").read_text())
        assert "not permitted" in report["missing"]["step0-graph"]
        assert "step0-eager" in measured
        assert {(one["step"], one["level"]) for one in report["accounts"]} >= {(0, "eager")}
