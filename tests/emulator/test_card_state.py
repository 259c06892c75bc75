"""The file of an emulated card: shared, locked, checked, and outliving every process."""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from forked_python import Forked, ForkedPython
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.emulator import (
    DEFAULT_PROFILE,
    PROFILES,
    CardState,
    Demand,
    EmulatedCard,
    EmulatedStateWarning,
    Fault,
    Load,
    Owner,
    VirtualClock,
    find_profile,
)
from pytest_gpuenergy.support import DeviceError, InputError

DEMAND = Demand(time_s=20e-6, power_w=420.0, memory_time=0.1)
SECOND_NS = 10**9
Start = Callable[[str], AbstractContextManager[Forked]]


@pytest.fixture
def child(python: ForkedPython) -> Start:
    """Start a process that runs a text after making ``state``; kill it at the end."""

    @contextlib.contextmanager
    def start(body: str) -> Iterator[Forked]:
        begin = "import sys\nstate = CardState(DEFAULT_PROFILE)\n"
        with python.start(begin + body) as process:
            try:
                yield process
            finally:
                process.kill()

    return start


def run_load(state: CardState) -> None:
    with state.change() as card:
        card.start(Load(Owner.me(), DEMAND))


def energy_pj(state: CardState) -> int:
    card = state.spend(0)
    return card.energy_pj(card.now_ns)


@pytest.fixture
def state() -> CardState:
    return CardState(DEFAULT_PROFILE)


def test_a_new_card_is_idle_at_its_default_limit(state):
    card = state.spend(0)
    assert card.limit_mw == 700_000
    assert card.load is None
    assert 0.95 < card.mean_power_mw(card.now_ns, SECOND_NS) / 98_000 < 1.05


def test_time_passes_by_what_was_slept_and_no_more(state):
    clock = VirtualClock(state)
    before_s = clock.now_s()
    for duration_s in (0.0, 1e-6, 0.0137, 2.5, 30.0):
        clock.sleep_s(duration_s)
    for duration_s in (-1e-9, math.nan, math.inf):
        with pytest.raises(ValueError, match="cannot sleep"):
            clock.sleep_s(duration_s)
    assert clock.now_s() - before_s == pytest.approx(32.513701, abs=1e-8)


def test_a_warm_card_draws_more(state):
    run_load(state)
    state.spend(SECOND_NS)
    powers_w = []
    for _ in range(2):
        begin_pj = energy_pj(state)
        state.spend(10 * SECOND_NS)
        powers_w.append((energy_pj(state) - begin_pj) / 1e13)
        state.spend(60 * SECOND_NS)
    assert powers_w[0] == pytest.approx(420, rel=0.01)
    assert 1.001 < powers_w[1] / powers_w[0] < 1.01


def test_a_load_warms_the_card_and_the_warmth_leaves_again(state):
    cold_c = state.spend(0).temperature_c
    run_load(state)
    warm_c = state.spend(60 * SECOND_NS).temperature_c
    with state.change() as card:
        card.stop()
    assert warm_c > cold_c + 8
    waiting_c = cold_c + 1.0  # by 26 W more, as a card takes that waits with a context
    assert state.spend(120 * SECOND_NS).temperature_c == pytest.approx(waiting_c, abs=0.1)


def test_a_card_waits_at_its_highest_clock_after_a_load(state):
    run_load(state)
    state.spend(2 * SECOND_NS)
    with state.change() as card:
        card.stop()
    state.spend(SECOND_NS)
    card = state.spend(3 * SECOND_NS)
    power_w = card.mean_power_mw(card.now_ns, 3 * SECOND_NS) / 1e3
    assert power_w == pytest.approx(124, rel=0.02)  # H200s: 120 to 133 W
    assert card.point.clock_mhz == 1980
    assert not card.point.effective_clock_mhz


def test_a_card_idles_again_once_the_process_that_used_it_has_ended(child, state):
    body = (
        "with state.change() as card: card.start(Load(Owner.me(), Demand(2e-5, 420.0)))\n"
        "state.spend(1_000_000_000)\n"
        "with state.change() as card: card.stop()\n"
    )
    with child(body) as process:
        assert process.wait() == 0
    state.spend(SECOND_NS)
    card = state.spend(SECOND_NS)
    assert card.mean_power_mw(card.now_ns, SECOND_NS) / 98_000 == pytest.approx(1, rel=0.03)
    assert card.point.clock_mhz == 345


@given(st.lists(st.integers(1, 150_000_000), min_size=1, max_size=40))
def test_energy_does_not_depend_on_the_steps_of_time(steps_ns):
    stepped, at_once = EmulatedCard(DEFAULT_PROFILE, 7), EmulatedCard(DEFAULT_PROFILE, 7)
    for card in (stepped, at_once):
        card.start(Load(Owner.me(), DEMAND))
    for step_ns in steps_ns:
        stepped.advance(stepped.now_ns + step_ns)
    at_once.advance(at_once.now_ns + sum(steps_ns))
    assert stepped.to_json() == at_once.to_json()


def test_another_object_sees_what_one_did_to_this_card(state):
    with state.change() as card:
        card.set_limit(300_000)
    state.spend(123_456)
    other = CardState(DEFAULT_PROFILE).spend(0)
    assert (other.limit_mw, other.now_ns) == (300_000, state.spend(0).now_ns)
    assert CardState(DEFAULT_PROFILE, 1).spend(0).limit_mw == 700_000
    uuids = {profile.uuid(index) for profile in PROFILES.values() for index in range(4)}
    assert len(uuids) == 4 * len(PROFILES)


@pytest.mark.slow
def test_time_moves_on_for_all_processes(child, state):
    before_ns = state.spend(0).now_ns
    with child("print(state.spend(1_500_000_000).now_ns)") as process:
        seen_ns = int(process.read_line())
    assert state.spend(0).now_ns == seen_ns == before_ns + 1_500_000_000


def test_many_processes_lose_no_time_to_each_other(child, state):
    before_ns = state.spend(0).now_ns
    body = "for _ in range(200): state.spend(10_000_000)"
    with child(body) as first, child(body) as second:
        for _ in range(200):
            state.spend(10_000_000)
        assert [first.wait(), second.wait()] == [0, 0]
    assert state.spend(0).now_ns - before_ns == 3 * 200 * 10_000_000


def test_a_killed_owners_load_ends(child, state):
    body = (
        "with state.change() as card: card.start(Load(Owner.me(), Demand(2e-5, 420.0)))\n"
        "print('running', flush=True)\n"
        "sys.stdin.read()"
    )
    with child(body) as process:
        assert process.read_line() == "running\n"
        load = state.spend(SECOND_NS).load
        assert load is not None
        assert load.owner.pid == process.pid
        process.kill()
        process.wait()
    assert state.spend(0).load is None
    card = state.spend(2 * SECOND_NS)
    assert card.mean_power_mw(card.now_ns, SECOND_NS) < 110_000


def test_a_number_used_again_is_another_owner():
    me = Owner.me()
    assert me.alive()
    assert not Owner(me.pid, me.started + 1).alive()


def test_a_process_killed_while_it_writes_leaves_a_whole_state(child):
    limits = {200_000, 450_000}
    body = (
        "while True:\n"
        "    for limit in (200_000, 450_000):\n"
        "        with state.change() as card: card.set_limit(limit)\n"
        "        print('written', flush=True)\n"
    )
    for lines in (1, 3, 10, 50):
        with child(body) as process:
            for _ in range(lines):
                assert process.read_line() == "written\n"
        # A damaged file would warn, and warnings are errors here.
        assert CardState(DEFAULT_PROFILE).spend(SECOND_NS).limit_mw in limits


def test_an_exception_discards_the_change(state):
    with contextlib.suppress(RuntimeError), state.change() as card:
        card.set_limit(250_000)
        raise RuntimeError
    assert state.spend(0).limit_mw == 700_000


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "\0" * 5000,
        "[]",
        "{",
        {"version": 99},
        {"now_ns": "later"},
        {"times_ns": []},
        {"edge_ns": 0},
        {"load": {"owner": 3}},
        {"load": {"owner": {"pid": 1, "started": 1}, "demand": vars(DEMAND), "marks": []}},
        {"faults": [{}]},
        "[" * 100_000,
        {"tick_pj": math.inf},
        {"warmth": {"die": "9" * 500, "sink": 0}},
        {"warmth": {"die": math.nan, "sink": 0}},
        {"now_ns": 10**400},
        {"limit_mw": -1},
        {"limit_mw": 10**15},
        {"now_ns": 2**63, "edge_ns": 2**63 + 1},
        {"power_mw": -5},
        {"power_mw": 10**15},
        {"tick_pj": -1},
        {"counter_base_pj": 10**40},
        {"counter_stuck_mj": -1},
        {"energies_pj": 10**40},
        {"hidden_state": 99},
    ],
    ids=lambda damage: str(damage)[:30],
)
def test_a_damaged_file_is_replaced_with_a_warning(state, damage):
    with state.change() as card:
        card.set_limit(300_000)
    content = json.loads(state.path.read_text())
    if "energies_pj" in damage:
        damage = {"energies_pj": [*content["energies_pj"][:-1], 10**40]}
    text = damage if isinstance(damage, str) else json.dumps({**content, **damage})
    state.path.write_text(text)
    with pytest.warns(EmulatedStateWarning, match="was damaged .* replaced by a fresh one"):
        assert state.spend(0).limit_mw == 700_000
    assert state.path.with_suffix(".damaged").exists()
    assert CardState(DEFAULT_PROFILE).spend(0).load is None


def test_a_damaged_clock_is_ignored(state):
    now_ns = state.spend(SECOND_NS).now_ns
    state.path.with_suffix(".clock").write_bytes(b"\xff" * 8)
    assert 0 <= now_ns - CardState(DEFAULT_PROFILE).spend(0).now_ns <= 2 * SECOND_NS


def test_a_removed_file_means_a_new_card(state):
    with state.change() as card:
        card.set_limit(300_000)
    state.path.unlink()
    assert state.spend(0).limit_mw == 700_000


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".json", r"cannot be read .* set GPUENERGY_STATE"),
        (".tmp", "cannot be written"),
        (".clock", "clock of the emulated GPU"),
    ],
)
def test_a_folder_in_place_of_a_file_is_a_device_error(state, suffix, message):
    state.path.with_suffix(suffix).mkdir()
    with pytest.raises(DeviceError, match=message):
        state.spend(0)


@pytest.mark.parametrize("name", ["json", "clock"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(state, name):
    os.mkfifo(state.path.with_suffix(f".{name}"))
    with pytest.raises(DeviceError, match=r"it is not a file.* set GPUENERGY_STATE"):
        state.spend(0)


def test_a_forked_child_takes_its_own_lock(child, state):
    before_ns = state.spend(0).now_ns
    body = (
        "import os\n"
        "state.spend(0)\n"
        "child = os.fork()\n"
        "for _ in range(300): state.spend(1_000_000)\n"
        "if child: os.waitpid(child, 0)\n"
    )
    with child(body) as process:
        assert process.wait() == 0
    assert state.spend(0).now_ns == before_ns + 600_000_000


def test_the_history_on_disk_stays_short(state):
    run_load(state)
    for _ in range(50):
        state.spend(1_234_567_890)
    state.close()
    assert len(json.loads(state.path.read_text())["times_ns"]) <= 257


def test_everything_follows_from_the_file(state, tmp_path):
    run_load(state)
    state.spend(0)
    copy = tmp_path / "copy"
    copy.write_bytes(state.path.read_bytes())
    clock = state.path.with_suffix(".clock").read_bytes()
    first = state.spend(7 * SECOND_NS).to_json()
    copy.replace(state.path)
    state.path.with_suffix(".clock").write_bytes(clock)
    assert state.spend(7 * SECOND_NS).to_json() == first


def test_a_profile_is_found_in_any_case_or_the_choices_are_listed():
    assert find_profile("RTX4090").name == "NVIDIA GeForce RTX 4090"
    with pytest.raises(InputError, match=r"no emulated GPU 'b200'.*h200, rtx3090, rtx4090, v100"):
        find_profile("b200")


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.key)
def test_every_profile_is_consistent(profile):
    assert profile.idle_w < profile.min_limit_w
    assert profile.min_limit_w < profile.default_limit_w <= profile.max_limit_w
    assert profile.shared_per_block <= profile.shared_per_sm
    assert profile.min_clock_mhz < profile.max_clock_mhz


def test_an_interrupt_while_a_file_is_closed_leaves_the_card_usable(monkeypatch):
    state = CardState(DEFAULT_PROFILE)
    with state.change():
        pass
    close, held = os.close, state._held

    def interrupted(descriptor: int) -> None:
        close(descriptor)
        if descriptor == held:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", interrupted)
        with pytest.raises(KeyboardInterrupt), state.change():
            pass
    state.spend(SECOND_NS)
    state.close()


STRANGE = [
    *(-1, 0, 1, 2**31, 2**62, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.5, -0.5, 1e-300, 1e300, -1e300, math.inf, -math.inf, math.nan),
    *(None, True, "1", "x" * 1000, [], {}, [[]]),
]


@pytest.fixture
def busy_state(own_folders: object) -> Iterator[CardState]:  # noqa: ARG001
    """A card with a load and faults."""
    busy_state = CardState(DEFAULT_PROFILE)
    for what, value in (("foreign_process", {"pid": 7, "power_w": 50.0}), ("energy", "unknown")):
        busy_state.inject(Fault.of(what, value))
    with busy_state.change() as card:
        card.start(Load(Owner.me(), Demand(20e-6, 420.0, 0.1)))
    busy_state.spend(SECOND_NS)
    yield busy_state
    busy_state.close()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all plain values, and to the first two values of long lists."""
    if isinstance(value, dict | list):
        items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)][:2]
        for key, inner in items:
            yield from places(inner, (*path, key))
    else:
        yield path


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_number_is_in_range_or_makes_a_new_card(busy_state, data):
    with busy_state.change():
        pass
    good = busy_state.path.read_text()
    content = json.loads(good)
    path = data.draw(st.sampled_from([*places(content)]))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(st.sampled_from(STRANGE))
    busy_state.path.write_text(json.dumps(content))
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
    busy_state.path.write_text(good)
