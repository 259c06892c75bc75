"""Files in folders that others can write: nothing else is opened or overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import lock, matching, open_file, unlock, write_atomically

TAKEN = "0123456789abcdef"
HOLDER = """
import os, sys
from pytest_gpuenergy.support.files import lock, open_file
lock(open_file(sys.argv[1], os.O_RDWR))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that must not be written."""
    path = tmp_path / "precious"
    path.write_text("kept")
    return path


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_TRUNC])
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "device"])
def test_what_is_no_file_of_one_name_is_not_opened(tmp_path, precious, kind, flags):
    path = tmp_path / "file"
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "hard link":
        path.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(path)  # nobody is at its other end: opening it would wait for ever
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/null")
    with pytest.raises(OSError):  # noqa: PT011 -- of several kinds
        open_file(path, flags)
    assert precious.read_text() == "kept"


@given(
    st.lists(st.lists(st.sampled_from(["a", "b1", "b2", ".b"]), min_size=1, max_size=3)),
    st.lists(st.sampled_from(["a", "*", "b?", "[ab]*"]), min_size=1, max_size=3),
)
def test_matching_finds_what_a_pattern_of_pathlib_does(entries, parts):
    with TemporaryDirectory() as name:
        for entry in entries:
            Path(name, *entry).mkdir(parents=True, exist_ok=True)
        pattern = "/".join(parts)
        assert matching(Path(name), pattern) == sorted(Path(name).glob(pattern))


def test_a_file_is_emptied_when_asked(precious):
    os.close(open_file(precious, os.O_WRONLY | os.O_TRUNC))
    assert precious.read_text() == ""


def test_a_file_is_opened_in_a_folder_that_is_open(tmp_path, precious):
    folder = os.open(tmp_path, os.O_RDONLY)
    descriptor = open_file(precious.name, os.O_RDONLY, dir_fd=folder)
    assert os.read(descriptor, 10) == b"kept"
    os.close(descriptor)
    os.close(folder)


def test_a_file_that_another_process_has_locked_is_told(precious):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(precious)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        descriptor = open_file(precious, os.O_RDWR)
        assert not lock(descriptor, wait=False)
        process.communicate()
    assert lock(descriptor, wait=False)
    os.close(descriptor)


def test_a_lock_that_was_released_can_be_taken(precious):
    first, second = (open_file(precious, os.O_RDWR) for _ in range(2))
    assert lock(first)
    assert not lock(second, wait=False)
    unlock(first)
    assert lock(second, wait=False)
    os.close(first)
    os.close(second)


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_of_the_longest_name_is_written(tmp_path, durable):
    path = tmp_path / ("n" * 255)
    write_atomically(path, "whole", durable=durable)
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_the_draft_is_not_written_through(tmp_path, precious, monkeypatch):
    monkeypatch.setattr("os.urandom", lambda _: bytes.fromhex(TAKEN))
    draft = tmp_path / f".gpuenergy-{TAKEN}.tmp"
    draft.symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "report", "new")
    assert precious.read_text() == "kept"
    assert draft.is_symlink()


def test_a_link_in_place_of_the_file_is_replaced(tmp_path, precious):
    path = tmp_path / "report"
    path.symlink_to(precious)
    write_atomically(path, "new")
    assert precious.read_text() == "kept"
    assert not path.is_symlink()


def test_an_error_names_the_file_and_not_its_draft(tmp_path):
    path = tmp_path / "missing" / "report"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(path, "new")
    assert caught.value.filename == str(path)


def test_an_interrupt_leaves_no_draft(tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "report", "new")
    assert list(tmp_path.iterdir()) == []
