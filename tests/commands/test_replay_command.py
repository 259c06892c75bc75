"""`gpuenergy replay` as a user calls it, without a GPU."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
from command_outcomes import ended
from recorded_profile import PREFILL, QWEN, copy_bloom, copy_profile

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.engine import Harness
from pytest_gpuenergy.replay import argument_bytes, choose_planner
from pytest_gpuenergy.support import InputError, lock

SCHEMA = Path(__file__).parents[2] / "docs/reference/replay.schema.json"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A copy of the replay of BLOOM-560M on an H200."""
    return copy_bloom(tmp_path / "bloom")


def replayed(line: Any) -> str:
    """The key of what a line of measurements.jsonl is of."""
    return str(line["workload"]["parameters"]["replays"])


def figures(time_ms: float, power_w: float) -> dict[str, Any]:
    """Those of a line without trials."""
    energy_mj = time_ms * power_w
    found = {"time_ms": time_ms, "power_w": power_w, "edp_mj_ms": time_ms * energy_mj}
    found |= dict.fromkeys(("energy_mj", "raw_energy_mj"), energy_mj)
    unknown = dict.fromkeys(("time_ms_ci95", "energy_mj_ci95", "edp_mj_ms_ci95"))
    return {**found, **unknown, "trials": []}


def launched(found: Any) -> float:
    """Launches in the trials of a measurement."""
    return float(sum(one["launches"] for one in found["trials"]))


def emulated(run: Path, *options: str) -> tuple[int, Any]:
    """The exit status of a replay on an emulated H200, and its report."""
    status = main(["replay", str(run), "--gpu-device", "emulated:h200", *options])
    path = run / "results-emulated/gpu_energy_report.json"
    return status, json.loads(path.read_text()) if path.is_file() else None


def refused(run: Path, *options: str) -> str:
    """The sentence with which a replay on an emulated H200 is refused."""
    error = ended(2, "replay", run, "--gpu-device", "emulated:h200", *options).err
    assert not (run / "results-emulated/gpu_energy_report.json").exists()
    return error


@dataclass(frozen=True)
class Replayed:
    """What a replay has left, for tests that only look at it.

    Attributes:
        run: the folder.
        recording: of measurements, before the replay.
        report: of the replay.
        said: what it has printed.
    """

    run: Path
    recording: bytes
    report: Any
    said: str


@pytest.fixture(scope="module")
def replay_all(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Replayed]:
    """Replay all calls with these options."""

    def replay(*options: str) -> Replayed:
        run = copy_bloom(tmp_path_factory.mktemp("all") / "bloom")
        recording = (run / "results/measurements.jsonl").read_bytes()
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setenv("GPUENERGY_STATE", str(tmp_path_factory.mktemp("state")))
            status, report = emulated(run, *options)
        assert status == 0
        return Replayed(run, recording, report, said.getvalue())

    return replay


@pytest.fixture(scope="module")
def of_all(replay_all: Callable[..., Replayed]) -> Replayed:
    """All calls at the default limit."""
    return replay_all()


@pytest.fixture(scope="module")
def of_two_limits(
    replay_all: Callable[..., Replayed], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Replayed, str]:
    """All calls under two limits, with the page of it."""
    page = tmp_path_factory.mktemp("page") / "page.html"
    found = replay_all("--powercap", "300W,700W", "--html", str(page))
    return found, page.read_text()


def test_a_brief_replay_closes_its_accounts_without_those_of_small_modules(tmp_path):
    run = copy_profile(QWEN, tmp_path / "qwen2")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["replay", str(run), "--gpu-device", "emulated:h200", "--brief"]) == 0
    report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
    found = {(one["step"], one["level"]): one for one in report["accounts"]}
    levels = ("graph", "eager", "layers", "module.lm_head")
    assert found.keys() == {(step, level) for step in (0, 1) for level in levels}
    assert all(abs(one["time_error"]) < 0.02 for one in found.values())
    assert max(abs(one["energy_error"]) for one in found.values()) < 0.03


def test_a_recorded_window_that_the_limit_holds_back_is_replayed_with_its_gaps(tmp_path):
    run = copy_profile(QWEN, tmp_path / "qwen2")
    path = run / "results/measurements.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_key = {replayed(one): one for one in lines}
    window, gap = by_key["step0-window0"], by_key["gap"]
    parameters = {"replays": "step0-window0-spaced", "cache": "model", "gaps": 400, "turns": 1}
    time_ms = window["time_ms"] + 400 * gap["time_ms"]
    power_w = (window["energy_mj"] + 400 * gap["energy_mj"]) / time_ms
    spaced = window | figures(time_ms, power_w)
    spaced["workload"] = window["workload"] | {"parameters": parameters}
    path.write_text("".join(json.dumps(one) + "\n" for one in [*lines, spaced]))
    words = ("--gpu-device", "emulated:h200", "--brief", "--powercap", "300W")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["replay", str(run), *words]) == 0
    report = json.loads((run / "results-emulated/gpu_energy_report.json").read_text())
    assert "step0-window0-spaced" in map(replayed, report["measurements"])
    eager = next(one for one in report["accounts"] if (one["step"], one["level"]) == (0, "eager"))
    assert "step0-window0" in eager["windows"]


def test_without_pytorch_one_sentence_says_what_to_install(recorded, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    card: Any = SimpleNamespace(name="NVIDIA H200", ordinal=0)
    with pytest.raises(InputError, match=r"needs torch: pip install 'pytest-gpuenergy\[replay\]'"):
        choose_planner(card, recorded, "model")


@pytest.mark.slow
class TestAllCalls:
    """Replayed on the emulated GPU, without PyTorch: once, and once under two limits."""

    def test_calls_that_hardly_count_in_the_sum_are_measured_briefly(self, of_all):
        seconds = {
            one["workload"]["parameters"]["replays"]: sum(t["seconds"] for t in one["trials"])
            for one in of_all.report["measurements"]
        }
        for account in of_all.report["accounts"]:
            parts = sorted(account["parts"], key=lambda part: part["energy_mj"])
            assert seconds[parts[-1]["call"]] > 0.55
            assert seconds[parts[0]["call"]] < 0.45

    def test_the_calls_take_the_recorded_time_and_energy(self, of_all):
        lines = of_all.recording.decode().splitlines()
        figures = {replayed(one): one for one in map(json.loads, lines)}
        assert len(of_all.report["measurements"]) == len(figures) == 82
        for one in of_all.report["measurements"]:
            found = figures[replayed(one)]
            assert one["time_ms"] == pytest.approx(found["time_ms"], rel=0.01)
            assert one["energy_mj"] == pytest.approx(found["energy_mj"], rel=0.02)

    def test_the_recording_stays_as_it_is(self, of_all):
        assert (of_all.run / "results/measurements.jsonl").read_bytes() == of_all.recording

    def test_all_output_is_called_emulated(self, of_all):
        assert of_all.report["run"]["emulated"]
        assert "on NVIDIA H200 (emulated)" in of_all.said

    def test_the_accounts_of_whole_steps_cover_all_calls(self, of_all):
        found = {(one["step"], one["level"]): one for one in of_all.report["accounts"]}
        levels = ("graph", "eager", "layers")
        assert found.keys() == {(step, level) for step in (0, 1) for level in levels}
        assert all(one["coverage"] == 1.0 for one in found.values())
        assert found[0, "graph"]["tokens"] == 1024
        assert found[1, "graph"]["joules_per_token"] == pytest.approx(0.558, rel=0.02)

    def test_the_accounts_close_as_those_of_the_card_did(self, of_all):
        """Within 3.5 %: the card's within 2, without the term of neighbours."""
        errors = [one["energy_error"] for one in of_all.report["accounts"]]
        assert max(map(abs, errors)) < 0.035
        (waiting_w,) = {one["idle_w"] for one in of_all.report["accounts"]}
        assert waiting_w == pytest.approx(125.9, rel=0.03)  # as the card had it
        assert all(one["gaps_mj_half_width"] > 0 for one in of_all.report["accounts"])

    def test_a_call_at_the_limit_has_the_clock_of_the_card(self, of_all):
        lines = of_all.recording.decode().splitlines()
        clocks = {replayed(one): one["effective_sm_clock_mhz"] for one in map(json.loads, lines)}
        limited = [one for one in of_all.report["measurements"] if one["cap_binding"]]
        assert limited
        for one in limited:
            clock_mhz = clocks[replayed(one)]
            assert one["effective_sm_clock_mhz"] == pytest.approx(clock_mhz, rel=0.02)

    def test_several_power_limits_make_a_table(self, of_two_limits):
        found, _ = of_two_limits
        report = found.report
        assert {one["cap"] for one in report["accounts"]} == {"300W", "700W"}
        steps = {(one["step"], one["cap"]): one for one in report["accounts"]}
        assert steps[0, "300W"]["energy_mj"] < steps[0, "700W"]["energy_mj"]
        assert sum(one["saved_mj"] for one in report["savings"]) > 0
        assert "each call under the limit that suits it best" in found.said

    def test_the_page_has_the_accounts_beside_the_measurements(self, of_two_limits):
        found, text = of_two_limits
        data = json.loads(text.partition('id="report-data">')[2].partition("</script>")[0])
        assert data["rows"]["count"] == 164
        assert data["emulated"]
        accounts = data["replay"]["accounts"]
        assert len({(one["step"], one["level"], one["cap"]) for one in accounts}) == 2 * 3 * 2
        assert data["replay"]["savings"] == found.report["savings"]

    def test_the_results_are_a_run(self, of_all, tmp_path):
        path = tmp_path / "merged.json"
        assert main(["report", str(of_all.run / "results-emulated"), "--json", str(path)]) == 0
        assert json.loads(path.read_text())["measurements"] == of_all.report["measurements"]

    def test_the_report_is_valid_by_the_published_schema(self, of_two_limits, tmp_path):
        path = tmp_path / "schema.json"
        assert main(["replay", "--schema", str(path)]) == 0
        assert path.read_text() == SCHEMA.read_text(), f"gpuenergy replay --schema {SCHEMA}"
        assert ended(0, "replay", "--schema", "-").out == path.read_text()
        validator = jsonschema.Draft202012Validator(json.loads(path.read_text()))
        found, _ = of_two_limits
        validator.validate(found.report)
        assert not validator.is_valid(found.report | {"accounts": [{}]})


class TestRecordedFigures:
    """Replayed on the emulated GPU, without PyTorch."""

    @pytest.mark.slow
    def test_large_numbers_are_written_out(self, recorded, capsys):
        emulated(recorded, "--kernels", PREFILL)
        figures = capsys.readouterr()
        assert re.search(r"gaps \+2[0-9]{3} ±[0-9.]+ in", figures.out)
        assert not re.search(r"[0-9]e\+", figures.out + figures.err)

    @pytest.mark.slow
    def test_what_is_not_recorded_counts_as_missing(self, recorded, capsys):
        path = recorded / "results/measurements.jsonl"
        first, *others = path.read_text().splitlines()
        path.write_text("\n".join(others))
        label = replayed(json.loads(first))
        _, report = emulated(recorded, "--kernels", "c229cf67f982a")
        assert report["missing"][label] == "no figures of it are recorded"
        assert "no figures of it are recorded" in capsys.readouterr().out

    def test_what_an_earlier_replay_has_measured_is_not_missing(self, recorded):
        key = "c229cf67f982a"
        assert emulated(recorded, "--kernels", key)[1]["missing"].get(key) is None
        path = recorded / "results/measurements.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line for line in lines if replayed(json.loads(line)) != key))
        _, report = emulated(recorded, "--kernels", key, "--resume")
        assert key in map(replayed, report["measurements"])
        assert key not in report["missing"]
        _, report = emulated(recorded, "--kernels", key)
        assert report["missing"][key] == "no figures of it are recorded"

    @pytest.mark.slow
    def test_a_call_that_the_limit_holds_back_alone_is_measured_with_gaps(self, recorded, capsys):
        held_back = "c15f2f3c2fe37"
        path = recorded / "results/measurements.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        gap = next(one for one in lines if replayed(one) == held_back)
        gap = msgspec.json.decode(msgspec.json.encode(gap))
        gap["workload"]["parameters"] = {"replays": "gap", "cache": "model"}
        gap |= figures(0.02, 120.0)
        pair = msgspec.json.decode(msgspec.json.encode(gap))
        pair["workload"]["parameters"] |= {"replays": f"{held_back}-spaced", "gaps": 60, "turns": 1}
        pair |= figures(1.94, 410.0)
        path.write_text("\n".join(map(json.dumps, [*lines, gap, pair])))
        _, report = emulated(recorded, "--kernels", held_back)
        prefill = next(one for one in report["accounts"] if one["step"] == 0)
        assert held_back in prefill["spaced"]
        assert held_back not in prefill["limited"]
        part = next(one for one in prefill["parts"] if one["call"] == held_back)
        assert part["time_ms"] == pytest.approx(0.74, rel=0.01)
        assert part["energy_mj"] == pytest.approx(795.4 - 60 * 2.4, rel=0.02)
        assert "with gaps between" in capsys.readouterr().out

    @pytest.mark.slow
    def test_gaps_between_launches_of_the_host_have_their_own_figures(self, recorded):
        path = recorded / "results/measurements.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        eager = next(one for one in lines if replayed(one) == "step1-eager")
        parameters = {"replays": "step1-eager-gaps", "cache": "model", "period_ns": 20_000}
        workload = eager["workload"] | {"parameters": parameters}
        gaps = eager | figures(0.02, 130.0) | {"workload": workload}
        path.write_text("\n".join(map(json.dumps, [*lines, gaps])))
        _, report = emulated(recorded, "--kernels", "c229cf67f982a")
        found = {(one["step"], one["level"]): one["gaps_w"] for one in report["accounts"]}
        assert found[1, "eager"] == pytest.approx(130.0, rel=0.03)
        assert found[0, "eager"] == pytest.approx(124.0, rel=0.02)  # of the card after a load

    @pytest.mark.thorough
    @pytest.mark.parametrize(("step", "name"), [(1, "window0"), (0, "layer0")])
    def test_calls_that_were_measured_together_are_replayed_together(
        self, recorded, step, name, capsys
    ):
        """Parts of layers in the decode step, whole layers in the prefill, which is limited."""
        limit = ("--powercap", "450W") if name == "layer0" else ()
        key = f"step{step}-{name}"
        path = recorded / "results/measurements.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        by_key = {replayed(line): line for line in lines}
        layers = by_key[f"step{step}-layers"]
        calls = map(json.loads, (recorded / "operator_calls.jsonl").read_text().splitlines())
        of_step = [call["id"] for call in calls if call["steps"].get(str(step)) == 24][:2]
        alone = [by_key[call] for call in of_step]
        longer_ms = 0.001 + sum(line["time_ms"] for line in alone)
        parameters = {"replays": key, "cache": "model", "turns": 24}
        parameters |= {"step": step, "calls": " ".join(of_step), "count": 24}
        parameters |= {"layer": 1} if name == "layer0" else {}
        window = layers | figures(longer_ms, 200.0)
        window["workload"] = layers["workload"] | {"parameters": parameters}
        path.write_text("\n".join(map(json.dumps, [*lines, window])))
        status, report = emulated(recorded, "--kernels", ",".join(of_step), *limit)
        assert status == 0
        account = next(one for one in report["accounts"] if one["windows"])
        assert (account["step"], account["windows"]) == (step, [key])
        if not limit:
            assert account["neighbours_ms"] == pytest.approx(24 * 0.001, rel=0.1)
        assert ", neighbours " in capsys.readouterr().out

    @pytest.mark.slow
    def test_clocks_make_a_table_too(self, recorded):
        chosen = ("--kernels", PREFILL, "--powercap", "current", "--smclock", "current,1500MHz")
        status, report = emulated(recorded, *chosen)
        assert status == 0
        assert {one["cap"] for one in report["accounts"]} == {"current", "1500MHz"}
        steps = {(one["step"], one["cap"]): one for one in report["accounts"]}
        assert steps[0, "1500MHz"]["time_ms"] > steps[0, "current"]["time_ms"]

    @pytest.mark.slow
    def test_an_interrupt_leaves_a_report_and_resume_measures_what_is_left(
        self, recorded, monkeypatch
    ):
        plain, labels = Harness.measure_callable, []

        def counted(self: Harness, repeater: Any, workload: Any, *others: Any, **more: Any) -> Any:
            if len(labels) == 9:
                raise KeyboardInterrupt
            labels.append(str(workload.parameters["replays"]))
            return plain(self, repeater, workload, *others, **more)

        chosen = ("--kernels", "c229cf67f982a,c2323a1c5dcac,c26eb79f3abd8,c9e873a28b0f1")
        with monkeypatch.context() as patched:
            patched.setattr(Harness, "measure_callable", counted)
            status, report = emulated(recorded, *chosen)
        assert status == 130
        assert len(report["measurements"]) == 9
        assert {one["level"] for one in report["accounts"]} == {"graph", "eager", "layers"}
        assert all(len(one["missing"]) > 0 for one in report["accounts"])
        results = recorded / "results-emulated/measurements.jsonl"
        begun = results.read_text()
        assert len(begun.splitlines()) == 9
        with results.open("a") as file:
            file.write('{"node_id": "half a li')
        assert emulated(recorded, *chosen, "--resume")[0] == 0
        assert results.read_text().startswith(begun)
        assert len(results.read_text().splitlines()) == 14

    @pytest.mark.parametrize(
        ("change", "told"),
        [({"prompt_tokens": 16}, "1 prompts of 16 tokens"), ({"model": "other"}, "(other)")],
    )
    def test_figures_of_another_profile_are_not_resumed(self, recorded, capsys, change, told):
        chosen = ("--kernels", "c229cf67f982a")
        assert emulated(recorded, *chosen)[0] == 0
        path = recorded / "results-emulated/measurements.jsonl"
        before = path.read_bytes()
        profile = recorded / "profile.json"
        profile.write_text(json.dumps(json.loads(profile.read_text()) | change))
        assert emulated(recorded, *chosen, "--resume")[0] == 2
        assert told in capsys.readouterr().err
        assert path.read_bytes() == before

    @pytest.mark.slow
    def test_resume_sets_aside_what_was_measured_under_other_limits(self, recorded):
        chosen = ("--kernels", "c229cf67f982a")
        assert emulated(recorded, *chosen, "--powercap", "300W,700W")[0] == 0
        path = recorded / "results-emulated/measurements.jsonl"
        before = set(path.read_text().splitlines())
        assert emulated(recorded, *chosen, "--powercap", "700W", "--resume")[0] == 0
        kept = set(path.read_text().splitlines())
        others = set(path.with_name("measurements-others.jsonl").read_text().splitlines())
        assert {json.loads(line)["cap"] for line in others} == {"300W"}
        assert kept | others == before

    def test_another_card_is_refused(self, recorded):
        assert (
            "are those of NVIDIA H200, and"
            in ended(2, "replay", str(recorded), "--gpu-device", "emulated:a100").err
        )

    def test_only_the_chosen_calls_are_replayed(self, recorded):
        first = json.loads((recorded / "operator_calls.jsonl").read_text().splitlines()[0])
        _, report = emulated(recorded, "--kernels", first["id"])
        assert "it was not chosen" in report["missing"].values()
        assert len(report["measurements"]) == 7
        assert any(one["coverage"] < 1.0 for one in report["accounts"])

    @pytest.mark.slow
    def test_each_measurement_has_at_least_the_launches_asked_for(self, recorded):
        first = json.loads((recorded / "operator_calls.jsonl").read_text().splitlines()[0])
        options = ("--kernels", first["id"])
        _, before = emulated(recorded, *options)
        status, report = emulated(recorded, *options, "--runs", "300")
        assert status == 0
        assert min(map(launched, before["measurements"])) < 300
        assert min(map(launched, report["measurements"])) >= 300
        assert report["run"]["options"]["runs"] == "300"
        for one, other in zip(before["measurements"], report["measurements"], strict=True):
            assert other["energy_mj"] == pytest.approx(one["energy_mj"], rel=0.02)

    @pytest.mark.slow
    def test_resume_measures_again_what_has_too_few_launches(self, recorded):
        first = json.loads((recorded / "operator_calls.jsonl").read_text().splitlines()[0])
        options = ("--kernels", first["id"])
        _, before = emulated(recorded, *options)
        _, report = emulated(recorded, *options, "--resume", "--runs", "300")
        found = {replayed(one): one for one in report["measurements"]}
        for one in before["measurements"]:
            assert (found[replayed(one)] == one) == (launched(one) >= 300)

    def test_the_report_has_how_the_power_of_the_profile_was_aligned(self, recorded, capsys):
        path = recorded / "profile.json"
        power = {"samples": 31, "brackets": 64, "offset_us": 1e15, "drift_ppm": 0.5}
        power |= {"error_us": 2.5, "stamp_lag_us": 12_000.0}
        path.write_text(json.dumps({**json.loads(path.read_text()), "power": power}))
        first = json.loads((recorded / "operator_calls.jsonl").read_text().splitlines()[0])
        _, report = emulated(recorded, "--kernels", first["id"])
        assert report["profile"]["power"] == power
        said = "31 samples, whose clock is aligned with the profiler's within ±2.5 µs"
        assert said in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (("--cache", "cold"), "has none with --cache cold"),
            (("--kernels", "c0ffee"), "have no kernel 'c0ffee': give ids from"),
            *((("--kernels", words), "names no kernel") for words in ("", ",", " , ")),
            *((("--runs", word), "--runs") for word in ("0", "-1", "many", "9" * 5000)),
            (("--powercap", "900W"), "900"),
            (("--step", "2"), "has no decode step 2: give 1 to 1"),
            (("--changes",), "leave it out where recorded figures are replayed"),
        ],
    )
    def test_what_cannot_be_asked_for_is_refused_before_anything_is_measured(
        self, recorded, options, sentence
    ):
        assert sentence in refused(recorded, *options)

    def test_no_folder_is_told_in_one_sentence(self):
        assert "Name the folder that gpuenergy profile has written" in ended(2, "replay").err

    def test_json_is_the_report(self, recorded, capsys):
        _, report = emulated(recorded, "--json", "--kernels", "c229cf67f982a")
        assert json.loads(capsys.readouterr().out) == report

    def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(
        self, recorded, capsys
    ):
        assert emulated(recorded, "--html", str(recorded)) == (1, None)
        assert "cannot be written (it is a folder)" in capsys.readouterr().err

    def test_a_folder_is_replayed_by_one_process_at_a_time(self, recorded, capsys):
        descriptor = os.open(recorded, os.O_RDONLY)
        try:
            lock(descriptor)
            assert emulated(recorded) == (2, None)
        finally:
            os.close(descriptor)
        assert "Another process is replaying" in capsys.readouterr().err
        assert emulated(recorded, "--kernels", "c229cf67f982a")[0] == 0

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
    def test_a_damaged_run_gives_one_sentence(self, recorded, name, content, sentence):
        if content is None:
            (recorded / name).unlink()
        else:
            (recorded / name).write_bytes(content)
        assert sentence in refused(recorded)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"schema_version": 99}, "has schema version 99, but this release reads version 1"),
            ({"rank": 5}, "is damaged (it is of rank 5 of 1)"),
            ({"ranks": 10**9}, "is damaged (it is of rank 0 of 1000000000)"),
            ({"new_tokens": -5}, "is damaged (new_tokens is -5)"),
            ({"layers": -3}, "is damaged (layers is -3)"),
            ({"model": None}, "is damaged (model is null"),
        ],
    )
    def test_a_profile_that_cannot_be_ours_gives_one_sentence(self, recorded, change, sentence):
        path = recorded / "profile.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        assert sentence in refused(recorded)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"calls": 0}, "0 calls took"),
            ({"total_us": -1.0}, "calls took -1 µs"),
            ({"steps": {"0": -3}}, "its steps have {0: -3}"),
            ({"steps": {"0": 10**30}}, "its steps have {0: 1000000"),
            ({"graph": {"steps": {"0": 0}}}, "its steps have {0: 0}"),
            ({"graph": {"steps_in_modules": {"1": {"0": -2}}}}, "its steps have {0: -2}"),
            ({"arguments": [{"shape": 5, "dtype": "float16"}]}, "a shape is an integer"),
            ({"arguments": [{"shape": [2], "dtype": None}]}, "a type is None"),
            ({"arguments": {"a": {"shape": [-2], "dtype": "half"}}}, "has the shape [-2]"),
            ({"arguments": [{"shape": [10**9] * 9, "dtype": "half"}]}, "a tensor has the shape"),
            ({"id": "c1"}, "Line 2 of"),
        ],
    )
    def test_calls_that_cannot_have_been_made_give_one_sentence(self, recorded, change, sentence):
        path = recorded / "operator_calls.jsonl"
        lines = [json.loads(line) | change for line in path.read_text().splitlines()]
        path.write_text("\n".join(map(json.dumps, lines)))
        assert sentence in refused(recorded)

    @pytest.mark.parametrize(
        ("change", "parameters", "sentence"),
        [
            ({"time_ms": 0.0}, {}, "has none with --cache model"),
            ({"power_w": None}, {}, "has none with --cache model"),
            ({}, {"turns": "many"}, "recorded with turns of 'many'"),
            ({}, {"turns": 0}, "recorded with turns of 0"),
        ],
    )
    def test_figures_that_cannot_have_been_recorded_give_one_sentence(
        self, recorded, change, parameters, sentence
    ):
        path = recorded / "results/measurements.jsonl"
        lines = [json.loads(line) | change for line in path.read_text().splitlines()]
        for line in lines:
            line["workload"]["parameters"] |= parameters
        path.write_text("\n".join(map(json.dumps, lines)))
        assert sentence in refused(recorded)

    @pytest.mark.parametrize(
        ("arguments", "size"),
        [
            ([{"shape": [2, 3], "dtype": "float16"}], 12),
            ([{"shape": [4], "dtype": "bool"}, {"shape": [], "dtype": "bfloat16"}], 6),
            ({"list": [{"shape": [2], "dtype": "complex64"}], "scalar": 7}, 16),
            ([{"shape": [8], "dtype": "float8_e4m3fn"}], 8),
        ],
    )
    def test_arguments_have_the_size_of_their_tensors(self, arguments, size):
        assert argument_bytes(arguments) == size
