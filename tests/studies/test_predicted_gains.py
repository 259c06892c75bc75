"""Predicted gains, compared with those that searches found."""

from __future__ import annotations

from pathlib import Path

import experience_replay
import predicted_gains as bench
import pytest
import searched

from pytest_gpuenergy.cli import main

RECORD = Path(bench.__file__).parents[1] / "bench/results/nvidia-h100-2026-11-25/searches.json.gz"
KERNELS = Path(bench.__file__).parents[1] / "bench/search/kernels"


def test_only_the_order_counts():
    pairs = [bench.Pair(found, found**3, 0) for found in (-2, -1, 0, 1, 2)]
    assert bench.spearman(pairs) == pytest.approx(1)
    assert bench.interval(pairs)[1] == pytest.approx(1)
    assert bench.spearman([bench.Pair(1, 1, 0)] * 3) == 0
    assert list(bench.ranks([3, 1, 3])) == [1.5, 0, 1.5]


def test_good_ones_that_would_be_left_out_are_counted():
    pairs = [bench.Pair(0.5, 0, 0.001), bench.Pair(0.5, 0, 0.4), bench.Pair(-0.5, 0, 0.001)]
    assert bench.row("k", pairs, 0.02)[-1] == "1 of 2"


@pytest.mark.slow
def test_a_search_is_read(tmp_path, capsys):
    words = ["--no-llm", "--gpus", "emulated:h200", "--budget-builds", "4"]
    out = ["--outdir", str(tmp_path / "out")]
    assert main(["optimize", str(KERNELS / "histogram.json"), *words, *out]) == 0
    capsys.readouterr()
    assert bench.main([str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out
    assert "| histogram | 4 |" in table
    assert searched.main([str(tmp_path / "out"), str(tmp_path / "out.json.gz")]) == 0
    assert bench.main([str(tmp_path / "out.json.gz")]) == 0
    assert capsys.readouterr().out == table


@pytest.mark.slow
def test_a_kept_search_is_read_in_another_objective_and_by_move(capsys):
    words = [str(RECORD), "--kernels", "lora_expand_triton", "--objective", "time"]
    assert bench.main(words) == 0
    assert "| lora_expand_triton | 44 |" in capsys.readouterr().out
    assert bench.main([*words, "--moves"]) == 0
    assert "| cache_policy_cg |" in capsys.readouterr().out


def test_experience_with_a_move_corrects_what_is_expected_of_its_other_places(capsys):
    pairs = [bench.Pair(-0.3, 0.2, 0.2, "move", str(place)) for place in range(9)]
    alone, by_move = (
        experience_replay.expected(pairs, by_move=by_move) for by_move in (False, True)
    )
    assert [pair.mean for pair in alone] == [pytest.approx(0.2)] * 9
    assert by_move[0].mean == pytest.approx(0.2)
    assert by_move[5].mean == pytest.approx(0.2 - 0.5 * 5 / 10)
    assert experience_replay.main([str(RECORD), "--kernels", "lora_expand_triton"]) == 0
    assert "rank correlation" in capsys.readouterr().out
    assert experience_replay.main([str(RECORD), "--kernels", "none"]) == 2
