"""How many trials an item needs, from recorded ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import trials_needed


def write(path: Path, edge_sd_s: float) -> str:
    """Three kernels of 55 trials whose edges are off by so much."""
    rng = np.random.default_rng(1)
    rows = []
    for name in "abc":
        joules = 40.0 + np.diff(rng.normal(0, 400.0 * edge_sd_s, 56))
        rows.append({"name": name, "trials": [{"joules": j, "seconds": 0.1} for j in joules]})
    path.write_text(json.dumps(rows))
    return str(path)


@pytest.mark.parametrize(("edge_sd_s", "least", "most"), [(1e-4, 6.0, 6.0), (1e-3, 8.0, 14.0)])
def test_the_less_certain_the_edges_the_more_trials(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    edge_sd_s: float,
    least: float,
    most: float,
) -> None:
    assert trials_needed.main([write(tmp_path / "heat.json", edge_sd_s)]) == 0
    shown = re.search(
        r"27 stretches: ([\d.]+) trials.*; (\d+) of 27 intervals.*by (-[\d.]+)",
        capsys.readouterr().out,
        re.DOTALL,
    )
    assert shown
    assert least <= float(shown[1]) <= most
    assert int(shown[2]) >= 25
    assert -0.6 < float(shown[3]) < -0.3


@pytest.mark.parametrize("text", ["", "{}", '[{"name": "a"}]', '[{"trials": 3}]'])
def test_a_file_without_trials_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "heat.json"
    path.write_text(text)
    assert trials_needed.main([str(path)]) == 2
    assert "holds no trials" in capsys.readouterr().err
