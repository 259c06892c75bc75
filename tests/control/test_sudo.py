"""Setting a power limit through one rule of sudo, with a sudo and an nvidia-smi of the test's."""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
import shutil
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from power_cards import PRIOR_MW, present_mw, write

from pytest_gpuenergy.control import (
    Lease,
    PowerLimits,
    Setpoint,
    SudoWriter,
    clock_rule,
    digit_patterns,
    find_sudo,
    limit_rule,
    own_name,
    read_limits,
    recorded_uuids,
    safe_program,
    supported_clocks,
)
from pytest_gpuenergy.devices import NvmlGpu
from pytest_gpuenergy.support import SetpointError

ROOT = Path(__file__).parents[2]

# As sudo(8) and sudoers(5) have it: -n never prompts, -l asks and runs nothing, the program must be
# the one of the rule, and its arguments, joined by blanks, must match the rule's as a pattern.
SUDO = """#!{python}
import fnmatch, os, sys
words = sys.argv[1:]
with open({log!r}, "a") as file:
    file.write(" ".join(words) + "\\n")
if words[0] != "-n":
    sys.exit("it would prompt")
asked = words[1] == "-l"
command = words[2:] if asked else words[1:]
for rule in open({rules!r}).read().partition("NOPASSWD: ")[2].split(", "):
    program, _, pattern = rule.strip().partition(" ")
    if program == command[0] and fnmatch.fnmatchcase(" ".join(command[1:]), pattern):
        if asked:
            print(*command)
            sys.exit(0)
        os.execv(command[0], command)
sys.exit(1 if asked else "sudo: a password is required")
"""

NVIDIA_SMI = """#!{python}
import sys
sys.path.insert(0, {root!r})
from pytest_gpuenergy.emulator import DEFAULT_PROFILE
from pytest_gpuenergy.emulator import CardState
_, i, uuid, what, *amounts = sys.argv
assert i == "-i"
for index in range(4):
    if DEFAULT_PROFILE.uuid(index) == uuid:
        with CardState(DEFAULT_PROFILE, index).change() as card:
            if what == "-pl":
                print(f"Power limit for GPU was set to {{amounts[0]}} W.")
                card.set_limit(round(float(amounts[0]) * 1000))
            elif what == "-lgc":
                print(f"GPU clocks set to {{amounts[0]}}")
                card.lock_clocks((int(amounts[0]), int(amounts[0])))
            else:
                assert (what, amounts) == ("-rgc", [])
                card.lock_clocks(None)
        sys.exit(0)
print(f"No devices were found: {{uuid}}")
sys.exit(6)
"""


@dataclass(frozen=True)
class Machine:
    """A machine with sudo and nvidia-smi on its PATH."""

    rules: Path
    log: Path
    nvidia_smi: Path

    @property
    def calls(self) -> list[str]:
        """The arguments with which sudo was called."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(real: NvmlGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with the rule that the documentation and the doctor give."""
    made = Machine(tmp_path / "rules", tmp_path / "log", tmp_path / "bin" / "nvidia-smi")
    made.nvidia_smi.parent.mkdir()
    names = {"python": sys.executable, "root": str(ROOT)}
    paths = {"log": str(made.log), "rules": str(made.rules)}
    for name, source in (("sudo", SUDO), ("nvidia-smi", NVIDIA_SMI)):
        path = made.nvidia_smi.with_name(name)
        path.write_text(source.format(**names, **paths))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(made.nvidia_smi.parent))
    made.rules.write_text(
        limit_rule(real.uuid, read_limits(real), user="ann", program=str(made.nvidia_smi))
    )
    return made


def found(gpu: NvmlGpu) -> SudoWriter:
    writer = find_sudo(gpu)
    assert isinstance(writer, SudoWriter), writer
    return writer


@pytest.mark.slow
def test_the_documented_rule_is_enough_to_set_and_restore(real, machine):
    lease = Lease(real, found(real))
    assert lease.set(Setpoint(300.0)) == Setpoint(300.0)
    lease.restore()
    assert present_mw(real) == PRIOR_MW
    command = f"{machine.nvidia_smi} -i {real.uuid} -pl"
    assert machine.calls == [
        f"-n -l {command} 450",
        f"-n -l {command} 300",
        f"-n {command} 300",
        f"-n {command} 450",
    ]


def test_sudo_is_asked_without_running_anything(real, machine):
    found(real)
    assert all(call.startswith("-n -l ") for call in machine.calls)
    assert present_mw(real) == PRIOR_MW


def test_without_a_rule_sudo_is_not_used(real, machine):
    machine.rules.write_text("")
    assert find_sudo(real) == (f"sudo does not allow {machine.nvidia_smi} -i {real.uuid} -pl 450")


@pytest.mark.parametrize("missing", ["sudo", "nvidia-smi"])
def test_a_missing_program_is_named(real, machine, missing):
    machine.nvidia_smi.with_name(missing).unlink()
    assert find_sudo(real) == f"no {missing} on the PATH"


def test_a_cap_outside_the_rule_changes_nothing(real, machine):
    limits = PowerLimits(400.0, 500.0, 450.0)
    machine.rules.write_text(
        limit_rule(real.uuid, limits, user="ann", program=str(machine.nvidia_smi))
    )
    with pytest.raises(SetpointError, match=r"sudo does not allow .* -pl 300: add the rule"):
        Lease(real, found(real)).set(Setpoint(300.0))
    assert present_mw(real) == PRIOR_MW
    assert recorded_uuids() == []


@pytest.fixture
def may_lock(real: NvmlGpu, machine: Machine) -> Machine:
    """A machine whose sudo allows clocks, but no limits."""
    clocks = supported_clocks(real)
    machine.rules.write_text(
        clock_rule(real.uuid, clocks, user="ann", program=str(machine.nvidia_smi))
    )
    return machine


@pytest.mark.slow
def test_the_rule_for_clocks_is_enough_to_lock_and_unlock(real, device, may_lock):
    lease = Lease(real, found(real))
    lease.set(Setpoint(sm_clock_mhz=1500))
    with device.state.change() as card:
        assert card.lock_mhz == (1500, 1500)
    lease.restore()
    with device.state.change() as card:
        assert card.lock_mhz is None
    command = f"{may_lock.nvidia_smi} -i {real.uuid}"
    assert may_lock.calls[-4:] == [
        f"-n -l {command} -rgc",
        f"-n -l {command} -lgc 1500",
        f"-n {command} -lgc 1500",
        f"-n {command} -rgc",
    ]


def test_the_rule_for_clocks_sets_no_limit(real, may_lock):
    with pytest.raises(SetpointError, match=r"sudo does not allow .* -pl 450: .*powercap current"):
        Lease(real, found(real)).set(Setpoint(300.0))
    assert may_lock.rules.exists()


def test_the_rule_for_limits_locks_no_clock(real, machine):
    with pytest.raises(SetpointError, match=r"sudo does not allow .* -lgc 1500: .*smclock current"):
        Lease(real, found(real)).set(Setpoint(sm_clock_mhz=1500))
    assert machine.rules.exists()
    assert recorded_uuids() == []


def test_the_documentation_shows_the_rule_for_clocks_as_it_is():
    uuid = "GPU-1f2e3d4c-0000-1111-2222-333344445555"
    shown = clock_rule(uuid, range(345, 1981, 15), user="ann", program="/usr/bin/nvidia-smi")
    text = (ROOT / "docs" / "how-to" / "locked-clocks.md").read_text()
    assert f"```text\n{shown}\n```" in text


@pytest.mark.usefixtures("machine")
def test_half_a_watt_is_no_whole_watt(real):
    with pytest.raises(SetpointError, match=r"takes whole watts, not 250\.5 W: round it"):
        Lease(real, found(real)).set(Setpoint(250.5))
    assert present_mw(real) == PRIOR_MW


@pytest.mark.usefixtures("machine")
def test_a_prior_limit_that_sudo_could_not_put_back_is_not_touched(real):
    write(real, 450_500)
    assert "whole watts, not 450.5 W" in str(find_sudo(real)).replace("The sudo rule is", "")
    assert present_mw(real) == 450_500


@pytest.mark.slow
def test_a_rule_that_is_withdrawn_leaves_the_record(real, machine):
    lease = Lease(real, found(real))
    lease.set(Setpoint(300.0))
    machine.rules.write_text("")
    with pytest.raises(SetpointError, match=r"not restored to 450 W.*sudo: a password is required"):
        lease.restore()
    assert present_mw(real) == 300_000
    assert recorded_uuids() == [real.uuid]


def test_an_nvidia_smi_that_fails_is_told(real, machine):
    writer = found(real)
    machine.nvidia_smi.write_text("#!/bin/sh\necho 'Insufficient Permissions'; exit 4\n")
    with pytest.raises(
        SetpointError, match=r"-pl 300 failed \(Insufficient Permissions\): run gpu"
    ):
        Lease(real, writer).set(Setpoint(300.0))
    assert present_mw(real) == PRIOR_MW
    assert recorded_uuids() == []


def test_the_rule_is_for_one_user_and_one_gpu():
    limits = PowerLimits(100.0, 165.5, 165.0)
    assert limit_rule("GPU-1f2e", limits, user="ann", program="/usr/bin/nvidia-smi") == (
        "ann ALL=(root) NOPASSWD: "
        "/usr/bin/nvidia-smi -i GPU-1f2e -pl 1[0-5][0-9], "
        "/usr/bin/nvidia-smi -i GPU-1f2e -pl 16[0-5]"
    )


def test_the_documentation_shows_the_rule_as_it_is():
    uuid = "GPU-1f2e3d4c-0000-1111-2222-333344445555"
    shown = limit_rule(
        uuid, PowerLimits(200.0, 700.0, 700.0), user="ann", program="/usr/bin/nvidia-smi"
    )
    assert f"```text\n{shown}\n```" in (ROOT / "docs" / "how-to" / "power-caps.md").read_text()


@given(st.integers(1, 1500), st.integers(0, 1500), st.integers(0, 3000))
def test_patterns_are_for_exactly_the_range(lowest, more, watts):
    patterns = digit_patterns(lowest, lowest + more)
    matching = [pattern for pattern in patterns if fnmatch.fnmatchcase(str(watts), pattern)]
    assert len(matching) == (lowest <= watts <= lowest + more)


@given(st.integers(1, 1500), st.integers(0, 1500), st.text(alphabet="0123456789 -rpml", max_size=8))
def test_patterns_match_nothing_but_numbers(lowest, more, words):
    for pattern in digit_patterns(lowest, lowest + more):
        assert set(pattern) <= set("0123456789[-]")
        if fnmatch.fnmatchcase(words, pattern):
            assert words.isdecimal()


LIMITS = PowerLimits(200.0, 700.0, 700.0)
SYSTEM = Path("/usr/bin")
needs_roots_system = pytest.mark.skipif(
    Path("/").stat().st_uid != 0 or SYSTEM.stat().st_uid != 0, reason="/usr/bin is not root's here"
)


@dataclass
class Disk:
    """A machine on which everything belongs to root with mode 0755, except as set."""

    folder: Path
    owners: dict[Path, int] = field(default_factory=dict)
    modes: dict[Path, int] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        return self.folder / "nvidia-smi"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A file system with an nvidia-smi in the only folder on the PATH."""
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


def test_the_environment_does_not_name_the_user(monkeypatch):
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "mallory")
    assert own_name() in (pwd.getpwuid(os.getuid()).pw_name, f"#{os.getuid()}")


@pytest.mark.parametrize(
    "name", ["ALL", "ADMINS", "%wheel", "ann@corp.example", "a,b", "a b", "#0"]
)
def test_a_name_with_a_meaning_in_sudoers_is_given_by_number(accounts, name):
    accounts[name] = 1000
    assert own_name() == "#1000"


def test_a_plain_name_is_given(accounts):
    accounts["ann"] = 1000
    assert own_name() == "ann"


def test_a_name_that_belongs_to_another_id_is_not_given(accounts, monkeypatch):
    accounts["ann"] = 1000
    monkeypatch.setattr("pwd.getpwnam", lambda name: account(name, 0))
    assert own_name() == "#1000"


def test_without_a_name_there_is_no_rule(monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    with pytest.raises(SetpointError, match="User 54321 has no name, which sudo requires"):
        limit_rule("GPU-1", LIMITS)


@needs_roots_system
def test_a_program_of_the_system_is_safe():
    assert safe_program("env") == shutil.which("env")


def test_a_program_and_folders_of_root_give_a_rule(disk):
    assert f" {disk.program} -i GPU-1 -pl " in limit_rule("GPU-1", LIMITS)


@pytest.mark.parametrize("place", ["nvidia-smi", "", "..", "../.."])
def test_what_belongs_to_somebody_else_gives_no_rule(disk, place):
    entry = (disk.folder / place).resolve()
    disk.owners[entry] = 12_345
    with pytest.raises(SetpointError, match=f"because {re.escape(str(entry))} belongs to user 12"):
        limit_rule("GPU-1", LIMITS)


@pytest.mark.parametrize("place", ["nvidia-smi", "", "..", "../.."])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_what_others_can_write_to_gives_no_rule(disk, place, mode):
    entry = (disk.folder / place).resolve()
    disk.modes[entry] = mode
    with pytest.raises(SetpointError, match=f"because other users can write to {entry}"):
        limit_rule("GPU-1", LIMITS)


def test_a_link_to_a_program_that_others_can_change_gives_no_rule(disk, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    disk.program.rename(theirs / "tool")
    disk.program.symlink_to(theirs / "tool")
    disk.modes[theirs] = 0o777
    with pytest.raises(SetpointError, match=r"because other users can write to .*theirs"):
        limit_rule("GPU-1", LIMITS)


def test_a_users_own_program_gives_no_rule(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    tmp_path.chmod(0o777)  # wherever temporary folders are
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetpointError, match=r"nvidia-smi cannot be used, because "):
        safe_program("nvidia-smi")


def test_a_safe_program_later_on_the_path_is_taken(disk, tmp_path, monkeypatch):
    first = tmp_path / "mine"
    shutil.copytree(disk.folder, first)
    disk.modes[first] = 0o777
    monkeypatch.setenv("PATH", f"{first}:{disk.folder}")
    assert safe_program("nvidia-smi") == str(disk.program)


@needs_roots_system
@pytest.mark.parametrize("folder", [".", "", "usr/bin", "/usr/lib/../bin"])
def test_a_path_that_is_not_plain_is_not_taken(folder, monkeypatch):
    monkeypatch.chdir("/" if folder.startswith("usr") else SYSTEM)
    monkeypatch.setenv("PATH", folder)
    with pytest.raises(SetpointError, match=r"its path is not a plain absolute one|no env"):
        safe_program("env")


def test_a_missing_program_has_no_rule(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetpointError, match=r"^There is no nvidia-smi on the PATH\.$"):
        safe_program("nvidia-smi")


def test_a_uuid_with_words_of_its_own_gives_no_rule():
    with pytest.raises(SetpointError, match="is not the UUID of a GPU"):
        limit_rule("GPU-1 -pl 1, ALL", LIMITS, user="ann", program="/usr/bin/nvidia-smi")
