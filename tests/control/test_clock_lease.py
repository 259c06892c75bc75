"""Locked clocks are unlocked, whatever happens to the process that locked them."""

from __future__ import annotations

import json
import os
import signal

import pytest
from power_cards import DIE, PRIOR_MW, killed, present_mw

from pytest_gpuenergy.control import (
    CURRENT,
    Lease,
    LeaseRecord,
    NvmlWriter,
    Setpoint,
    enforced_setpoint,
    leftover,
    locked_mhz,
    recorded_uuids,
    restore_kept,
    restore_leftover,
)
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import SetpointError, termination_as_interrupt

CLOCK = Setpoint(sm_clock_mhz=1500)
BOTH = Setpoint(300.0, sm_clock_mhz=1500)
UNLOCKED = "The SM clocks of NVIDIA H200 are unlocked, which is the default."


def lock_mhz(device: EmulatedDevice) -> int | None:
    """Return the clock to which the card is locked, which NVML does not report."""
    with device.state.change() as card:
        if card.lock_mhz is None:
            return None
        low, high = card.lock_mhz
    assert low == high
    return high


def test_clocks_are_locked_and_told(card):
    assert Lease(card).set(BOTH) == BOTH
    assert (lock_mhz(card), present_mw(card)) == (1500, 300_000)
    assert enforced_setpoint(card) == BOTH


def test_a_clock_alone_leaves_the_limit(card):
    card.inject("power_limit", "no_permission")
    assert Lease(card).set(CLOCK) == Setpoint(PRIOR_MW / 1e3, sm_clock_mhz=1500)
    assert lock_mhz(card) == 1500


@pytest.mark.parametrize("then", [CURRENT, Setpoint(300.0)])
def test_a_setpoint_without_a_clock_unlocks(card, then):
    lease = Lease(card)
    lease.set(BOTH)
    assert lease.set(then).sm_clock_mhz is None
    assert lock_mhz(card) is None


def test_both_are_restored_and_nothing_is_left_on_disk(card):
    lease = Lease(card)
    for clock_mhz in (1500, 1200):
        lease.set(Setpoint(300.0, sm_clock_mhz=clock_mhz))
    lease.restore()
    lease.restore()
    assert (lock_mhz(card), present_mw(card)) == (None, PRIOR_MW)
    assert recorded_uuids() == []


def test_what_others_lock_is_not_unlocked_by_who_locks_nothing(card):
    card.inject("clock_locked", {"clock_mhz": 1200})
    lease = Lease(card)
    lease.set(Setpoint(300.0))
    lease.restore()
    assert lock_mhz(card) == 1200


def test_a_lock_is_written_anew_because_it_may_be_lost(card):
    lease = Lease(card)
    lease.set(CLOCK)
    card.inject("lock_lost")
    assert lock_mhz(card) is None
    lease.set(CLOCK)
    assert lock_mhz(card) == 1500


def test_a_clock_that_the_card_does_not_support_is_refused(card):
    with pytest.raises(SetpointError, match=r"cannot be locked: 1503 MHz is none .* are nearest"):
        Lease(card).set(Setpoint(sm_clock_mhz=1503))
    assert lock_mhz(card) is None
    assert recorded_uuids() == []


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("no_permission", "run as root"),
        ("not_supported", "this card's clock cannot be changed; use --smclock current"),
        ("invalid_argument", "choose a clock within the card's constraints"),
    ],
)
def test_a_refusal_says_what_to_do_and_leaves_nothing(card, error, advice):
    card.inject("clock_lock", error)
    lease = Lease(card)
    with pytest.raises(SetpointError, match=rf"cannot be locked to 1500 MHz \(.*\): .*{advice}"):
        lease.set(CLOCK)
    assert recorded_uuids() == []
    lease.restore()


def test_a_later_refusal_keeps_the_first_lock_to_be_undone(card):
    lease = Lease(card)
    lease.set(CLOCK)
    card.inject("clock_lock", "no_permission")
    with pytest.raises(SetpointError):
        lease.set(Setpoint(sm_clock_mhz=1200))
    assert locked_mhz(card.uuid) == 1500
    lease.restore()
    assert lock_mhz(card) is None


def test_a_write_of_unknown_outcome_is_undone(card):
    class Unlucky(NvmlWriter):
        def lock_clocks(self, clock_mhz: int) -> None:
            super().lock_clocks(clock_mhz)
            raise SetpointError("No answer within 10 s.")

    lease = Lease(card, Unlucky(card))
    with pytest.raises(SetpointError, match="No answer"):
        lease.set(CLOCK)
    assert lock_mhz(card) == 1500
    lease.set(CURRENT)
    assert lock_mhz(card) is None
    assert recorded_uuids() == []


def test_nothing_is_locked_when_the_record_cannot_be_written(card, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    lease = Lease(card)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SetpointError, match=r"No space left .* no clock locked"):
        lease.set(CLOCK)
    assert lock_mhz(card) is None


def test_clocks_that_cannot_be_unlocked_are_told_and_the_limit_is_restored(card):
    lease = Lease(card)
    lease.set(BOTH)
    fault = card.inject("clock_reset", "no_permission")
    with pytest.raises(SetpointError, match=r"were not unlocked \(gpuenergy powercap restore"):
        lease.restore()
    assert present_mw(card) == PRIOR_MW
    card.state.withdraw(fault)
    assert restore_leftover(card) == UNLOCKED
    assert lock_mhz(card) is None


def test_a_limit_that_cannot_be_restored_does_not_keep_the_lock(card):
    lease = Lease(card)
    lease.set(BOTH)
    card.inject("power_limit", "no_permission")
    with pytest.raises(SetpointError, match="was not restored to 450 W"):
        lease.restore()
    assert lock_mhz(card) is None
    record = leftover(card.uuid, locked=True)
    assert record is not None
    assert record.sm_clock_mhz is None


def test_the_next_start_unlocks_after_a_kill(card):
    killed("lease.set(Setpoint(300.0, sm_clock_mhz=1500))\n")
    assert lock_mhz(card) == 1500
    assert Lease(card).restored == (f"The power limit of NVIDIA H200 is back at 450 W. {UNLOCKED}")
    assert (lock_mhz(card), present_mw(card)) == (None, PRIOR_MW)


@pytest.mark.parametrize("written", [False, True])
def test_a_kill_in_the_middle_of_a_lock_is_undone(card, written):
    killed(
        "lock = device.nvml.nvmlDeviceSetGpuLockedClocks\n"
        + "def die(*arguments):\n"
        + ("    lock(*arguments)\n" if written else "")
        + f"    {DIE}"
        + "device.nvml.nvmlDeviceSetGpuLockedClocks = die\n"
        + "lease.set(Setpoint(sm_clock_mhz=1500))\n"
    )
    assert restore_leftover(card) == UNLOCKED
    assert lock_mhz(card) is None
    assert recorded_uuids() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_lock_waits_and_nothing_is_lost(card, number):
    class Interrupted(NvmlWriter):
        def lock_clocks(self, clock_mhz: int) -> None:
            os.kill(os.getpid(), number)
            super().lock_clocks(clock_mhz)

    with termination_as_interrupt():
        lease = Lease(card, Interrupted(card))
        with pytest.raises(KeyboardInterrupt):
            lease.set(CLOCK)
        assert lock_mhz(card) == 1500
        lease.restore()
    assert lock_mhz(card) is None


def test_a_record_without_any_setting_is_refused(card, own_folders):
    Lease(card).set(CLOCK)
    path = own_folders / "leases" / f"{card.uuid}.json"
    stored = json.loads(path.read_text())
    assert stored["sm_clock_mhz"] == 1500
    assert "power_limit_mw" not in stored
    del stored["sm_clock_mhz"]
    path.write_text(json.dumps(stored))
    with pytest.raises(SetpointError, match=r"cannot be read: .* unlock its clocks \(nvidia-smi"):
        Lease(card)
    assert locked_mhz(card.uuid) is None


# -- clocks that somebody else has locked ------------------------------------------------------


class Guard:
    """Refuses the card, and counts its calls."""

    def __init__(self, *, refuses: bool = True) -> None:
        self.asked, self.refuses = 0, refuses

    def __call__(self) -> None:
        self.asked += 1
        if self.refuses:
            raise SetpointError("Somebody else seems to have locked it.")


def test_a_card_that_looks_locked_is_not_locked(card):
    guard = Guard()
    lease = Lease(card, before_lock=guard)
    for clock_mhz in (1500, 1200):
        with pytest.raises(SetpointError, match="Somebody else seems"):
            lease.set(Setpoint(sm_clock_mhz=clock_mhz))
    lease.restore()
    assert guard.asked == 1
    assert lock_mhz(card) is None
    assert recorded_uuids() == []


def test_a_card_is_looked_at_once(card):
    guard = Guard(refuses=False)
    lease = Lease(card, before_lock=guard)
    for setpoint in (CLOCK, CURRENT, Setpoint(sm_clock_mhz=1200)):
        lease.set(setpoint)
    assert guard.asked == 1


# -- what gpuenergy powercap set has locked ----------------------------------------------------


def test_a_kept_lock_is_what_a_run_returns_to(card):
    Lease(card, kept=True).set(Setpoint(sm_clock_mhz=900))
    guard = Guard()
    run = Lease(card, before_lock=guard)
    run.set(CLOCK)
    run.restore()
    assert guard.asked == 0  # it is locked by us
    assert lock_mhz(card) == 900
    assert enforced_setpoint(card).sm_clock_mhz == 900
    assert restore_kept(card) == UNLOCKED
    assert lock_mhz(card) is None


def test_a_killed_run_returns_to_a_kept_lock(card):
    Lease(card, kept=True).set(Setpoint(sm_clock_mhz=900))
    LeaseRecord(card.uuid, 1, 1, sm_clock_mhz=1500).save()
    said = restore_leftover(card)
    assert said == (
        "The SM clocks of NVIDIA H200 are back at 900 MHz, to which gpuenergy powercap set has "
        "locked them."
    )
    assert lock_mhz(card) == 900


def test_a_kept_limit_and_a_kept_lock_are_kept_together(card):
    Lease(card, kept=True).set(Setpoint(300.0))
    Lease(card, kept=True).set(CLOCK)
    assert (lock_mhz(card), present_mw(card)) == (1500, 300_000)
    Lease(card, kept=True).set(Setpoint(PRIOR_MW / 1e3))
    assert (lock_mhz(card), present_mw(card)) == (1500, PRIOR_MW)
    assert restore_kept(card) == UNLOCKED
    assert recorded_uuids() == []


def test_a_card_that_has_no_locks_is_refused():
    with open_device("emulated:p100") as p100:
        with pytest.raises(SetpointError, match="does not report which SM clocks"):
            Lease(p100).check(CLOCK)
        with pytest.raises(SetpointError, match="does not report which SM clocks"):
            Lease(p100).set(CLOCK)
