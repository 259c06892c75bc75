"""Numbers out of range in the emulated card's file."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.emulator import (
    DEFAULT_PROFILE,
    CardState,
    Demand,
    EmulatedStateWarning,
    Fault,
    Load,
    Owner,
)

SECOND_NS = 10**9
STRANGE = [
    *(-1, 0, 1, 2**31, 2**62, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.5, -0.5, 1e-300, 1e300, -1e300, math.inf, -math.inf, math.nan),
    *(None, True, "1", "x" * 1000, [], {}, [[]]),
]


@pytest.fixture
def state(own_folders: object) -> Iterator[CardState]:  # noqa: ARG001
    """A card with a load and faults."""
    state = CardState(DEFAULT_PROFILE)
    for what, value in (("foreign_process", {"pid": 7, "power_w": 50.0}), ("energy", "unknown")):
        state.inject(Fault.of(what, value))
    with state.change() as card:
        card.start(Load(Owner.me(), Demand(20e-6, 420.0, 0.1)))
    state.spend(SECOND_NS)
    yield state
    state.close()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values that are no lists or objects; the first two of long lists."""
    if isinstance(value, dict | list):
        items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)][:2]
        for key, inner in items:
            yield from places(inner, (*path, key))
    else:
        yield path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_number_is_in_range_or_makes_a_new_card(state: CardState, data: st.DataObject) -> None:
    with state.change():
        pass
    good = state.path.read_text()
    content = json.loads(good)
    path = data.draw(st.sampled_from([*places(content)]))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(st.sampled_from(STRANGE))
    state.path.write_text(json.dumps(content))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatedStateWarning)
        other = CardState(DEFAULT_PROFILE)
        before = other.spend(0)
        begin_ns, begin_pj = before.now_ns, before.energy.at_pj(before.now_ns)
        card = other.spend(SECOND_NS)
        drawn_j = (card.energy.at_pj(card.now_ns) - begin_pj) / 1e12
        other.close()
    assert card.now_ns - begin_ns == SECOND_NS
    assert 0 < drawn_j < 2e4
    assert -50 < card.profile.cooling.temperature_c(card.warmth) < 1e5
    state.path.write_text(good)


@pytest.mark.parametrize(
    "damage",
    [
        {"limit_mw": -1},
        {"limit_mw": 10**15},
        {"now_ns": 2**63, "edge_ns": 2**63 + 1},
        {"power_mw": -5},
        {"power_mw": 10**15},
        {"tick_pj": -1},
        {"counter_base_pj": 10**40},
        {"counter_stuck_mj": -1},
        {"energies_pj": [10**40]},
        {"hidden_state": 99},
    ],
    ids=str,
)
def test_a_number_out_of_range_makes_a_new_card(
    state: CardState, damage: dict[str, object]
) -> None:
    content = json.loads(state.path.read_text())
    if "energies_pj" in damage:
        damage = {"energies_pj": [*content["energies_pj"][:-1], 10**40]}
    state.path.write_text(json.dumps({**content, **damage}))
    other = CardState(DEFAULT_PROFILE)
    with pytest.warns(EmulatedStateWarning, match="was damaged .* replaced by a fresh one"):
        other.spend(0)
    other.close()
