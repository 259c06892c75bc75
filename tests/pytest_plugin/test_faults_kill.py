"""A run that is killed in the middle of an item, and the run after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import has_ended, pause

from pytest_gpuenergy.devices import gpu_lock
from pytest_gpuenergy.opening import open_device

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

HANGS_AT_THE_THIRD = """
import pytest
from parts import LAUNCH, SCALE, SOURCE

@pytest.mark.parametrize("number", [1, 2, 3])
def test_scale(number, powercap, load_kernel, energy_benchmark):
    loop = "for (volatile int k = 0; k < 1;) {} y[i] =" if number == 3 else "y[i] ="
    energy_benchmark(load_kernel(SOURCE.replace("y[i] =", loop), **LAUNCH), workload=SCALE)
"""
# Another run of this machine removes what a dead one has left in /dev/shm, which all share.
WITHOUT_SHARED_MEMORY = """
import pathlib, sys, pytest
from pytest_gpuenergy.support import scratch
scratch._SHARED_MEMORY = pathlib.Path("/there/is/none")
sys.exit(pytest.main(sys.argv[1:]))
"""
PATIENCE_S = 60.0


def descendants(pid: int) -> Iterator[int]:
    """The process's current descendants."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(child) for task in tasks for child in task.read_text().split()]
    except OSError:  # it has ended in the meantime
        return
    for child in children:
        yield child
        yield from descendants(child)


def running_program(pid: int) -> int:
    """The descendant of ``pid`` that runs a kernel's program; waits until there is one."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        for child in descendants(pid):
            try:
                program = Path(f"/proc/{child}/exe").readlink().name
            except OSError:
                continue
            if program.endswith(("-plain", "-checked")) and busy(child):
                return child
        pause()
    raise AssertionError("no kernel was run")


def busy(pid: int) -> bool:
    """Whether the process has used half a second of CPU time, and therefore hangs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[11]) >= os.sysconf("SC_CLK_TCK") / 2


@pytest.fixture
def killed(project: Project) -> tuple[Project, list[int]]:
    """A project whose run, with all its processes, was killed while its third kernel hung."""
    project.module(HANGS_AT_THE_THIRD)
    words = ["-q", "--powercap", "1", "--gpuenergy-order", "file"]
    command = [sys.executable, "-c", WITHOUT_SHARED_MEMORY, *words]
    with (project.path / "out.txt").open("w") as out:
        run = subprocess.Popen(command, cwd=project.path, stdout=out, stderr=out)
    try:
        hung = running_program(run.pid)
        pids = [run.pid, *descendants(run.pid)]
        assert hung in pids
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    return project, pids


def buffers(pid: int) -> list[Path]:
    """What the run ``pid`` shares with its kernels' programs."""
    return [*Path(tempfile.gettempdir()).glob(f"gpuenergy-{pid}-*")]


def test_a_kill_in_the_middle_of_an_item_leaves_results_and_the_next_start_removes_the_rest(killed):
    project, pids = killed
    assert all(map(has_ended, pids))
    stored = project.stored().measurements
    assert [m.measured for m in stored] == [True, True]
    assert project.limit_w() == 200
    assert buffers(pids[0])
    project.run("--powercap", "current", "-k", "1").assert_outcomes(passed=1)
    assert project.limit_w() == 700
    assert not buffers(pids[0])


def test_a_run_that_was_killed_is_resumed(killed):
    project, _ = killed
    project.module(HANGS_AT_THE_THIRD.replace("number == 3", "False"))
    result = project.run("--powercap", "1", "--gpuenergy-resume")
    result.assert_outcomes(skipped=2, passed=1)
    assert [m.measured for m in project.report().measurements] == [True] * 3
    assert project.limit_w() == 700


DIES_IN_THE_SETTLE = """
import os, signal
from pytest_gpuenergy.emulator import VirtualClock
from pytest_gpuenergy.control import power_lease

wait = VirtualClock.sleep_s

def sleep_s(clock, duration_s):
    if duration_s == power_lease._POLL_S:
        os.kill(os.getpid(), signal.SIGKILL)
    wait(clock, duration_s)

VirtualClock.sleep_s = sleep_s
"""


def test_a_kill_while_the_cap_settles_is_undone(project, monkeypatch):
    (project.path / "conftest.py").write_text(DIES_IN_THE_SETTLE)
    with monkeypatch.context() as late:
        # The enforced limit does not follow, so the lease waits for it.
        late.setenv("GPUENERGY_EMULATED_FAULTS", '{"enforced_limit": {"power_w": 250}}')
        assert project.run_apart("--powercap", "2").ret == -signal.SIGKILL
    assert project.limit_w() == 325
    (project.path / "conftest.py").unlink()
    result = project.run("--powercap", "current")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["restored after a killed run: * is back at 700 W."])
    assert project.limit_w() == 700


DIES_WITH_ANOTHER_GPU = """
import os, signal
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.control import Lease
from pytest_gpuenergy.control import Setpoint
Lease(open_device("emulated:h200x2", index=1)).set(Setpoint(300.0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_start_restores_other_gpus_too(project):
    died = subprocess.run([project.python, "-c", DIES_WITH_ANOTHER_GPU], check=False)
    assert died.returncode == -signal.SIGKILL
    with open_device("emulated:h200x2", index=1) as other:
        assert other.nvml.nvmlDeviceGetPowerManagementLimit(other.handle) == 300_000
        project.run("--powercap", "1").assert_outcomes(passed=1)
        assert other.nvml.nvmlDeviceGetPowerManagementLimit(other.handle) == 700_000


def test_another_gpu_that_is_in_use_is_left_to_its_user(project):
    subprocess.run([project.python, "-c", DIES_WITH_ANOTHER_GPU], check=False)
    with open_device("emulated:h200x2", index=1) as other, gpu_lock(other, wait_s=0):
        project.run("--powercap", "1").assert_outcomes(passed=1)
        assert other.nvml.nvmlDeviceGetPowerManagementLimit(other.handle) == 300_000


def test_sigterm_ends_a_run_with_workers_as_it_ends_others(project):
    project.module(HANGS_AT_THE_THIRD)
    options = ["-p", "xdist", "-n", "2", "--gpu-device", "emulated:h200x2"]
    command = [sys.executable, "-m", "pytest", "-q", "--powercap", "1", *options]
    with (project.path / "out.txt").open("w") as out:
        run = subprocess.Popen(command, cwd=project.path, stdout=out, stderr=out)
    running_program(run.pid)
    pids = [run.pid, *descendants(run.pid)]
    run.send_signal(signal.SIGTERM)
    assert run.wait(PATIENCE_S) == pytest.ExitCode.INTERRUPTED
    assert [m.measured for m in project.report().measurements] == [True, True]
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(map(has_ended, pids)) and time.monotonic() < deadline_s:
        pause()
    for index in range(2):
        with open_device("emulated:h200x2", index=index) as device:
            assert device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle) == 700_000
