"""Timing what users wait for."""

from __future__ import annotations

import json
import sys

import pytest
import waiting
from waiting import Row, Waiting


def test_a_command_is_timed_up_to_its_first_result_and_its_end(tmp_path):
    text = "print('nothing yet'); print('test.py::test_x PASSED'); print('test.py::test_y PASSED')"
    found = waiting.timed([sys.executable, "-c", text], tmp_path, tmp_path)
    assert found.first_s is not None
    assert found.next_s is not None
    assert 0 < found.first_s <= found.first_s + found.next_s <= found.wall_s
    assert found.cpu_s > 0


def test_a_command_that_fails_ends_the_run_with_its_output(tmp_path):
    with pytest.raises(SystemExit, match=r"(?s)failed:.*no such thing"):
        waiting.timed([sys.executable, "-c", "raise OSError('no such thing')"], tmp_path, tmp_path)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((3.0, 1.0, 2.0))
    quick = Row("quick", "a quick one", "1 s", lambda _: Waiting(next(seconds), 0.5, 0.25))
    slow = Row("slow", "a slow one", "", lambda _: Waiting(1e4, 1e4), is_long=True)
    monkeypatch.setattr(waiting, "ROWS", (quick, slow))


@pytest.mark.usefixtures("rows")
def test_rows_that_take_minutes_are_left_out_unless_named(tmp_path, capsys):
    path = tmp_path / "waiting.json"
    assert waiting.main(["--runs", "3", "--json", str(path)]) == 0
    assert capsys.readouterr().out.endswith("| a quick one | 2.00 | 0.50 | 0.25 |  |  | 1 s |\n")
    assert [run["wall_s"] for run in json.loads(path.read_text())["rows"]["quick"]] == [3, 1, 2]
    assert waiting.main(["--rows", "slow"]) == 0
    assert capsys.readouterr().out.endswith("| a slow one | 10000.00 | 10000.00 |  |  |  |  |\n")


def test_the_rows_of_a_card_are_left_out_without_one():
    assert not any(row.is_on_card for row in waiting.chosen_rows("", on_card=False))
    assert all(row.is_on_card for row in waiting.chosen_rows("", on_card=True))


@pytest.mark.usefixtures("rows")
def test_an_unknown_row_is_refused():
    with pytest.raises(SystemExit, match="--rows quik: give some of quick, slow"):
        waiting.main(["--rows", "quik"])


@pytest.mark.parametrize("name", ["scale.cu", "test_scale.py", "pyproject.toml"])
def test_the_tutorial_has_the_files_of_its_project(name):
    titles = dict(waiting._TITLED.findall(waiting.TUTORIAL.read_text(encoding="utf-8")))
    assert name in titles


def test_the_parts_of_items_add_up_to_the_time_until_their_results(tmp_path):
    report = tmp_path / "report.json"
    phases = ({"verify": 2.0, "heat": 5.0}, {"verify": 1.0}, {"verify": 2.0, "heat": 1.0})
    items = [
        {
            "phases_s": each,
            "energy_mj": 50.0,
            "energy_mj_ci95": {"low": 50.0 - off, "high": 50.0 + off},
        }
        for each, off in zip(phases, (1.0, 0.5, 0.7), strict=True)
    ]
    report.write_text(json.dumps({"measurements": items}))
    parts = waiting.item_parts(report, Waiting(20.0, 9.0, first_s=8.0, next_s=3.0))
    assert parts == {
        "1: verify": 2.0,
        "1: heat": 5.0,
        "1: interval, per cent": pytest.approx(2.0),
        "2: verify": 1.0,
        "2: interval, per cent": pytest.approx(1.0),
        "3: verify": 2.0,
        "3: heat": 1.0,
        "3: interval, per cent": pytest.approx(1.4),
        "first: else": 1.0,
        "next: else": 1.0,
    }


def test_the_parts_of_a_search_are_those_of_its_trace(tmp_path):
    folder = tmp_path / "kernels" / "_scale"
    folder.mkdir(parents=True)
    table = "| what | s | s each |\n|---|---|---|\n| evaluate | 5.00 | 2.50 |\n"
    intro = "| other | 1.00 | 1.00 |\nbaseline, 6 rounds: EDP 0.8000 [0.7840, 0.8160]: better.\n"
    text = f"{intro}Wall time of the latest run, of which 2 states were evaluated:\n\n{table}"
    (folder / "trace.md").write_text(text)
    assert waiting.search_parts(tmp_path) == {
        "evaluate": 5.0,
        "each state": 2.5,
        "EDP, interval, per cent": pytest.approx(2.0),
    }


def test_the_table_has_the_median_of_the_intervals_and_what_else_has_a_goal():
    parts = {
        "before: 1: interval, per cent": 9.0,
        "1: interval, per cent": 1.4,
        "2: interval, per cent": 0.75,
        "3: interval, per cent": 1.0,
        "confirm": 20.0,
    }
    found = waiting.further(Waiting(1.0, 1.0, parts_s=parts))
    assert found == "the comparison 20.0 s, energies ±1.00 % (median), up to ±1.40 %"


def test_parts_are_printed_if_they_are_asked_for(monkeypatch, capsys):
    row = Row("quick", "a quick one", "1 s", lambda _: Waiting(1.0, 0.5, parts_s={"verify": 0.25}))
    monkeypatch.setattr(waiting, "ROWS", (row,))
    assert waiting.main([]) == 0
    assert "verify" not in capsys.readouterr().out
    assert waiting.main(["--parts"]) == 0
    assert capsys.readouterr().out.endswith("| quick | verify | 0.25 |\n")


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_interrupted(tmp_path):
    forever = (sys.executable, "-c", "import signal; signal.pause()")
    with pytest.raises(waiting.EndedError) as ended, waiting.limited(1):
        waiting.timed(forever, tmp_path, tmp_path, lambda whole: {"until then": whole.wall_s})
    found = ended.value.waiting
    assert found.is_ended
    assert 1 <= found.parts_s["until then"] == found.wall_s < waiting.INTERRUPTED_S
