"""Distinguishing a process from a later one with the same ID."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from pytest_gpuenergy.support import start_ticks


def test_a_process_has_one_start_while_it_runs():
    begun = start_ticks(os.getpid())
    assert begun is not None
    assert begun == start_ticks(os.getpid())


def test_a_process_that_has_ended_runs_no_more_though_nobody_has_waited_for_it():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(process.pid) is None
    process.wait()
    assert start_ticks(process.pid) is None


@pytest.mark.parametrize("name", ["sleep) Z 1 2", "a (b", "two words"])
def test_the_name_of_the_command_does_not_matter(tmp_path, name):
    found = shutil.which("sleep")
    assert found
    command = tmp_path / name
    shutil.copy(found, command)
    with subprocess.Popen([command, "60"]) as process:
        begun = start_ticks(process.pid)
        process.kill()
    assert begun is not None
    assert begun >= (start_ticks(os.getpid()) or 0)
