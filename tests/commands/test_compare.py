"""`gpuenergy compare`, `baseline` and `history` on run folders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_outcomes import ended
from gate_simulation import Session, drawn_measurement
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import Report, RunFolder, json_document, load_report

MakeRun = Callable[..., None]
STEADY = Session(0.0, 0.0)
RUN = a_run(software={"driver": "580"})


def printed(*words: object) -> str:
    return ended(0, "compare", *words).out


def measurement(label: str = "k01", edp: float = 1.0, seed: int = 0) -> Measurement:
    return drawn_measurement(np.random.default_rng(seed))(label, STEADY, edp)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make_run(project: Path) -> MakeRun:
    """A run folder of this project; ids sort as their times do."""

    def make(name: str, *measurements: Measurement, **changes: Any) -> None:
        started = f"2026-01-01T00:00:00 {name}"
        folder = RunFolder.create(project, replace(RUN, run_id=name, started=started, **changes))
        for one in measurements:
            folder.append(one)

    return make


def test_a_good_run_ends_with_0_and_a_bad_one_with_1(make_run, capsys):
    make_run("a", measurement())
    make_run("b", measurement(seed=1))
    make_run("c", measurement(edp=1.2))
    assert printed("a", "b", "--fail", "edp:5%").endswith(": passed\n")
    assert main(["compare", "a", "--fail", "edp:5%"]) == 1  # the latest run
    assert capsys.readouterr().out.endswith(": FAILED\n")


def test_a_run_that_is_its_own_baseline_is_no_quiet_success(make_run):
    make_run("a", measurement())
    assert ended(0, "compare", "a").err == (
        "Run a was compared with itself: name an earlier one as BASE.\n"
    )


def test_without_a_limit_nothing_fails(make_run):
    make_run("a", measurement())
    make_run("b", measurement(edp=1.2))
    assert "3 WORSE" in printed("a", "b")


def test_a_gate_with_nothing_to_judge_fails(make_run):
    make_run("a", measurement())
    make_run("b", measurement("renamed"))
    assert ended(1, "compare", "a", "b", "--fail", "edp:5%").out.endswith(
        "nothing was compared: FAILED; 1 of 1 missing\n"
    )
    assert main(["compare", "a", "b"]) == 0


def test_strict_and_the_deviation_between_sessions_are_heeded(make_run):
    make_run("a", measurement())
    make_run("b", measurement(edp=1.05))
    words = ["compare", "a", "b", "--fail", "edp:2%"]
    assert main([*words, "--session-sd", "edp:3%"]) == 0
    assert main([*words, "--session-sd", "edp:3%", "--strict"]) == 1
    assert main([*words, "--session-sd", "edp:0.1%"]) == 1


def test_verdicts_as_json_and_markdown(make_run, project):
    make_run("a", measurement())
    make_run("b", measurement(), measurement("k02"))
    document = json.loads(printed("a", "b", "--json", "-", "--md", "out/c.md"))
    assert [one["verdict"] for one in document["judgements"]] == ["SAME"] * 3
    assert "missing from the baseline: simulated-k02-current" in (project / "out/c.md").read_text()


def test_in_github_actions_there_are_annotations_too(make_run, monkeypatch, capsys):
    make_run("a", measurement())
    make_run("b", measurement(edp=1.2))
    words = ["compare", "a", "b", "--fail", "edp:5%", "--md", "-"]
    main(words)
    before = capsys.readouterr()
    assert before.err == ""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    main(words)
    captured = capsys.readouterr()
    assert captured.out == before.out
    assert captured.err.startswith("::error title=simulated-k01-current::EDP (emulated) +")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu_name": "NVIDIA A30"}, "differ in gpu_name"),
        ({"emulated": False}, "differ in emulated"),
        ({"legacy": True}, "marked legacy"),
    ],
)
def test_what_cannot_be_compared_ends_with_2(make_run, changes, words):
    make_run("a", measurement())
    make_run("b", measurement(), **changes)
    assert words in ended(2, "compare", "a", "b").err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "base.json does not exist"),
        ('{"schema_version": 1', "is not complete JSON (input data was truncated)"),
        ("[]", "is not a report"),
        ('{"schema_version": 99}', "use the release that wrote it"),
    ],
)
def test_a_baseline_that_cannot_be_read_ends_with_2(make_run, project, content, words):
    make_run("a", measurement())
    if content is not None:
        (project / "base.json").write_text(content)
    assert words in ended(2, "compare", "base.json", "a", "--fail", "edp:5%").err


FIGURES = ("time_ms", "energy_mj", "edp_mj_ms")
ODD = st.floats() | st.integers() | st.sampled_from([0.0, 5e-324, 1e-300, 1e300, 1.7e308])
SIZES = st.floats(0, allow_infinity=False)


@st.composite
def odd_changes(draw: st.DrawFn) -> dict[str, object]:
    """Fields of a measurement with any numbers, many of which a report may hold."""
    changes: dict[str, object] = draw(
        st.dictionaries(
            st.sampled_from([*FIGURES, "power_w", "gflops", "gflops_per_w", "power_limit_w"]), ODD
        )
    )
    for name in FIGURES:
        if draw(st.booleans()):
            low, changes[name], high = sorted(draw(st.tuples(SIZES, SIZES, SIZES)))
            changes[f"{name}_ci95"] = {"low": low, "high": high}
        elif draw(st.booleans()):
            changes[f"{name}_ci95"] = {"low": draw(ODD), "high": draw(ODD)}
    if draw(st.booleans()):
        names = ("seconds", "joules", "launches", "busy_seconds")
        trial = st.fixed_dictionaries(dict.fromkeys(names, SIZES | ODD))
        changes["trials"] = draw(st.lists(trial, max_size=4))
    return changes


@pytest.mark.slow
@settings(
    max_examples=2 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(odd_changes(), odd_changes(), st.sampled_from([[], ["--json", "-"], ["--md", "-"]]))
def test_any_numbers_are_compared_or_refused(project, base, new, form):
    for name, changes in (("base.json", base), ("new.json", new)):
        document = json.loads(json_document(Report(RUN, (measurement(),))))
        document["measurements"][0] |= changes
        (project / name).write_text(json.dumps(document))
    assert main(["compare", "base.json", "new.json", "--fail", "edp:5%", *form]) in (0, 1, 2)


def test_an_empty_limit_is_refused(make_run):
    make_run("a", measurement())
    assert "--fail is empty" in ended(2, "compare", "a", "a", "--fail", "").err


HOSTILE = "x|<b>\x1b[2J\n::error::pwned"


@pytest.mark.parametrize(
    "words", [["compare", "a", "a"], ["history"], ["report", "a"]], ids=lambda words: words[0]
)
@pytest.mark.parametrize("form", [[], ["--md", "-"]], ids=["terminal", "markdown"])
def test_names_command_neither_terminal_nor_github(make_run, words, form):
    make_run("a", measurement(HOSTILE))
    out = ended(0, *words, *form).out
    assert "x" in out
    assert "\x1b" not in out
    assert not any(line.lstrip().startswith("::") for line in out.splitlines())
    assert not (form and "<b>" in out)


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "a", "b"],
        ["compare", "b", "a"],
        ["baseline", "update", "a", "--replace"],
        ["report", "a", "b", "--json", "-"],
        ["report", "a", "--tidy", "-"],
    ],
    ids=" ".join,
)
def test_neither_errors_nor_lines_command_the_terminal(make_run, capsys, words):
    hostile = "x\x1b]0;x\x07\n::error::x\r\x9b31m"
    flagged = replace(measurement(hostile), node_id="other", validity=(hostile,), cap=hostile)
    make_run("a", measurement(hostile), flagged, gpu_name=hostile)
    make_run("b", measurement())
    main(words)
    shown = "".join(capsys.readouterr())
    assert "x" in shown
    assert not set(shown) & set("\x1b\x07\r\x9b")
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())


def test_kernels_are_listed_by_rank_not_as_measured(make_run):
    def ranked(rank: int) -> Measurement:
        one = measurement(f"k{rank:02d}", seed=rank)
        origin = replace(one.kernel, rank=rank)
        return replace(one, kernel=origin, node_id=f"test[{rank}]")

    make_run("a", *map(ranked, (2, 3, 1)))
    for words in (["compare", "a", "a"], ["history"]):
        out = ended(0, *words).out
        assert out.index("k01") < out.index("k02") < out.index("k03")


def test_another_board_is_said_once_and_can_be_allowed(make_run):
    make_run("a", measurement())
    make_run("b", measurement(edp=2.0), gpu_uuid="GPU-2")
    assert "every verdict is in doubt: the board is not" in printed("a", "b", "--fail", "edp:5%")
    assert main(["compare", "a", "b", "--fail", "edp:5%", "--allow", "board"]) == 1


def test_a_baseline_is_made_from_the_clean_measurements(make_run, project):
    make_run("a", measurement(), replace(measurement("k02"), validity=("not_steady",)))
    out = ended(0, "baseline", "update").out
    assert "left out: simulated-k02-current (flagged: not_steady)\n" in out
    assert out.endswith("gpuenergy-baseline.json: 1 taken, 0 kept\n")
    report = load_report(project / "gpuenergy-baseline.json")
    assert [m.kernel.label for m in report.measurements] == ["k01"]


def test_an_update_replaces_what_was_measured_and_keeps_the_rest(make_run, project):
    make_run("a", measurement(), measurement("k02"))
    make_run("b", measurement(edp=1.5))
    assert main(["baseline", "update", "a", "--to", "base.json"]) == 0
    assert "WORSE" in ended(0, "baseline", "update", "b", "--to", "base.json").out
    report = load_report(project / "base.json")
    assert report.run.run_id == "b"
    figures = {m.kernel.label: m.edp_mj_ms for m in report.measurements}
    assert figures == {"k01": measurement(edp=1.5).edp_mj_ms, "k02": measurement("k02").edp_mj_ms}


def test_an_item_with_another_label_is_replaced_too(make_run, project):
    make_run("a", replace(measurement("k01"), node_id="t.py::test"))
    make_run("b", replace(measurement("k02"), node_id="t.py::test"))
    assert main(["baseline", "update", "a"]) == 0
    assert main(["baseline", "update", "b"]) == 0
    report = load_report(project / "gpuenergy-baseline.json")
    assert [m.kernel.label for m in report.measurements] == ["k02"]


@pytest.mark.slow
def test_updates_of_one_baseline_at_once_are_all_in_it(make_run, project, warm_python):
    names = [f"k{number:02d}" for number in range(1, 7)]
    for name in names:
        make_run(name, measurement(name))
    command = [warm_python, "-m", "pytest_gpuenergy.cli", "baseline", "update"]
    updates = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in names]
    assert [update.wait() for update in updates] == [0] * len(names)
    report = load_report(project / "gpuenergy-baseline.json")
    assert {m.kernel.label for m in report.measurements} == set(names)


def test_a_baseline_is_of_one_board(make_run, project):
    make_run("a", measurement(), measurement("k02"))
    make_run("b", measurement(), gpu_uuid="GPU-2")
    assert main(["baseline", "update", "a"]) == 0
    assert "differ in the board (GPU-1 and GPU-2)" in ended(2, "baseline", "update", "b").err
    assert main(["baseline", "update", "b", "--replace"]) == 0
    report = load_report(project / "gpuenergy-baseline.json")
    assert [m.kernel.label for m in report.measurements] == ["k01"]


def test_nothing_clean_makes_no_baseline(make_run, project):
    make_run("a", replace(measurement(), validity=("not_steady",)))
    assert "no measurement without a flag" in ended(2, "baseline", "update").err
    assert not (project / "gpuenergy-baseline.json").exists()


def test_history_shows_runs_and_changes(make_run):
    for day in range(16):
        make_run(f"run{day:02d}", measurement(edp=1.0 if day < 8 else 1.1, seed=day))
    lines = ended(0, "history", "-k", "k01").out.splitlines()
    assert lines[0].startswith("simulated-k01-current EDP, NVIDIA H200 GPU-1 (emulated), 16 runs")
    assert lines[-1].startswith("  changed by +") and "from run run08 on" in lines[-1]  # noqa: PT018
    (series,) = json.loads(ended(0, "history", "--runs", "3", "--json", "-").out)["series"]
    assert [point["run_id"] for point in series["points"]] == ["run13", "run14", "run15"]


def test_history_of_nothing_ends_with_2(make_run):
    assert "run pytest first" in ended(2, "history").err
    make_run("a", measurement())
    assert "'k99'" in ended(2, "history", "-k", "k99").err


def test_a_damaged_run_is_left_out_of_the_history(make_run, project):
    make_run("a", measurement())
    make_run("b", measurement())
    (project / ".gpuenergy/runs/b/run.json").write_text("{")
    captured = ended(0, "history")
    assert captured.err.startswith("left out: ")
    assert ", 1 run\n" in captured.out


def test_comparisons_and_histories_are_as_wide_as_the_terminal(make_run, capsys, monkeypatch):
    for name, edp in (("a", 1.0), ("b", 1.2)):
        make_run(name, *(measurement(f"k{n:02d}", edp if n == 1 else 1.0) for n in range(1, 8)))
    monkeypatch.setenv("COLUMNS", "50")
    for command in (["compare", "a", "b"], ["history"], ["baseline", "update", "a", "--to", "c"]):
        main([*command])
    main(["baseline", "update", "b", "--to", "c"])
    out = capsys.readouterr().out
    assert "WORSE" in out
    assert max(map(len, out.splitlines())) <= 50
