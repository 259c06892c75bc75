"""The tables and the plot of replays say what the reports say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import replay_tables

RESULTS = Path(__file__).parents[2] / "bench/results"
ALONE = RESULTS / "nvidia-h200-2026-11-25/replay-bloom-560m.json"
DIVIDED = RESULTS / "nvidia-h100-2026-11-25/replay-bloom-560m-tp2.json"


def test_each_step_has_a_line(capsys):
    assert replay_tables.main([str(ALONE)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 6
    assert "| bloom-560m | decode step 1 | graph | 557.7 ±6.4 | 533.4 ±5.3 | -4.9 | " in lines[5]
    assert lines[5].endswith(" | -0.4% | 2.239 |")


def test_residuals_that_are_too_large_are_bold(capsys):
    assert replay_tables.main([str(ALONE), "--residuals"]) == 0
    *_, prefill, decode = capsys.readouterr().out.splitlines()
    name, step, size, *levels, card, date, report = prefill.strip("| ").split(" | ")
    assert (name, step, size) == ("bloom-560m", "prefill", "1 x 1024")
    assert levels[0] == "4896 ±139, -0.9% (**-2.5%**)"
    assert [one.partition(", ")[2] for one in levels[1:]] == [
        "-1.8% (**-2.5%**)",
        "-2.0% (**-2.6%**)",
    ]
    assert (card, date, report) == ("GPU-f323c667", "2026-11-25", "replay-bloom-560m")
    assert decode.startswith(
        "| bloom-560m | decode step 1 | 1 x 1024 | 557.7 ±6.4, -1.5% (-0.4%) |"
    )


def test_the_last_report_of_a_step_counts(capsys):
    older, newer = (
        RESULTS / f"nvidia-h200-2026-11-29/replay-{name}.json"
        for name in ("gemma-2b", "gemma-2b-prefill")
    )
    assert replay_tables.main([str(older), str(newer), "--residuals"]) == 0
    *_, decode, prefill = capsys.readouterr().out.splitlines()
    assert decode.endswith(" | replay-gemma-2b |")
    assert prefill.endswith(" | replay-gemma-2b-prefill |")


def test_figures_of_several_gpus_are_added_up(capsys):
    assert replay_tables.main([str(DIVIDED)]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "| prefill | graph" in one]
    cells = [cell.strip() for cell in line.split("|")]
    accounts = json.loads(DIVIDED.read_text())["accounts"]
    parts = [one for one in accounts if (one["step"], one["level"]) == (0, "graph")]
    assert len(parts) == 2
    assert cells[1] == "bloom-560m on 2 GPUs"
    assert float(cells[4].split()[0]) == round(sum(one["energy_mj"] for one in parts))
    assert float(cells[9]) == round(sum(one["links_mj"] for one in parts))


def test_the_same_step_on_another_kind_of_gpu_does_not_replace_it(capsys):
    other = RESULTS / "nvidia-h200-2026-11-30/replay-vicuna-7b-tp2.json"
    first = DIVIDED.with_name(other.name)
    assert replay_tables.main([str(first), str(other), "--residuals"]) == 0
    cards = [line.split(" | ")[6] for line in capsys.readouterr().out.splitlines()[2:]]
    assert cards == ["GPU-efaf6cea"] * 2 + ["GPU-b397b7c6"] * 2


def test_how_often_intervals_hold_is_counted_by_level(capsys):
    path = RESULTS / "nvidia-h200-2026-11-29/replay-vit-base-compiled.json"  # which missed by 8 %
    assert replay_tables.main([str(ALONE), str(path), "--intervals"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        ["graph", "3", "2"],
        ["eager", "3", "2"],
        ["layers", "2", "2"],
    ]
    assert all(int(row[3]) <= int(row[2]) for row in rows)


def test_large_steps_have_a_scale_of_their_own():
    paths = (ALONE.with_name("replay-vicuna-7b.json"), ALONE)
    steps = [one for path in paths for one in replay_tables.steps_of(replay_tables.load(path))]
    titles = [bars["title"].partition(":")[0] for bars in replay_tables.plot(steps)["vconcat"]]
    assert titles == [
        "decode step 1, less than 10 J",
        "prefill, less than 10 J",
        "prefill, more than 10 J",
    ]


def test_bars_end_at_what_was_predicted_though_terms_are_negative():
    path = RESULTS / "nvidia-h200-2026-11-29/replay-pythia-410m-8x512.json"
    report = replay_tables.load(path)
    _, prefill = replay_tables.plot(list(replay_tables.steps_of(report)))["vconcat"]
    (graph,) = [one for one in report.accounts if (one.step, one.level) == (0, "graph")]
    assert graph.neighbours_mj < 0
    joules = sum(one["joules"] for one in prefill["layer"][0]["data"]["values"])
    assert joules == pytest.approx(graph.predicted_mj / 1e3)


def test_the_plot_stacks_what_was_predicted(tmp_path):
    pytest.importorskip("vl_convert", reason="needs vl-convert")
    reports = [replay_tables.load(path) for path in (ALONE, DIVIDED)]
    steps = [step for report in reports for step in replay_tables.steps_of(report)]
    upper, lower = replay_tables.plot(steps)["vconcat"]
    assert lower["title"].startswith("prefill, less than 10 J")
    values = upper["layer"][0]["data"]["values"]
    alone = sum(one["joules"] for one in values if "H200" in one["row"])
    (graph,) = [one for one in reports[0].accounts if (one.step, one.level) == (1, "graph")]
    assert alone == pytest.approx(graph.predicted_mj / 1e3)
    assert {one["part"] for one in values} == set(replay_tables._ORDER)
    path = tmp_path / "joules.svg"
    assert replay_tables.main([str(ALONE), "--plot", str(path)]) == 0
    assert "bloom-560m" in path.read_text()
