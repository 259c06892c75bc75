"""The study of what an earlier session tells about a card's temperature."""

from __future__ import annotations

import sys
from pathlib import Path

import known_cooling
import pytest

TRACE = "bench/results/nvidia-h200-2026-11-23/temperature-trace.json"


def test_a_known_card_is_expected_to_settle_where_it_does(monkeypatch, capsys):
    trace = Path(__file__).parents[2] / TRACE
    monkeypatch.setattr(sys, "argv", ["known_cooling.py", str(trace)])
    known_cooling.main()
    header, _, first, *_ = capsys.readouterr().out.splitlines()
    cells = dict(zip(header.split(" | "), first.split(" | "), strict=True))
    assert float(cells["settled, known card"]) == pytest.approx(53.0, abs=1.5)
    assert float(cells["settled"]) > 55.0


def test_trials_that_begin_later_are_less_off(monkeypatch, capsys):
    trace = Path(__file__).parents[2] / TRACE
    monkeypatch.setattr(sys, "argv", ["known_cooling.py", str(trace), "--starts"])
    known_cooling.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    off = [float(line.split(" | ")[2].rstrip(" %|")) for line in lines]
    assert off == sorted(off, reverse=True)
    assert off[0] > off[-1] == 0.0
