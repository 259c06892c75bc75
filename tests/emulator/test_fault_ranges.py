"""Numbers in faults: each is refused in one sentence, or the card can still be measured."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from pytest_gpuenergy.emulator import EVENTS, PROFILES, CardState, Demand, Fault, VirtualRepeater
from pytest_gpuenergy.support import GpuEnergyError, InputError

NUMBERS = st.one_of(
    st.integers(-1, 10**30),
    st.floats(allow_nan=True),
    st.sampled_from([0, 0.5, 1, 1.0, 699.9, 5e4, 6e4, 1e5, 9e8, 1e9, 2**31 - 1, 2**31, 2**62]),
)
OPTIONS = ("after_s", "lasts_s", "power_w", "percent", "pid", "field", "after_calls")
LONG_RUN = Demand(2.0, 600.0, 0.3, 0.3)
SHORT_RUN = Demand(1e-4, 600.0, 0.3, 0.3)
FOREIGN = "foreign_process"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    profile=st.sampled_from(sorted(PROFILES)),
    demand=st.sampled_from([LONG_RUN, SHORT_RUN]),
    what=st.sampled_from(sorted([*EVENTS, "power", "energy"])),
    options=st.dictionaries(st.sampled_from(OPTIONS), NUMBERS, max_size=3),
)
@example("h200", SHORT_RUN, FOREIGN, {"pid": 1, "power_w": 5e4})
@example("h200", SHORT_RUN, FOREIGN, {"pid": 2**31 - 1, "power_w": 6e4})
@example("v100", SHORT_RUN, FOREIGN, {"pid": 10**30})
@example("h200", SHORT_RUN, "limit_changed", {"power_w": 0.5})
@example("h200", SHORT_RUN, "limit_changed", {"power_w": 1})
@example("h200", SHORT_RUN, "limit_changed", {"power_w": 5e4})
@example("h200", LONG_RUN, "enforced_limit", {"power_w": 1})
@example("h200", LONG_RUN, "slower", {"percent": 1e5})
def test_a_number_is_refused_or_the_card_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    profile: str,
    demand: Demand,
    what: str,
    options: dict[str, Any],
) -> None:
    monkeypatch.setenv("GPUENERGY_STATE", str(tmp_path_factory.mktemp("state")))
    named = {**options, **({} if what in EVENTS else {"error": "unknown"})}
    try:
        fault = Fault.of(what, named)
    except InputError as error:
        refused = str(error)
    else:
        refused = ""
    assert "\n" not in refused
    if refused:
        return
    card = CardState(PROFILES[profile])
    identity = card.inject(fault)
    repeater = VirtualRepeater(card, demand, 1e7, 1)
    with contextlib.suppress(GpuEnergyError):
        repeater.start()
        card.spend(3_000_000_000)
        repeater.abandon()
    again = CardState(PROFILES[profile])  # reads the file: a damaged one would be a warning
    drawn_w = again.spend(0).energy.power_mw / 1000
    assert 0 < drawn_w <= PROFILES[profile].max_limit_w
    again.withdraw(identity)


def test_a_greedy_process_heats_the_card_no_more_than_its_limit_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("GPUENERGY_STATE", str(tmp_path_factory.mktemp("state")))
    card = CardState(PROFILES["h200"])
    identity = card.inject(Fault.of(FOREIGN, {"pid": 1, "power_w": 5e4}))
    assert 40 < card.spend(300_000_000_000).temperature_c < 100
    card.withdraw(identity)
