"""Who may write a power limit: the first of NVML, zeusd and sudo that can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from power_cards import PRIOR_MW, as_real, present_mw
from zeusd_fake import Zeusd

from pytest_gpuenergy.control import (
    CURRENT,
    Lease,
    NvmlWriter,
    Setpoint,
    SudoWriter,
    ZeusdWriter,
    choose_writer,
    may_change_settings,
    recorded_uuids,
    restore_leftover,
    writers,
)
from pytest_gpuenergy.devices import NvmlGpu
from pytest_gpuenergy.support import SetpointError, WritesDeniedError

CAP = Setpoint(300.0)


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "may_change_settings", lambda: False)


@pytest.fixture
def zeusd(real: NvmlGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zeusd]:
    with Zeusd(tmp_path / "zeusd.sock", [real]) as daemon:
        monkeypatch.setenv("ZEUSD_SOCK_PATH", str(daemon.path))
        yield daemon


def test_a_privileged_process_writes_directly(real, zeusd, monkeypatch):
    monkeypatch.setattr(writers, "may_change_settings", lambda: True)
    lease = Lease(real)
    assert lease.set(CAP) == Setpoint(300.0)
    lease.restore()
    assert present_mw(real) == PRIOR_MW
    assert zeusd.requests == []


@pytest.mark.usefixtures("unprivileged")
def test_zeusd_comes_before_sudo(real, zeusd, monkeypatch):
    monkeypatch.setattr(writers, "find_sudo", lambda _: pytest.fail("sudo was asked"))
    assert choose_writer(real).name == f"zeusd ({zeusd.path})"


@pytest.mark.usefixtures("unprivileged")
def test_without_any_privilege_one_sentence_says_what_to_do(real):
    with pytest.raises(SetpointError) as raised:
        Lease(real).set(CAP)
    assert str(raised.value) == (
        "There is no permission to change the settings of NVIDIA H200 (no zeusd at "
        "/nowhere/zeusd.sock; no sudo on the PATH): run as root (in a container: with the "
        "capability SYS_ADMIN), start zeusd, add the sudo rule that gpuenergy doctor prints, or "
        "use --powercap current and --smclock current."
    )
    assert present_mw(real) == PRIOR_MW


@pytest.mark.usefixtures("unprivileged")
def test_who_may_write_is_found_out_once(real, monkeypatch):
    asked: list[object] = []
    monkeypatch.setattr(writers, "find_sudo", lambda gpu: asked.append(gpu) or "no rule")
    lease = Lease(real)
    for watts in (300.0, 400.0):
        with pytest.raises(SetpointError, match="There is no permission to change"):
            lease.set(Setpoint(watts))
    assert asked == [real]


@pytest.mark.usefixtures("unprivileged")
def test_the_cards_own_limit_takes_no_privilege(real, monkeypatch):
    monkeypatch.setattr(
        "pytest_gpuenergy.control.lease.choose_writer", lambda _: pytest.fail("asked")
    )
    lease = Lease(real)
    assert lease.set(CURRENT) == Setpoint(PRIOR_MW / 1e3)
    lease.restore()


@pytest.mark.usefixtures("unprivileged", "zeusd")
def test_an_emulated_card_asks_nobody_outside(device):
    assert isinstance(choose_writer(device), NvmlWriter)


def writers_of(gpu: NvmlGpu, zeusd: Zeusd) -> dict[str, Any]:
    return {
        "nvml": NvmlWriter(gpu),
        "zeusd": ZeusdWriter(gpu, zeusd.path, 0),
        "sudo": SudoWriter(gpu, "/bin/false", "/bin/false"),
    }


@pytest.mark.parametrize("word", ["deny", "DENY", "0", "no"])
@pytest.mark.parametrize("which", ["nvml", "zeusd", "sudo"])
def test_denied_writes_reach_none_of_the_three(real, zeusd, monkeypatch, which, word):
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", word)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    writer = writers_of(real, zeusd)[which]
    for attempt in (
        lambda: writer.write_power_limit(300_000),
        lambda: writer.lock_clocks(1500),
        writer.unlock_clocks,
    ):
        with pytest.raises(WritesDeniedError, match="forbids changing the power limit"):
            attempt()
    assert present_mw(real) == PRIOR_MW
    assert zeusd.requests == []


@pytest.mark.parametrize("which", ["nvml", "zeusd", "sudo"])
def test_a_denied_lock_leaves_no_record(real, zeusd, monkeypatch, which):
    writer = writers_of(real, zeusd)[which]
    monkeypatch.setattr(writer, "check_clock_lock", lambda _: None)
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "deny")
    with pytest.raises(WritesDeniedError):
        Lease(real, writer).set(Setpoint(sm_clock_mhz=1500))
    assert recorded_uuids() == []


@pytest.mark.parametrize("privileged", [True, False])
def test_where_writes_are_denied_nobody_is_even_asked(real, zeusd, monkeypatch, privileged):
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "deny")
    monkeypatch.setattr(writers, "may_change_settings", lambda: privileged)
    monkeypatch.setattr(writers, "find_sudo", lambda _: pytest.fail("sudo was asked"))
    with pytest.raises(WritesDeniedError):
        Lease(real).set(CAP)
    assert zeusd.requests == []


def test_a_leftover_is_restored_by_whoever_may(device, zeusd, monkeypatch):
    """A killed run was root's, and the next start is not."""
    monkeypatch.setattr("pytest_gpuenergy.control.lease_record.start_ticks", lambda _: 1)
    Lease(device).set(CAP)
    monkeypatch.setattr("pytest_gpuenergy.control.lease_record.start_ticks", lambda _: 2)
    monkeypatch.setattr(writers, "may_change_settings", lambda: False)
    assert restore_leftover(as_real(device)) == "The power limit of NVIDIA H200 is back at 450 W."
    assert zeusd.limits_mw == [PRIOR_MW]


@pytest.mark.parametrize(
    ("effective", "uid_map", "may"),
    [
        ("0000000000200000", "         0          0 4294967295\n", True),
        ("000001ffffffffff", "         0          0 4294967295\n", True),
        ("0000000000000000", "         0          0 4294967295\n", False),
        # root of a user namespace is nobody outside it
        ("000001ffffffffff", "         0       1000          1\n", False),
        ("000001ffffffffff", None, True),
    ],
)
def test_permission_is_read_from_the_capabilities(tmp_path, effective, uid_map, may):
    (tmp_path / "status").write_text(f"Name:\tpython\nCapEff:\t{effective}\n")
    if uid_map is not None:
        (tmp_path / "uid_map").write_text(uid_map)
    assert may_change_settings(tmp_path) is may


@pytest.mark.parametrize("user", [0, 1000])
def test_where_capabilities_are_not_told_root_may(tmp_path, monkeypatch, user):
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert may_change_settings(tmp_path / "nothing") is (user == 0)
