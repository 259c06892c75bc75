"""Folders outside the user's project."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuenergy.support import InputError, cache_dir, compiled_dir, settle_places, state_dir

PLACES = [
    (cache_dir, "GPUENERGY_CACHE", "XDG_CACHE_HOME", ".cache"),
    (state_dir, "GPUENERGY_STATE", "XDG_STATE_HOME", ".local/state"),
]
Folder = Callable[..., Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for _, own, xdg, _ in PLACES:
        monkeypatch.delenv(own, raising=False)
        monkeypatch.delenv(xdg, raising=False)
    monkeypatch.delenv("COMPILE_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(("folder", "own", "xdg", "below"), PLACES)
def test_below_the_home_folder_by_default(
    home: Path, folder: Folder, own: str, xdg: str, below: str
) -> None:
    assert own != xdg
    assert folder() == home / below / "pytest-gpuenergy"


@pytest.mark.parametrize(("folder", "own", "xdg", "below"), PLACES)
def test_who_has_no_home_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, folder: Folder, own: str, xdg: str, below: str
) -> None:
    def unknown(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)  # as of a container's user without a name
    assert xdg != below
    with pytest.raises(InputError, match=f"home folder is unknown .*: set {own} to a writable"):
        folder()


@pytest.mark.parametrize(("folder", "own", "xdg", "below"), PLACES)
def test_where_the_desktop_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Folder, own: str, xdg: str, below: str
) -> None:
    monkeypatch.setenv(xdg, str(tmp_path / "xdg"))
    monkeypatch.setenv(own, "")
    assert below
    assert folder() == tmp_path / "xdg" / "pytest-gpuenergy"


@pytest.mark.parametrize(("folder", "own", "xdg", "below"), PLACES)
def test_our_own_variable_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Folder, own: str, xdg: str, below: str
) -> None:
    monkeypatch.setenv(xdg, str(tmp_path / "xdg"))
    monkeypatch.setenv(own, str(tmp_path / "own"))
    assert below
    assert folder("a", "b") == tmp_path / "own" / "a" / "b"


@pytest.mark.parametrize("folder", [cache_dir, state_dir])
def test_the_folder_is_made(folder: Folder) -> None:
    assert folder("deep", "er").is_dir()
    assert folder("deep", "er").is_dir()


@pytest.mark.parametrize(("folder", "own"), [place[:2] for place in PLACES])
@pytest.mark.parametrize("parts", [(), ("below",)])
def test_a_folder_that_cannot_be_used_says_which_variable_to_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: Folder,
    own: str,
    parts: tuple[str, ...],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(own, str(tmp_path / "file"))
    with pytest.raises(InputError, match=rf"cannot be used \(.*\): set {own} to a folder"):
        folder(*parts)


@pytest.mark.parametrize(("folder", "own"), [place[:2] for place in PLACES])
@pytest.mark.parametrize("parts", [(), ("below",)])
def test_a_folder_that_others_can_write_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: Folder,
    own: str,
    parts: tuple[str, ...],
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv(own, str(shared))
    with pytest.raises(
        InputError, match=rf"other users can write in {shared}\): set {own} to a folder in which"
    ):
        folder(*parts)
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(("folder", "own"), [place[:2] for place in PLACES])
def test_others_cannot_read_or_write_what_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Folder, own: str
) -> None:
    monkeypatch.setenv(own, str(tmp_path / "own"))
    assert folder("below").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize(("folder", "own", "xdg", "below"), PLACES)
def test_a_relative_folder_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    folder: Folder,
    own: str,
    xdg: str,
    below: str,
) -> None:
    assert xdg != below
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(own, "mine")
    found = folder()
    assert found == tmp_path / "mine"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert folder() == found
    assert os.environ[own] == str(found)


@pytest.mark.parametrize(("folder", "own", "xdg", "below"), PLACES)
def test_a_relative_folder_of_the_desktops_is_ignored(
    monkeypatch: pytest.MonkeyPatch, home: Path, folder: Folder, own: str, xdg: str, below: str
) -> None:
    assert own
    monkeypatch.setenv(xdg, "mine")
    assert folder() == home / below / "pytest-gpuenergy"


def test_compiled_kernels_are_in_the_cache_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_CACHE_DIR", "")
    assert compiled_dir("cubin") == cache_dir("cubin")


def test_compiled_kernels_have_a_folder_of_their_own_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPILE_CACHE_DIR", "mine")
    settle_places()
    monkeypatch.chdir("/")
    assert compiled_dir("emulated", "host") == tmp_path / "mine/emulated/host"
    assert cache_dir("references") == tmp_path / "cache/references"


def test_a_file_is_no_folder_of_compiled_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPILE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be used \(Not a .*\): set COMPILE_CACHE_DIR to"):
        compiled_dir("cubin")


def test_a_folder_of_compiled_kernels_must_be_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root can write everywhere
    with pytest.raises(InputError, match="cannot be written: set COMPILE_CACHE_DIR to"):
        compiled_dir("cubin")
