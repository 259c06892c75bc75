"""Setting a power limit through one rule of sudo, with a sudo and an nvidia-smi of the test's."""

from __future__ import annotations

import fnmatch
import sys
from dataclasses import dataclass
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
    read_limits,
    recorded_uuids,
    rule,
    supported_clocks,
)
from pytest_gpuenergy.devices import NvmlGpu
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.support import SetpointError

ROOT = Path(__file__).parents[3]

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
from pytest_gpuenergy.emulator.profiles import DEFAULT_PROFILE
from pytest_gpuenergy.emulator.state import CardState
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
    """One with sudo and nvidia-smi on its PATH."""

    rules: Path
    log: Path
    nvidia_smi: Path

    @property
    def calls(self) -> list[str]:
        """What sudo was called with."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(real: NvmlGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The rule is the one that the documentation and the doctor give."""
    made = Machine(tmp_path / "rules", tmp_path / "log", tmp_path / "bin" / "nvidia-smi")
    made.nvidia_smi.parent.mkdir()
    names = {"python": sys.executable, "root": str(ROOT)}
    paths = {"log": str(made.log), "rules": str(made.rules)}
    for name, source in (("sudo", SUDO), ("nvidia-smi", NVIDIA_SMI)):
        path = made.nvidia_smi.with_name(name)
        path.write_text(source.format(**names, **paths))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(made.nvidia_smi.parent))
    made.rules.write_text(rule("ann", str(made.nvidia_smi), real.uuid, read_limits(real)))
    return made


def found(gpu: NvmlGpu) -> SudoWriter:
    writer = find_sudo(gpu)
    assert isinstance(writer, SudoWriter), writer
    return writer


@pytest.mark.slow
def test_the_documented_rule_is_enough_to_set_and_restore(real: NvmlGpu, machine: Machine) -> None:
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


def test_sudo_is_asked_without_running_anything(real: NvmlGpu, machine: Machine) -> None:
    found(real)
    assert all(call.startswith("-n -l ") for call in machine.calls)
    assert present_mw(real) == PRIOR_MW


def test_without_a_rule_sudo_is_not_used(real: NvmlGpu, machine: Machine) -> None:
    machine.rules.write_text("")
    assert find_sudo(real) == (f"sudo does not allow {machine.nvidia_smi} -i {real.uuid} -pl 450")


@pytest.mark.parametrize("missing", ["sudo", "nvidia-smi"])
def test_a_missing_program_is_named(real: NvmlGpu, machine: Machine, missing: str) -> None:
    machine.nvidia_smi.with_name(missing).unlink()
    assert find_sudo(real) == f"no {missing} on the PATH"


def test_a_cap_outside_the_rule_changes_nothing(real: NvmlGpu, machine: Machine) -> None:
    limits = PowerLimits(400.0, 500.0, 450.0)
    machine.rules.write_text(rule("ann", str(machine.nvidia_smi), real.uuid, limits))
    with pytest.raises(SetpointError, match=r"sudo does not allow .* -pl 300: add the rule"):
        Lease(real, found(real)).set(Setpoint(300.0))
    assert present_mw(real) == PRIOR_MW
    assert recorded_uuids() == []


@pytest.fixture
def may_lock(real: NvmlGpu, machine: Machine) -> Machine:
    """sudo allows clocks, but no limits."""
    clocks = supported_clocks(real)
    machine.rules.write_text(clock_rule("ann", str(machine.nvidia_smi), real.uuid, clocks))
    return machine


@pytest.mark.slow
def test_the_rule_for_clocks_is_enough_to_lock_and_unlock(
    real: NvmlGpu, device: EmulatedDevice, may_lock: Machine
) -> None:
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


def test_the_rule_for_clocks_sets_no_limit(real: NvmlGpu, may_lock: Machine) -> None:
    with pytest.raises(SetpointError, match=r"sudo does not allow .* -pl 450: .*powercap current"):
        Lease(real, found(real)).set(Setpoint(300.0))
    assert may_lock.rules.exists()


def test_the_rule_for_limits_locks_no_clock(real: NvmlGpu, machine: Machine) -> None:
    with pytest.raises(SetpointError, match=r"sudo does not allow .* -lgc 1500: .*smclock current"):
        Lease(real, found(real)).set(Setpoint(sm_clock_mhz=1500))
    assert machine.rules.exists()
    assert recorded_uuids() == []


def test_the_documentation_shows_the_rule_for_clocks_as_it_is() -> None:
    uuid = "GPU-1f2e3d4c-0000-1111-2222-333344445555"
    shown = clock_rule("ann", "/usr/bin/nvidia-smi", uuid, range(345, 1981, 15))
    text = (ROOT / "docs" / "how-to" / "locked-clocks.md").read_text()
    assert f"```text\n{shown}\n```" in text


def test_half_a_watt_is_no_whole_watt(real: NvmlGpu, machine: Machine) -> None:  # noqa: ARG001
    with pytest.raises(SetpointError, match=r"takes whole watts, not 250\.5 W: round it"):
        Lease(real, found(real)).set(Setpoint(250.5))
    assert present_mw(real) == PRIOR_MW


@pytest.mark.usefixtures("machine")
def test_a_prior_limit_that_sudo_could_not_put_back_is_not_touched(real: NvmlGpu) -> None:
    write(real, 450_500)
    assert "whole watts, not 450.5 W" in str(find_sudo(real)).replace("The sudo rule is", "")
    assert present_mw(real) == 450_500


def test_a_rule_that_is_withdrawn_leaves_the_record(real: NvmlGpu, machine: Machine) -> None:
    lease = Lease(real, found(real))
    lease.set(Setpoint(300.0))
    machine.rules.write_text("")
    with pytest.raises(SetpointError, match=r"not restored to 450 W.*sudo: a password is required"):
        lease.restore()
    assert present_mw(real) == 300_000
    assert recorded_uuids() == [real.uuid]


def test_an_nvidia_smi_that_fails_is_told(real: NvmlGpu, machine: Machine) -> None:
    writer = found(real)
    machine.nvidia_smi.write_text("#!/bin/sh\necho 'Insufficient Permissions'; exit 4\n")
    with pytest.raises(
        SetpointError, match=r"-pl 300 failed \(Insufficient Permissions\): run gpu"
    ):
        Lease(real, writer).set(Setpoint(300.0))
    assert present_mw(real) == PRIOR_MW
    assert recorded_uuids() == []


def test_the_rule_is_for_one_user_and_one_gpu() -> None:
    limits = PowerLimits(100.0, 165.5, 165.0)
    assert rule("ann", "/usr/bin/nvidia-smi", "GPU-1f2e", limits) == (
        "ann ALL=(root) NOPASSWD: "
        "/usr/bin/nvidia-smi -i GPU-1f2e -pl 1[0-5][0-9], "
        "/usr/bin/nvidia-smi -i GPU-1f2e -pl 16[0-5]"
    )


def test_the_documentation_shows_the_rule_as_it_is() -> None:
    uuid = "GPU-1f2e3d4c-0000-1111-2222-333344445555"
    shown = rule("ann", "/usr/bin/nvidia-smi", uuid, PowerLimits(200.0, 700.0, 700.0))
    assert f"```text\n{shown}\n```" in (ROOT / "docs" / "how-to" / "power-caps.md").read_text()


@given(st.integers(1, 1500), st.integers(0, 1500), st.integers(0, 3000))
def test_patterns_are_for_exactly_the_range(lowest: int, more: int, watts: int) -> None:
    patterns = digit_patterns(lowest, lowest + more)
    matching = [pattern for pattern in patterns if fnmatch.fnmatchcase(str(watts), pattern)]
    assert len(matching) == (lowest <= watts <= lowest + more)


@given(st.integers(1, 1500), st.integers(0, 1500), st.text(alphabet="0123456789 -rpml", max_size=8))
def test_patterns_match_nothing_but_numbers(lowest: int, more: int, words: str) -> None:
    for pattern in digit_patterns(lowest, lowest + more):
        assert set(pattern) <= set("0123456789[-]")
        if fnmatch.fnmatchcase(words, pattern):
            assert words.isdecimal()
