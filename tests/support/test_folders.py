"""Folders and links on shared machines: who may own them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.support import followed, own_folder

SOMEBODY = 54321
Give = Callable[[Path], Path]


@pytest.fixture
def given_away() -> Give:
    """Makes another user the owner of a file, folder or link."""
    if os.geteuid():
        pytest.skip("only root can make files that belong to another user")

    def give(path: Path) -> Path:
        os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)
        return path

    return give


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as /tmp: all users can write, and each can remove only their own entries."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_folder_is_made_with_those_above_it(tmp_path):
    path = tmp_path / "a" / "b"
    assert own_folder(path) == path
    assert own_folder(path) == path
    assert path.stat().st_mode & 0o7777 == 0o700


def test_a_folder_of_ones_own_may_lie_among_those_of_others(shared):
    assert own_folder(shared / "mine") == shared / "mine"


@pytest.mark.parametrize("name", ["", "below", "below/further"])
def test_a_folder_that_everybody_can_write_without_protection_is_refused(shared, name):
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match=f"other users can write in {shared}"):
        own_folder(shared / name)
    assert list(shared.iterdir()) == []


def test_a_folder_in_which_everybody_can_make_files_is_refused(shared):
    with pytest.raises(PermissionError, match=f"other users can write in {shared}"):
        own_folder(shared)


def test_a_folder_that_a_strange_group_can_write_is_refused(tmp_path, given_away):
    folder = tmp_path / "folder"
    folder.mkdir()
    given_away(folder)
    os.chown(folder, os.geteuid(), -1)
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match=f"other users can write in {folder}"):
        own_folder(folder)


def test_a_folder_that_ones_own_group_can_write_is_used(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o775)
    assert own_folder(folder) == folder


@pytest.mark.parametrize("name", ["theirs", "theirs/mine"])
def test_what_somebody_else_could_replace_is_refused(shared, given_away, name):
    (shared / name).mkdir(parents=True)
    theirs = given_away(shared / "theirs")
    with pytest.raises(PermissionError, match=f"{theirs} belongs to user {SOMEBODY}"):
        own_folder(shared / name)


@pytest.mark.parametrize("below", ["", "below"])
def test_somebody_elses_link_to_ones_own_folder_is_refused(tmp_path, shared, given_away, below):
    (tmp_path / "private").mkdir()
    link = shared / "link"
    link.symlink_to(tmp_path / "private")
    given_away(link)
    with pytest.raises(PermissionError, match=f"{link} belongs to user {SOMEBODY}"):
        own_folder(link / below)
    assert list((tmp_path / "private").iterdir()) == []


def test_ones_own_link_to_a_folder_of_others_is_refused(tmp_path, shared, given_away):
    (shared / "theirs").mkdir()
    theirs = given_away(shared / "theirs")
    link = tmp_path / "link"
    link.symlink_to(theirs)
    with pytest.raises(PermissionError, match=f"{theirs} belongs to user {SOMEBODY}"):
        own_folder(link)


@pytest.mark.parametrize("target", ["{0}/real", "real", "sub/../real", "{0}/again"])
def test_ones_own_links_are_followed(tmp_path, target):
    for name in ("real", "sub"):
        (tmp_path / name).mkdir()
    (tmp_path / "again").symlink_to("real")
    link = tmp_path / "link"
    link.symlink_to(target.format(tmp_path))
    assert own_folder(link / "below") == tmp_path / "real" / "below"


@pytest.mark.parametrize("kind", ["file", "pipe", "circle"])
def test_what_is_no_folder_is_refused(tmp_path, kind):
    path = tmp_path / "folder"
    if kind == "file":
        path.write_text("")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    for name in ("", "below"):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            own_folder(path / name)


@pytest.mark.parametrize("below", ["", "report.json", "deep/er/report.json"])
def test_somebody_elses_link_in_a_folder_of_everybody_is_not_followed(
    tmp_path, shared, given_away, below
):
    link = shared / "link"
    link.symlink_to(tmp_path)
    given_away(link)
    with pytest.raises(PermissionError, match=f"{link} is a link that belongs to another user"):
        followed(link / below)


def test_somebody_elses_link_in_their_own_folder_is_followed(tmp_path, shared, given_away):
    given_away(shared)
    link = shared / "link"
    link.symlink_to(tmp_path)
    given_away(link)
    assert followed(link / "report.json") == tmp_path / "report.json"


PARTS = st.sampled_from(["a", "b", "link", "loop", "file", "missing", "..", "."])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(PARTS, max_size=5),
    targets=st.lists(st.lists(PARTS.filter(lambda name: name != "loop"), max_size=3), min_size=2),
)
def test_links_lead_where_the_system_says(tmp_path_factory, names, targets):
    home = tmp_path_factory.mktemp("home")
    (home / "a" / "b").mkdir(parents=True)
    (home / "a" / "link").symlink_to(Path(*targets[0]))
    (home / "link").symlink_to(home.joinpath(*targets[1]))
    (home / "loop").symlink_to("loop")
    (home / "a" / "file").write_text("")
    path = home.joinpath(*names)
    try:
        expected = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return
    assert followed(path) == expected
