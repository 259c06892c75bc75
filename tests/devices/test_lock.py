"""One user at a time on each GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuenergy.devices import lock
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.lock import gpu_lock
from pytest_gpuenergy.errors import DeviceError

HOLDER = """
import sys
from types import SimpleNamespace
from pytest_gpuenergy.devices.lock import gpu_lock
card = SimpleNamespace(name="Card", uuid=sys.argv[1], emulated=True)
with gpu_lock(card, wait_s=0, group=sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


def card(uuid: str = "GPU-1", *, emulated: bool = True) -> Device:
    return cast(Device, SimpleNamespace(name="Card", uuid=uuid, emulated=emulated))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files."""
    monkeypatch.setattr(lock, "MACHINE_FOLDER", tmp_path)
    return tmp_path


def held_by_another(uuid: str = "GPU-1", group: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, uuid, group],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_gpu_in_use_names_the_process_that_has_it() -> None:
    with held_by_another() as process:
        with (
            pytest.raises(DeviceError, match=rf"in use by process {process.pid}: wait for it"),
            gpu_lock(card(), wait_s=0),
        ):
            pass
        process.communicate()


def test_a_gpu_is_free_again_when_its_user_was_killed() -> None:
    with held_by_another() as process:
        process.kill()
        process.wait()
        with gpu_lock(card(), wait_s=0):
            pass


def test_a_gpu_is_free_again_after_an_error() -> None:
    def fail() -> None:
        with gpu_lock(card(), wait_s=0):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with gpu_lock(card(), wait_s=0):
        pass


def test_waiting_ends_as_soon_as_the_gpu_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_by_another() as process:
        waits: list[float] = []

        def release(duration_s: float) -> None:
            waits.append(duration_s)
            process.communicate()

        monkeypatch.setattr("time.sleep", release)
        with gpu_lock(card(), wait_s=60):
            assert len(waits) == 1


def test_different_gpus_do_not_wait_for_each_other() -> None:
    with held_by_another("GPU-2") as process:
        with gpu_lock(card("GPU-1"), wait_s=0):
            pass
        process.communicate()


def test_a_real_gpu_is_shared_by_the_users_of_the_machine(temporary: Path) -> None:
    with gpu_lock(card(emulated=False), wait_s=0):
        folder = temporary / "pytest-gpuenergy-locks"
        assert (folder / "GPU-1.lock").read_text() == str(os.getpid())
        assert folder.stat().st_mode & 0o7777 == 0o1777


def test_an_emulated_gpu_is_shared_by_the_users_of_its_state(own_folders: Path) -> None:
    with gpu_lock(card(), wait_s=0):
        assert (own_folders / "locks" / "GPU-1.lock").read_text() == str(os.getpid())


@pytest.fixture
def protected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another user: nobody else may open them for writing."""
    real_open: Callable[..., int] = os.open

    def refuse(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if str(path).endswith(".lock") and flags & (os.O_CREAT | os.O_RDWR):
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.usefixtures("protected")
def test_a_lock_that_another_user_made_is_shared(temporary: Path) -> None:
    path = temporary / "pytest-gpuenergy-locks" / "GPU-1.lock"
    path.parent.mkdir()
    path.write_text("77")
    with (
        gpu_lock(card(emulated=False), wait_s=0),
        pytest.raises(DeviceError, match="in use by process 77"),
        gpu_lock(card(emulated=False), wait_s=0),
    ):
        pass


def test_no_place_for_the_lock_is_one_sentence(temporary: Path) -> None:
    (temporary / "pytest-gpuenergy-locks").write_text("a file")
    with (
        pytest.raises(DeviceError, match=r"lock .* cannot be opened \(.*\): make its folder"),
        gpu_lock(card(emulated=False), wait_s=0),
    ):
        pass


def test_processes_of_one_group_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_by_another(group="run1") as process:
        waits: list[float] = []

        def release(duration_s: float) -> None:
            waits.append(duration_s)
            if len(waits) == 3:
                process.communicate()

        monkeypatch.setattr("time.sleep", release)
        with gpu_lock(card(), wait_s=0, group="run1"):
            assert len(waits) == 3


def test_a_process_that_has_not_said_yet_who_it_is_is_given_time(
    monkeypatch: pytest.MonkeyPatch, own_folders: Path
) -> None:
    with held_by_another(group="run1") as process:
        (lock,) = own_folders.rglob("GPU-1.lock")
        named = lock.read_text()
        lock.write_text("")
        waits: list[float] = []

        def wait(duration_s: float) -> None:
            waits.append(duration_s)
            if len(waits) == 2:
                lock.write_text(named)
            if len(waits) == 20:
                process.communicate()

        monkeypatch.setattr("time.sleep", wait)
        with gpu_lock(card(), wait_s=0, group="run1"):
            assert len(waits) == 20


def test_processes_of_another_group_hardly_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0

    def sleep(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with held_by_another(group="run1") as process:
        with (
            pytest.raises(DeviceError, match=rf"in use by process {process.pid}: wait for it"),
            gpu_lock(card(), wait_s=0, group="run2"),
        ):
            pass
        assert now_s < 102.0
        process.communicate()


def test_jobs_with_temporary_folders_of_their_own_share_a_gpu_too(
    temporary: Path,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gpu_lock(card(emulated=False), wait_s=0):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("job")))
        with pytest.raises(DeviceError, match="in use"), gpu_lock(card(emulated=False), wait_s=0):
            pass
