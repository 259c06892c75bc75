"""The sudoers rule that the doctor prints: nothing in it can be chosen by whoever asks."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_gpuenergy.control import PowerLimits, own_name, rule, safe_program, sudoers_line
from pytest_gpuenergy.support import SetpointError

LIMITS = PowerLimits(200.0, 700.0, 700.0)
SYSTEM = Path("/usr/bin")
needs_roots_system = pytest.mark.skipif(
    Path("/").stat().st_uid != 0 or SYSTEM.stat().st_uid != 0, reason="/usr/bin is not root's here"
)


@dataclass
class Disk:
    """One on which everything belongs to root with mode 0755, except as told."""

    folder: Path
    owners: dict[Path, int] = field(default_factory=dict)
    modes: dict[Path, int] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        return self.folder / "nvidia-smi"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """With an nvidia-smi in the only folder on the PATH."""
    made = Disk(tmp_path / "bin")
    made.folder.mkdir()
    made.program.write_text("#!/bin/sh\n")
    made.program.chmod(0o755)
    monkeypatch.setenv("PATH", str(made.folder))
    actual = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        mode, *others = actual(path)
        others[3] = made.owners.get(path, 0)
        return os.stat_result((stat.S_IFMT(mode) | made.modes.get(path, 0o755), *others))

    monkeypatch.setattr(Path, "lstat", lstat)
    return made


def account(name: str, uid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The names and user IDs of the password database, in its order."""
    known: dict[str, int] = {}

    def getpwuid(uid: int) -> pwd.struct_passwd:
        return next(account(n, u) for n, u in known.items() if u == uid)

    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    monkeypatch.setattr("pwd.getpwnam", lambda name: account(name, known[name]))
    monkeypatch.setattr("os.getuid", lambda: 1000)
    return known


def test_the_environment_does_not_name_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "mallory")
    assert own_name() in (pwd.getpwuid(os.getuid()).pw_name, f"#{os.getuid()}")


@pytest.mark.parametrize(
    "name", ["ALL", "ADMINS", "%wheel", "ann@corp.example", "a,b", "a b", "#0"]
)
def test_a_name_with_a_meaning_in_sudoers_is_given_by_number(
    accounts: dict[str, int], name: str
) -> None:
    accounts[name] = 1000
    assert own_name() == "#1000"


def test_a_plain_name_is_given(accounts: dict[str, int]) -> None:
    accounts["ann"] = 1000
    assert own_name() == "ann"


def test_a_name_that_belongs_to_another_id_is_not_given(
    accounts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts["ann"] = 1000
    monkeypatch.setattr("pwd.getpwnam", lambda name: account(name, 0))
    assert own_name() == "#1000"


def test_without_a_name_there_is_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    with pytest.raises(SetpointError, match="User 54321 has no name, which sudo requires"):
        sudoers_line("GPU-1", LIMITS)


@needs_roots_system
def test_a_program_of_the_system_is_safe() -> None:
    assert safe_program("env") == shutil.which("env")


def test_a_program_and_folders_of_root_give_a_rule(disk: Disk) -> None:
    assert f" {disk.program} -i GPU-1 -pl " in sudoers_line("GPU-1", LIMITS)


@pytest.mark.parametrize("place", ["nvidia-smi", "", "..", "../.."])
def test_what_belongs_to_somebody_else_gives_no_rule(disk: Disk, place: str) -> None:
    entry = (disk.folder / place).resolve()
    disk.owners[entry] = 12_345
    with pytest.raises(SetpointError, match=f"because {re.escape(str(entry))} belongs to user 12"):
        sudoers_line("GPU-1", LIMITS)


@pytest.mark.parametrize("place", ["nvidia-smi", "", "..", "../.."])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_what_others_can_write_to_gives_no_rule(disk: Disk, place: str, mode: int) -> None:
    entry = (disk.folder / place).resolve()
    disk.modes[entry] = mode
    with pytest.raises(SetpointError, match=f"because other users can write to {entry}"):
        sudoers_line("GPU-1", LIMITS)


def test_a_link_to_a_program_that_others_can_change_gives_no_rule(
    disk: Disk, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    disk.program.rename(theirs / "tool")
    disk.program.symlink_to(theirs / "tool")
    disk.modes[theirs] = 0o777
    with pytest.raises(SetpointError, match=r"because other users can write to .*theirs"):
        sudoers_line("GPU-1", LIMITS)


def test_a_users_own_program_gives_no_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetpointError, match=r"nvidia-smi cannot be used, because "):
        safe_program("nvidia-smi")


def test_a_safe_program_later_on_the_path_is_taken(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "mine"
    shutil.copytree(disk.folder, first)
    disk.modes[first] = 0o777
    monkeypatch.setenv("PATH", f"{first}:{disk.folder}")
    assert safe_program("nvidia-smi") == str(disk.program)


@needs_roots_system
@pytest.mark.parametrize("folder", [".", "", "usr/bin", "/usr/lib/../bin"])
def test_a_path_that_is_not_plain_is_not_taken(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/" if folder.startswith("usr") else SYSTEM)
    monkeypatch.setenv("PATH", folder)
    with pytest.raises(SetpointError, match=r"its path is not a plain absolute one|no env"):
        safe_program("env")


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetpointError, match=r"^There is no nvidia-smi on the PATH\.$"):
        safe_program("nvidia-smi")


def test_a_uuid_with_words_of_its_own_gives_no_rule() -> None:
    with pytest.raises(SetpointError, match="is not the UUID of a GPU"):
        rule("ann", "/usr/bin/nvidia-smi", "GPU-1 -pl 1, ALL", LIMITS)
