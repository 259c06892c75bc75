"""Which variants are compared with the baseline at the end of a search, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_specs import write

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import (
    ROUNDS,
    Bench,
    Confirmation,
    Gain,
    Node,
    OwnProcess,
    compare,
    read_spec,
)
from pytest_gpuenergy.search.trust import gain as gain_module

Gains = Callable[..., list[Gain | None]]


@pytest.fixture
def compared() -> list[str]:
    """The ids of the variants that are measured alternately with the baseline."""
    return []


@pytest.fixture
def gains(compared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gains:
    """gains(time_ms, ..., stopped=...): of a baseline and 12 variants; none is accepted."""

    def found(_: Bench, state: str, *, candidates: int, **__: object) -> Gain:
        compared.append(state)
        return Gain(id=state, accepted=False, rounds=ROUNDS, candidates=candidates)

    monkeypatch.setattr(gain_module, "compare", found)
    bench: Any = SimpleNamespace(
        objective=Metric.TIME, spec=SimpleNamespace(name="scale"), why_unproven=lambda _: ""
    )
    folder: Any = SimpleNamespace(
        path=tmp_path, earlier_gain=lambda _: None, keep_gain=lambda _: None
    )

    def go(*times_ms: float, stopped: bool = False) -> list[Gain | None]:
        nodes = [
            Node(id=f"s{place}", parent=None, outcome="correct", cost=time_ms, time_ms=time_ms)
            for place, time_ms in enumerate((*times_ms, *[2.0] * (12 + 1 - len(times_ms))))
        ]
        states: Any = {node.id: node.id for node in nodes}
        ending = Confirmation(OwnProcess(bench), folder, states, lambda _: None, lambda: stopped)
        return list(ending.gains(nodes))

    return go


def test_a_tiny_gain_is_left_out_and_says_why(gains: Gains, compared: list[str]) -> None:
    [only] = gains(1.0, 0.9998, 0.9999)
    assert compared == []
    assert only is not None
    assert (only.id, only.accepted, only.rounds, only.candidates) == ("s1", False, 0, 12)
    assert only.message == (
        "left out: by the search's own figures it takes 0.02% less time, too little to be claimed "
        "of the best of 12"
    )


def test_after_larger_gains_tiny_ones_are_left_out(gains: Gains, compared: list[str]) -> None:
    found = gains(1.0, 0.9, 0.9999, 0.8)
    assert compared == ["s3", "s1"]
    assert [gain and gain.id for gain in found] == compared


def test_what_is_slower_than_the_baseline_is_not_compared(gains: Gains) -> None:
    assert gains(1.0, 1.1, 1.0) == []


def test_nothing_is_compared_once_it_is_stopped(gains: Gains, compared: list[str]) -> None:
    assert gains(1.0, 0.9, stopped=True) == [None]
    assert compared == []


@pytest.mark.slow
def test_a_comparison_of_equals_ends_early(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        gain = compare(Bench(spec, device, Metric.EDP), spec.baseline, candidates=12)
    assert gain is not None
    assert not gain.accepted
    assert gain.ended_early
    assert gain.rounds == 3
    assert len(gain.turns) == 6
    assert all(ends.low < 1 < ends.high for ends in gain.ratio_intervals.values())
    assert all(turn.effective_sm_clock_mhz and turn.temperature_c for turn in gain.turns)
