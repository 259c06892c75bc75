"""A power limit is put back, whatever happens to the process that changed it."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from pathlib import Path

import pytest
from power_cards import DIE, PRIOR_MW, killed, present_mw, write

from pytest_gpuenergy.control import (
    CURRENT,
    Change,
    Lease,
    LeaseRecord,
    NvmlWriter,
    Setpoint,
    leftover,
    recorded_uuids,
    restore_kept,
    restore_leftover,
)
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.support import SetpointError, termination_as_interrupt

CAP = Setpoint(300.0)
LIMIT = {"prior": 700_000, "before": 700_000, "written": 300_000}
RECORD = {"power_limit_mw": LIMIT, "pid": 1, "started": 1}
EARLY = {"prior_mw": 700_000, "before_mw": 700_000, "set_mw": 300_000, "pid": 1, "started": 1}


def record_path(device: EmulatedDevice, state: Path) -> Path:
    return state / "leases" / f"{device.uuid}.json"


@pytest.fixture
def lease(card: EmulatedDevice) -> Lease:
    """A lease that has set the card to `CAP`."""
    lease = Lease(card)
    assert lease.set(CAP) == CAP
    assert present_mw(card) == 300_000
    return lease


def test_a_card_that_enforces_less_says_so(card):
    card.inject("enforced_limit", {"power_w": 250})
    assert Lease(card).set(CAP) == Setpoint(250.0)


def test_the_prior_limit_survives_several_caps(card):
    lease = Lease(card)
    for watts in (300.0, 500.0, 200.0):
        lease.set(Setpoint(watts))
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_restoring_twice_writes_once(card, lease):
    lease.restore()
    assert present_mw(card) == PRIOR_MW
    write(card, 600_000)
    lease.restore()
    assert present_mw(card) == 600_000


def test_current_puts_the_prior_limit_back(lease):
    assert lease.set(CURRENT) == Setpoint(PRIOR_MW / 1e3)


def test_current_writes_nothing(card):
    card.inject("power_limit", "no_permission")
    lease = Lease(card)
    assert lease.set(CURRENT) == Setpoint(PRIOR_MW / 1e3)
    lease.restore()


def test_a_cap_that_is_already_set_writes_nothing(card, own_folders):
    card.inject("power_limit", "no_permission")
    assert Lease(card).set(Setpoint(PRIOR_MW / 1e3)) == Setpoint(PRIOR_MW / 1e3)
    assert not record_path(card, own_folders).exists()


def test_nothing_is_left_on_disk_when_all_is_restored(card, lease, own_folders):
    assert record_path(card, own_folders).exists()
    lease.restore()
    assert not list((own_folders / "leases").iterdir())


def test_a_limit_that_somebody_set_since_is_theirs(card, lease):
    write(card, 600_000)
    lease.restore()
    assert present_mw(card) == 600_000


def test_the_next_cap_fails_when_somebody_changed_the_limit(card, lease):
    write(card, 600_000)
    with pytest.raises(SetpointError, match=r"Somebody else has changed .* H200 to 600 W: end the"):
        lease.set(Setpoint(400.0))


@pytest.mark.parametrize("theirs_mw", [PRIOR_MW, 200_000])
def test_a_limit_that_was_ours_before_is_theirs_when_they_set_it(card, theirs_mw):
    lease = Lease(card)
    lease.set(Setpoint(200.0))
    lease.set(CAP)
    write(card, theirs_mw)
    with pytest.raises(SetpointError, match="Somebody else has changed"):
        lease.set(Setpoint(500.0))
    lease.restore()
    assert present_mw(card) == theirs_mw


def test_a_record_that_cannot_be_removed_is_told(card, lease, monkeypatch):
    def refuse(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(SetpointError, match=r"cannot be removed \(Read-only file system\)"):
            lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_the_next_start_restores_after_a_kill(card):
    killed("lease.set(Setpoint(300.0))\n")
    assert present_mw(card) == 300_000
    Lease(card)
    assert present_mw(card) == PRIOR_MW


def test_the_next_start_restores_after_a_kill_at_the_second_cap(card):
    killed("lease.set(Setpoint(300.0)); lease.set(Setpoint(550.0))\n")
    assert restore_leftover(card) == "The power limit of NVIDIA H200 is back at 450 W."
    assert present_mw(card) == PRIOR_MW


@pytest.mark.parametrize("earlier", ["", "lease.set(Setpoint(550.0))\n"])
@pytest.mark.parametrize("written", [False, True])
def test_a_kill_in_the_middle_of_a_write_is_undone(card, earlier, written):
    killed(
        earlier
        + "write = device.nvml.nvmlDeviceSetPowerManagementLimit\n"
        + "def die(*arguments):\n"
        + ("    write(*arguments)\n" if written else "")
        + f"    {DIE}"
        + "device.nvml.nvmlDeviceSetPowerManagementLimit = die\n"
        + "lease.set(Setpoint(300.0))\n"
    )
    restore_leftover(card)
    assert present_mw(card) == PRIOR_MW
    assert leftover(card.uuid) is None


def test_a_limit_set_since_the_kill_is_left_alone(card):
    killed("lease.set(Setpoint(300.0))\n")
    write(card, 600_000)
    assert restore_leftover(card) == (
        "The power limit of NVIDIA H200 has been set to 600 W since; it is left alone."
    )
    assert present_mw(card) == 600_000


def test_without_a_leftover_nothing_is_restored(card):
    assert restore_leftover(card) is None


def test_what_an_earlier_lease_of_this_process_could_not_restore_is_restored(card):
    earlier = Lease(card)
    earlier.set(CAP)
    fault = card.inject("power_limit", "no_permission")
    with pytest.raises(SetpointError, match="was not restored to 450 W"):
        earlier.restore()
    card.state.withdraw(fault)
    lease = Lease(card)
    assert lease.restored == "The power limit of NVIDIA H200 is back at 450 W."
    lease.set(Setpoint(600.0))
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_the_record_of_a_living_process_is_no_leftover(card):
    Lease(card).set(CAP)
    assert leftover(card.uuid) is None


def test_a_record_whose_process_number_was_used_again_is_a_leftover(card, own_folders):
    Lease(card).set(CAP)
    path = record_path(card, own_folders)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "started": record["started"] + 1}))
    found = leftover(card.uuid)
    assert isinstance(found, LeaseRecord)
    assert found.pid == os.getpid()
    assert found.power_limit_mw == Change(PRIOR_MW, 300_000, 300_000)


def test_a_leftover_that_cannot_be_restored_stays(card):
    killed("lease.set(Setpoint(300.0))\n")
    card.inject("power_limit", "no_permission")
    with pytest.raises(SetpointError, match="run as root"):
        Lease(card)
    assert leftover(card.uuid) is not None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "null", '{"prior_mw": "much"}', "\0\0", '{"prior_mw": null}'),
        *('{"power_limit_mw": 3}', '{"power_limit_mw": {}}'),
        "[" * 100_000,
        *(json.dumps(EARLY | {"prior_mw": bad}) for bad in (math.inf, math.nan, 1e300, -5, True)),
        *(
            json.dumps(RECORD | {"power_limit_mw": LIMIT | {"prior": bad}})
            for bad in (math.inf, math.nan, 1e300, -5, True)
        ),
        json.dumps(RECORD).replace("700000", "9" * 5000),
        json.dumps(RECORD).replace("700000", "9" * 400),
        " " * 100_000 + json.dumps(RECORD),
    ],
    ids=lambda text: text[:30],
)
def test_a_damaged_record_is_refused(card, own_folders, text):
    Lease(card).set(CAP)
    record_path(card, own_folders).write_text(text)
    with pytest.raises(SetpointError, match=r"cannot be read: set the card's limit by hand .*nvid"):
        Lease(card)


@pytest.mark.parametrize("present_mw_now", [300_000, 500_000, PRIOR_MW, 600_000])
@pytest.mark.parametrize("kept", [False, True])
def test_a_record_of_an_early_version_is_restored(card, own_folders, present_mw_now, kept):
    Lease(card, kept=kept).set(CAP)
    (path,) = (own_folders / "leases").iterdir()
    early = {"prior_mw": PRIOR_MW, "before_mw": 500_000, "set_mw": 300_000}
    text = {"uuid": card.uuid, **early, "pid": 1, "started": 1, "kept": kept}
    path.write_text(json.dumps(text))
    write(card, present_mw_now)
    said = (restore_kept if kept else restore_leftover)(card)
    assert said is not None
    theirs = present_mw_now == 600_000
    assert said.endswith("is left alone." if theirs else "is back at 450 W.")
    assert present_mw(card) == (600_000 if theirs else PRIOR_MW)
    assert recorded_uuids() == []


def test_a_setting_of_a_long_name_fits_the_message(card, own_folders):
    Lease(card).set(CAP)
    path = record_path(card, own_folders)
    path.write_text(json.dumps(RECORD | {"x" * 60_000: {"prior": 30}}))
    with pytest.raises(SetpointError) as caught:
        Lease(card)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("record", [RECORD, EARLY, {"pid": 1, "started": 1}], ids=str)
def test_a_setting_that_is_not_known_is_not_forgotten(card, own_folders, record):
    Lease(card).set(CAP)
    path = record_path(card, own_folders)
    path.write_text(json.dumps(record | {"fan_speed_percent": {"prior": 30}}))
    with pytest.raises(SetpointError, match="has 'fan_speed_percent', which this version does not"):
        Lease(card)
    assert path.exists()
    assert present_mw(card) == 300_000


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop"])
def test_a_record_that_is_no_file_is_refused(card, own_folders, kind):
    Lease(card).set(CAP)
    path = record_path(card, own_folders)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)  # nobody writes: reading it would wait for ever
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    with pytest.raises(SetpointError, match="cannot be read: set the card's limit by hand"):
        Lease(card)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("no_permission", "run as root"),
        ("not_supported", "this card's limit cannot be changed; use --powercap current"),
        ("invalid_argument", "within the card's constraints"),
        ("unknown", "check the card with nvidia-smi"),
    ],
)
def test_a_refusal_says_what_to_do(card, own_folders, error, advice):
    card.inject("power_limit", error)
    lease = Lease(card)
    with pytest.raises(SetpointError, match=rf"H200 cannot be set to 300 W \(.*\): .*{advice}"):
        lease.set(CAP)
    assert present_mw(card) == PRIOR_MW
    assert not record_path(card, own_folders).exists()


def test_a_later_refusal_keeps_the_record_of_the_first_cap(card, lease):
    fault = card.inject("power_limit", "unknown")
    with pytest.raises(SetpointError):
        lease.set(Setpoint(500.0))
    card.state.withdraw(fault)
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_a_limit_outside_the_constraints_is_refused(card):
    with pytest.raises(SetpointError, match="choose a limit within the card's constraints"):
        Lease(card).set(Setpoint(5000.0))


def test_an_unavailable_cap_is_not_tried(card):
    cap = Setpoint(300.0, index=1, unavailable="100 W is outside")
    with pytest.raises(SetpointError, match="Power cap 300W is skipped: 100 W is outside"):
        Lease(card).set(cap)
    assert present_mw(card) == PRIOR_MW


def test_a_card_that_does_not_tell_its_limit_is_refused(card):
    card.inject("nvmlDeviceGetPowerManagementLimit", "not_supported")
    with pytest.raises(SetpointError, match="does not report its power limit"):
        Lease(card).set(CAP)


def test_a_card_that_takes_another_limit_is_refused_and_restored(card, monkeypatch):
    exact = card.nvml.nvmlDeviceSetPowerManagementLimit
    lease = Lease(card)
    with monkeypatch.context() as rounding:
        rounding.setattr(
            card.nvml,
            "nvmlDeviceSetPowerManagementLimit",
            lambda handle, limit_mw: exact(handle, limit_mw // 50_000 * 50_000),
        )
        with pytest.raises(SetpointError, match="set 300 W instead of the requested 325 W"):
            lease.set(Setpoint(325.0))
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_nothing_is_set_when_the_prior_limit_cannot_be_noted(card, monkeypatch):
    lease = Lease(card)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SetpointError, match=r"No space left .* so no limit is set"):
        lease.set(CAP)
    assert present_mw(card) == PRIOR_MW


class Unlucky(NvmlWriter):
    """A writer that is interrupted in the middle of a write, or right after it."""

    def __init__(self, gpu: EmulatedDevice, number: int = 0, *, fails: bool = False) -> None:
        super().__init__(gpu)
        self.number, self.fails = number, fails

    def write_power_limit(self, limit_mw: int) -> None:
        if self.number:
            os.kill(os.getpid(), self.number)
        super().write_power_limit(limit_mw)
        if self.fails:
            raise SetpointError("No answer within 10 s.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_write_waits_and_nothing_is_lost(card, number):
    with termination_as_interrupt():
        lease = Lease(card, Unlucky(card, number))
        with pytest.raises(KeyboardInterrupt):
            lease.set(CAP)
        assert present_mw(card) == 300_000
        with pytest.raises(KeyboardInterrupt):  # once more, while the limit is put back
            lease.restore()
    assert present_mw(card) == PRIOR_MW
    assert leftover(card.uuid) is None


def test_a_write_that_succeeds_without_an_answer_is_undone(card):
    lease = Lease(card, Unlucky(card, fails=True))
    with pytest.raises(SetpointError, match="No answer"):
        lease.set(CAP)
    assert present_mw(card) == 300_000
    with pytest.raises(SetpointError, match=r"not restored to 450 W .*: No answer"):
        lease.restore()
    lease.restore()
    assert present_mw(card) == PRIOR_MW
    assert not recorded_uuids()


def test_a_limit_that_cannot_be_read_back_is_skipped_and_undone(card):
    lease = Lease(card)
    fault = card.inject("nvmlDeviceGetPowerManagementLimit", {"error": "unknown", "after_calls": 1})
    with pytest.raises(SetpointError, match="does not report its power limit"):
        lease.set(CAP)
    with pytest.raises(SetpointError, match=r"powercap restore tries again.* does not report"):
        lease.restore()
    assert recorded_uuids() == [card.uuid]
    card.state.withdraw(fault)
    assert present_mw(card) == 300_000
    lease.restore()
    assert present_mw(card) == PRIOR_MW


def test_a_prior_limit_that_does_not_come_back_is_told(card, lease, monkeypatch):
    monkeypatch.setattr(card.nvml, "nvmlDeviceSetPowerManagementLimit", lambda *_: None)
    with pytest.raises(SetpointError, match=r"not restored to 450 W .* set 300 W instead"):
        lease.restore()
    assert recorded_uuids() == [card.uuid]


def test_what_could_not_be_put_back_is_not_changed(card):
    class Narrow(NvmlWriter):
        def check_power_limit(self, limit_mw: int) -> None:
            if limit_mw == PRIOR_MW:
                raise SetpointError("No rule for 450 W.")

    with pytest.raises(SetpointError, match="No rule for 450 W"):
        Lease(card, Narrow(card)).set(CAP)
    assert present_mw(card) == PRIOR_MW


def test_an_enforced_limit_that_follows_late_is_waited_for(card):
    card.inject("enforced_limit", {"power_w": 250, "lasts_s": 0.3})
    lease = Lease(card)
    assert lease.set(CAP) == Setpoint(300.0)
    assert lease.judge() == ()


def test_a_lower_enforced_limit_is_a_doubt(card):
    card.inject("enforced_limit", {"power_w": 250})
    lease = Lease(card)
    lease.set(CAP)
    assert lease.judge() == ("enforced_limit_lower",)


@pytest.mark.parametrize(
    ("fault", "doubt"),
    [
        (("limit_changed", {"power_w": 600}), "power_limit_changed"),
        (("enforced_limit", {"power_w": 250}), "power_limit_changed"),
        (("nvmlDeviceGetPowerManagementLimit", "gpu_is_lost"), "power_limit_unknown"),
    ],
)
def test_what_happens_to_the_limit_afterwards_is_a_doubt(card, lease, fault, doubt):
    assert lease.judge() == ()
    card.inject(*fault)
    assert lease.judge() == (doubt,)


def test_the_cards_own_limit_is_judged_too(card, lease):
    lease.set(CURRENT)
    assert lease.judge() == ()
    write(card, 600_000)
    assert lease.judge() == ("power_limit_changed",)
    lease.set(CURRENT)  # of the next item
    assert lease.judge() == ()


def test_a_card_without_power_limits_is_not_judged(card):
    card.inject("power_limit", "not_supported")
    lease = Lease(card)
    lease.set(CURRENT)
    assert lease.judge() == ()


def test_no_cap_is_set_any_more_once_somebody_has_changed_the_limit(card, lease):
    write(card, 400_000)
    lease.set(CURRENT)
    with pytest.raises(SetpointError, match=r"Somebody else has changed .* 400 W"):
        lease.set(CAP)
    assert present_mw(card) == 400_000


@pytest.mark.parametrize("earlier", [[], [500.0]])
def test_a_kept_limit_is_the_prior_one_of_a_run(card, earlier):
    for watts in [*earlier, 300.0]:
        Lease(card, kept=True).set(Setpoint(watts))
    run = Lease(card)
    run.set(Setpoint(600.0))
    run.restore()
    assert present_mw(card) == 300_000
    assert restore_kept(card) == "The power limit of NVIDIA H200 is back at 450 W."
    assert present_mw(card) == PRIOR_MW


def test_a_kept_limit_that_somebody_changed_is_forgotten_by_the_next(card):
    Lease(card, kept=True).set(CAP)
    write(card, 600_000)
    Lease(card, kept=True).set(Setpoint(200.0))
    restore_kept(card)
    assert present_mw(card) == 600_000


def test_a_kept_limit_that_somebody_has_set_already_is_theirs(card):
    Lease(card, kept=True).set(CAP)
    write(card, 500_000)
    Lease(card, kept=True).set(Setpoint(500.0))
    write(card, 300_000)
    assert restore_kept(card) is None
    assert present_mw(card) == 300_000


def test_keeping_the_prior_limit_leaves_nothing_to_restore(card):
    Lease(card, kept=True).set(CAP)
    Lease(card, kept=True).set(Setpoint(PRIOR_MW / 1e3))
    assert present_mw(card) == PRIOR_MW
    assert restore_kept(card) is None
