"""Whether a path exists: True, False or one error message, in every version of Python."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from closed_folders import close

from pytest_gpuenergy.support import (
    InputError,
    is_file,
    is_folder,
    is_link,
    is_socket,
    is_there,
    nearest,
)

LOOKS = (is_there, is_file, is_folder, is_link, is_socket)
Look = Callable[[Path], bool]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "broken").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    names = ("file", "folder", "link", "broken", "loop", "socket", "missing", "file/below")
    return {name: tmp_path / name for name in names}


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (is_there, {"file", "folder", "link", "socket"}),
        (is_file, {"file", "link"}),
        (is_folder, {"folder"}),
        (is_link, {"link", "broken", "loop"}),
        (is_socket, {"socket"}),
    ],
)
def test_what_is_there_is_found(places, look, found):
    assert {name for name, path in places.items() if look(path)} == found


@pytest.mark.parametrize("look", LOOKS)
def test_a_folder_without_permission_is_one_sentence(tmp_path, monkeypatch, look):
    close(tmp_path / "closed", monkeypatch)
    with pytest.raises(InputError, match=r"closed/file cannot be used: Permission denied\.$"):
        look(tmp_path / "closed" / "file")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_a_name_that_is_too_long_is_one_sentence(tmp_path, look, name):
    with pytest.raises(InputError, match=r"cannot be used: File name too long\.$"):
        look(tmp_path / name)


@pytest.mark.parametrize("look", LOOKS)
def test_a_name_with_a_zero_byte_is_one_sentence(look):
    with pytest.raises(InputError, match=r"cannot be used: embedded null byte\.$"):
        look(Path("a\0b"))


def test_folders_above_that_cannot_be_looked_into_are_passed_over(tmp_path, monkeypatch):
    below = tmp_path / "closed" / "own"
    below.mkdir(parents=True)
    (tmp_path / "settings").write_text("")
    monkeypatch.setattr(Path, "resolve", lambda path: path)
    actual = os.stat

    def stat(path: Path, **named: bool) -> os.stat_result:
        if Path(path).parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return actual(path, **named)

    monkeypatch.setattr(os, "stat", stat)
    assert nearest(below, "settings") == tmp_path / "settings"
