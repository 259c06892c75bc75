"""A small fleet with losses, simulated: every item is measured once, and the GPUs are kept busy."""

from __future__ import annotations

import pytest
from fleet_simulation import simulate
from simulated_fleet import Plan

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_nothing_is_lost_or_doubled(tmp_path, monkeypatch, known):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    plan = Plan(
        hosts=3,
        gpus=2,
        items=240,
        kernels=2,
        kills=2,
        hosts_lost=1,
        unusable=1,
        known=known,
        seed=3,
    )
    found = simulate(plan, tmp_path)
    assert found.problems == []
    assert found.exit_code == 0
    assert (found.measured, found.lost, found.doubled) == (240, 0, 0)
    assert found.rerun > 0
    # A GPU whose groups are done ends; what is counted is the time in which there was work for it.
    assert found.waiting_share < 0.05
