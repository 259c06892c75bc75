"""Folders outside the user's project."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_gpuenergy.support import InputError, cache_dir, compiled_dir, settle_places, state_dir


class Place(NamedTuple):
    """A kind of folder, the variables that move it, and where it is below the home folder."""

    folder: Callable[..., Path]
    own: str
    xdg: str
    below: str


PLACES = (
    Place(cache_dir, "GPUENERGY_CACHE", "XDG_CACHE_HOME", ".cache"),
    Place(state_dir, "GPUENERGY_STATE", "XDG_STATE_HOME", ".local/state"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for place in PLACES:
        monkeypatch.delenv(place.own, raising=False)
        monkeypatch.delenv(place.xdg, raising=False)
    monkeypatch.delenv("COMPILE_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(params=PLACES, ids=["cache", "state"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.param
    return found


def test_below_the_home_folder_by_default(home, place):
    assert place.folder() == home / place.below / "pytest-gpuenergy"


def test_who_has_no_home_is_told_what_to_set(monkeypatch, place):
    def unknown(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)  # as of a container's user without a name
    with pytest.raises(InputError, match=f"home folder is unknown .*: set {place.own} to a writ"):
        place.folder()


def test_where_the_desktop_says_unless_our_own_variable_does(tmp_path, monkeypatch, place):
    monkeypatch.setenv(place.xdg, str(tmp_path / "xdg"))
    monkeypatch.setenv(place.own, "")
    assert place.folder() == tmp_path / "xdg" / "pytest-gpuenergy"
    monkeypatch.setenv(place.own, str(tmp_path / "own"))
    assert place.folder("a", "b") == tmp_path / "own" / "a" / "b"
    monkeypatch.delenv(place.own)
    monkeypatch.setenv(place.xdg, "mine")  # relative folders of the desktop's are ignored
    assert place.folder() == tmp_path / "home" / place.below / "pytest-gpuenergy"


def test_the_folder_is_made_for_this_user_only(place):
    for _ in range(2):
        assert place.folder("deep", "er").is_dir()
    assert place.folder("below").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("parts", [(), ("below",)])
def test_a_folder_that_cannot_be_used_says_which_variable_to_set(
    tmp_path, monkeypatch, place, parts
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(place.own, str(tmp_path / "file"))
    with pytest.raises(InputError, match=rf"cannot be used \(.*\): set {place.own} to a folder"):
        place.folder(*parts)


@pytest.mark.parametrize("parts", [(), ("below",)])
def test_a_folder_that_others_can_write_is_refused(tmp_path, monkeypatch, place, parts):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv(place.own, str(shared))
    said = rf"other users can write in {shared}\): set {place.own} to a folder in which"
    with pytest.raises(InputError, match=said):
        place.folder(*parts)
    assert list(shared.iterdir()) == []


def test_a_relative_folder_stays_where_it_is(monkeypatch, tmp_path, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(place.own, "mine")
    found = place.folder()
    assert found == tmp_path / "mine"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert place.folder() == found
    assert os.environ[place.own] == str(found)


def test_compiled_kernels_are_in_the_cache_by_default(monkeypatch):
    monkeypatch.setenv("COMPILE_CACHE_DIR", "")
    assert compiled_dir("cubin") == cache_dir("cubin")


def test_compiled_kernels_have_a_folder_of_their_own_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPILE_CACHE_DIR", "mine")
    settle_places()
    monkeypatch.chdir("/")
    assert compiled_dir("emulated", "host") == tmp_path / "mine/emulated/host"
    assert cache_dir("references") == tmp_path / "cache/references"


def test_a_file_is_no_folder_of_compiled_kernels(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPILE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be used \(Not a .*\): set COMPILE_CACHE_DIR to"):
        compiled_dir("cubin")


def test_a_folder_of_compiled_kernels_must_be_writable(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root can write everywhere
    with pytest.raises(InputError, match="cannot be written: set COMPILE_CACHE_DIR to"):
        compiled_dir("cubin")
