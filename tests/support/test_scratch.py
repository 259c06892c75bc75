"""Scratch folders are removed after use or, if the process was killed, by the next run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpuenergy.support import build_folder, remove_leftovers, scratch_folder, sweep

HOLDER = """
import sys
import shutil, types
shutil.disk_usage = lambda _: types.SimpleNamespace(free=0)
from pytest_gpuenergy.support.scratch import scratch_folder
with scratch_folder(1) as folder:
    (folder / "buffer").write_bytes(b"x" * 100)
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make folders here, as if shared memory had no room."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    return tmp_path


def held_by_another() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert (folder / "buffer").exists()
    assert folder.is_relative_to(os.environ["TMPDIR"])  # where no other run looks for leftovers
    return process, folder


def test_a_folder_is_removed_with_what_is_in_it(place):
    with scratch_folder(10) as folder:
        assert folder.parent == place
        (folder / "buffer").write_bytes(b"x")
    assert list(place.iterdir()) == []


def test_a_folder_is_removed_after_an_error(place):
    def fail() -> None:
        with scratch_folder(10):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed():
    process, folder = held_by_another()
    with process:
        process.kill()
    assert folder.exists()
    remove_leftovers()
    assert not folder.exists()


def test_the_folder_of_a_living_process_is_kept():
    process, folder = held_by_another()
    with process:
        remove_leftovers()
        assert (folder / "buffer").exists()
        process.communicate()


@pytest.mark.parametrize("name", ["gpuenergy-new-abc", "gpuenergy-12", "other-12-abc", "notes"])
def test_what_is_not_ours_is_kept(place, name):
    (place / name).mkdir()
    remove_leftovers()
    assert (place / name).exists()


def test_links_and_files_of_such_a_name_are_kept(place):
    target = place / "precious"
    target.mkdir()
    (target / "file").write_text("kept")
    (place / "gpuenergy-12-link").symlink_to(target)
    (place / "gpuenergy-12-file").write_text("kept")
    remove_leftovers()
    assert (target / "file").exists()
    assert len(list(place.iterdir())) == 3


def test_a_build_folder_is_removed_when_it_is_done_with(tmp_path):
    with build_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_build_folder_of_a_killed_process_is_removed(tmp_path):
    program = HOLDER.replace("scratch_folder(1)", f"build_folder(Path({str(tmp_path)!r}))")
    program = program.replace("scratch_folder", "build_folder").replace(
        "import sys", "import sys\nfrom pathlib import Path"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        sweep(tmp_path)
        assert (folder / "buffer").exists()
        process.kill()
    sweep(tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_named(place, number):
    def fill() -> None:
        with scratch_folder(10):
            raise OSError(number, "it is full")

    with pytest.raises(OSError, match="it is full") as raised:
        fill()
    assert Path(raised.value.filename).parent == place
