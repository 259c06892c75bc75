"""The study of measurements at the power limit."""

from __future__ import annotations

import re
from pathlib import Path

import limit_swings

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def test_whole_swings_are_off_by_less_than_longer_parts(capsys):
    report = RESULTS / "nvidia-h200-2026-11-26" / "gemm-large-0.json"
    assert limit_swings.main([str(report)]) == 0
    out = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| +0.0")]
    off = {float(length): float(rms.rstrip("%")) for _, length, _, rms, _ in rows}
    assert off[1.0] < off[1.5]
    assert off[2.0] < off[2.5]
    held = re.search(r"([\d.]+)% of the intervals", out)
    assert held is not None
    assert float(held[1]) >= 95
