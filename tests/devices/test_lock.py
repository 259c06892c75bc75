"""One user at a time on each GPU."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from forked_python import Forked, ForkedPython, open_forked_python

from pytest_gpuenergy.devices import Device, gpu_lock, lock
from pytest_gpuenergy.support import DeviceError

SOMEBODY = 54321
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
IMPORTS = """
from types import SimpleNamespace
from pytest_gpuenergy.devices.lock import gpu_lock
"""
HOLDER = """
import sys
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
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(lock, "MACHINE_FOLDER", folder)
    return folder


@pytest.fixture(scope="module")
def python() -> Iterator[ForkedPython]:
    with open_forked_python(IMPORTS) as opened:
        yield opened


@pytest.fixture
def held_by_another(python: ForkedPython) -> Callable[..., Forked]:
    """Let another process hold the lock of a GPU."""

    def hold(uuid: str = "GPU-1", group: str = "") -> Forked:
        process = python.start(HOLDER, uuid, group)
        assert process.read_line() == "held\n"
        return process

    return hold


def holder(own_folders: Path, uuid: str = "GPU-1") -> int:
    """Return the process ID in a lock's file."""
    return int((own_folders / "emulated" / f"{uuid}.lock").read_text())


def test_a_gpu_in_use_names_the_process_that_has_it(held_by_another):
    with held_by_another() as process:
        with (
            pytest.raises(DeviceError, match=rf"in use by process {process.pid}: wait for it"),
            gpu_lock(card(), wait_s=0),
        ):
            pass
        process.end()


def test_a_gpu_is_free_again_when_its_user_was_killed(held_by_another, own_folders):
    with held_by_another() as process:
        assert holder(own_folders) == process.pid
        process.kill()
        process.wait()
        with gpu_lock(card(), wait_s=0):
            assert holder(own_folders) == os.getpid()


def test_a_gpu_is_free_again_after_an_error():
    def fail() -> None:
        with gpu_lock(card(), wait_s=0):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with gpu_lock(card(), wait_s=0):
        pass


def test_waiting_ends_as_soon_as_the_gpu_is_free(held_by_another, monkeypatch):
    with held_by_another() as process:
        waits: list[float] = []

        def release(duration_s: float) -> None:
            waits.append(duration_s)
            process.end()

        monkeypatch.setattr("time.sleep", release)
        with gpu_lock(card(), wait_s=60):
            assert len(waits) == 1


def test_different_gpus_do_not_wait_for_each_other(held_by_another, own_folders):
    with held_by_another("GPU-2") as process:
        with gpu_lock(card("GPU-1"), wait_s=0):
            assert holder(own_folders, "GPU-1") == os.getpid()
            assert holder(own_folders, "GPU-2") == process.pid
        process.end()


def test_a_real_gpu_is_shared_by_the_users_of_the_machine(temporary):
    with gpu_lock(card(emulated=False), wait_s=0):
        folder = temporary / "pytest-gpuenergy-locks"
        assert (folder / "GPU-1.lock").read_text() == str(os.getpid())
        assert folder.stat().st_mode & 0o7777 == 0o1777


def test_an_emulated_gpu_is_shared_by_the_users_of_its_state(own_folders):
    with gpu_lock(card(), wait_s=0):
        assert holder(own_folders) == os.getpid()


@pytest.fixture
def protected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files another user's: nobody else may open them for writing."""
    real_open: Callable[..., int] = os.open

    def refuse(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if str(path).endswith(".lock") and flags & (os.O_CREAT | os.O_RDWR):
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.usefixtures("protected")
def test_a_lock_that_another_user_made_is_shared(temporary):
    path = temporary / "pytest-gpuenergy-locks" / "GPU-1.lock"
    path.parent.mkdir()
    path.write_text("77")
    with (
        gpu_lock(card(emulated=False), wait_s=0),
        pytest.raises(DeviceError, match="in use by process 77"),
        gpu_lock(card(emulated=False), wait_s=0),
    ):
        pass


def refused(reason: str = "") -> contextlib.AbstractContextManager[object]:
    """Check that one sentence says why the lock of a real GPU cannot be opened."""
    return pytest.raises(
        DeviceError, match=rf"lock .* cannot be opened \(.*{reason}.*\): make its folder"
    )


def take_lock() -> None:
    with gpu_lock(card(emulated=False), wait_s=0):
        pass


@pytest.fixture
def precious(temporary: Path) -> Path:
    """A file in a folder that other users try to change."""
    path = temporary / "private" / "file"
    path.parent.mkdir(mode=0o700)
    path.write_text("kept")
    path.chmod(0o600)
    return path


def modes(path: Path) -> tuple[int, int]:
    return path.stat().st_mode & 0o7777, path.parent.stat().st_mode & 0o7777


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "device"])
def test_what_somebody_put_in_place_of_the_lock_is_refused(temporary, precious, kind):
    path = temporary / "pytest-gpuenergy-locks" / "GPU-1.lock"
    path.parent.mkdir(mode=0o700)
    path.parent.chmod(0o1777)
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "hard link":
        path.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(path)  # nobody is at its other end: opening it would wait for ever
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root can make devices")
    with refused():
        take_lock()
    assert precious.read_text() == "kept"
    assert modes(precious) == (0o600, 0o700)


def test_a_link_to_nowhere_in_place_of_the_lock_makes_no_file(temporary):
    path = temporary / "pytest-gpuenergy-locks" / "GPU-1.lock"
    path.parent.mkdir()
    path.symlink_to(temporary / "elsewhere")
    with refused():
        take_lock()
    assert not (temporary / "elsewhere").exists()


def test_a_link_in_place_of_the_folder_is_refused(temporary, precious):
    (temporary / "pytest-gpuenergy-locks").symlink_to(precious.parent)
    with refused():
        take_lock()
    assert list(precious.parent.iterdir()) == [precious]
    assert modes(precious) == (0o600, 0o700)


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_no_place_for_the_lock_is_one_sentence(temporary, kind):
    path = temporary / "pytest-gpuenergy-locks"
    path.write_text("") if kind == "file" else os.mkfifo(path)
    with refused("Not a directory"):
        take_lock()


def test_a_folder_for_everybody_is_made_whatever_the_umask_is(temporary):
    umask = os.umask(0o077)
    try:
        take_lock()
    finally:
        os.umask(umask)
    path = temporary / "pytest-gpuenergy-locks" / "GPU-1.lock"
    assert modes(path) == (0o666, 0o1777)


def test_a_folder_that_somebody_may_have_put_there_is_not_opened_up(temporary):
    temporary.chmod(0o777)  # without the sticky bit everybody can rename what is in it
    private = temporary / "pytest-gpuenergy-locks"
    private.mkdir(mode=0o700)
    take_lock()
    assert private.stat().st_mode & 0o7777 == 0o700


@root_only
def test_a_folder_of_another_user_in_which_all_can_replace_files_is_refused(temporary):
    folder = temporary / "pytest-gpuenergy-locks"
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, SOMEBODY, SOMEBODY)
    with refused("other users can replace files"):
        take_lock()
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o7777 == 0o777


@contextlib.contextmanager
def user(number: int) -> Iterator[None]:
    """Be another user for a while; only root may become one."""
    before = os.geteuid()
    os.seteuid(0)
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)
        os.seteuid(before)


@pytest.fixture
def for_everybody(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine's folder for temporary files that other users can enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setattr(lock, "MACHINE_FOLDER", Path(folder))
        yield Path(folder)


@root_only
@pytest.mark.parametrize(("first", "second"), [(0, SOMEBODY), (SOMEBODY, 0), (SOMEBODY, 54322)])
def test_users_of_a_machine_share_the_lock(for_everybody, first, second):
    with user(first):
        take_lock()
    path = for_everybody / "pytest-gpuenergy-locks" / "GPU-1.lock"
    assert path.stat().st_uid == path.parent.stat().st_uid == first
    path.write_text("")
    with (
        user(second),
        gpu_lock(card(emulated=False), wait_s=0),
        user(first),
        pytest.raises(DeviceError, match=f"in use by process {os.getpid()}"),
        gpu_lock(card(emulated=False), wait_s=0),
    ):
        pass


def test_a_lock_that_was_replaced_while_waiting_is_taken_anew(temporary, monkeypatch):
    path = temporary / "pytest-gpuenergy-locks" / "GPU-1.lock"
    with contextlib.ExitStack() as first:
        first.enter_context(gpu_lock(card(emulated=False), wait_s=0))

        def replace_and_release(_: float) -> None:
            path.unlink()
            path.write_text("")
            first.close()

        monkeypatch.setattr("time.sleep", replace_and_release)
        with (
            gpu_lock(card(emulated=False), wait_s=60),
            pytest.raises(DeviceError, match="in use"),
        ):
            take_lock()


def test_what_somebody_wrote_into_the_lock_is_not_repeated(temporary):
    path = temporary / "pytest-gpuenergy-locks" / "GPU-1.lock"
    with gpu_lock(card(emulated=False), wait_s=0):
        path.write_text("\x1b[2Jrun(this)")
        with pytest.raises(DeviceError, match=r"in use by process \?: wait"):
            take_lock()


def test_processes_of_one_group_wait_for_each_other(held_by_another, monkeypatch):
    with held_by_another(group="run1") as process:
        waits: list[float] = []

        def release(duration_s: float) -> None:
            waits.append(duration_s)
            if len(waits) == 3:
                process.end()

        monkeypatch.setattr("time.sleep", release)
        with gpu_lock(card(), wait_s=0, group="run1"):
            assert len(waits) == 3


def test_a_process_that_has_not_said_yet_who_it_is_is_given_time(
    held_by_another, monkeypatch, own_folders
):
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
                process.end()

        monkeypatch.setattr("time.sleep", wait)
        with gpu_lock(card(), wait_s=0, group="run1"):
            assert len(waits) == 20


def test_processes_of_another_group_hardly_wait(held_by_another, monkeypatch):
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
        process.end()


@pytest.mark.usefixtures("temporary")
def test_jobs_with_temporary_folders_of_their_own_share_a_gpu_too(tmp_path_factory, monkeypatch):
    with gpu_lock(card(emulated=False), wait_s=0):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("job")))
        with pytest.raises(DeviceError, match="in use"), gpu_lock(card(emulated=False), wait_s=0):
            pass
