"""Runs on several GPUs measure the same kernels on each, and tell how the boards differ."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, power_factor
from pytest_gpuenergy.report import Boards

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

ALWAYS = ("--gpuenergy-boards", "always", "--powercap", "700W")


def two(project: Project) -> None:
    mark = '@pytest.mark.parametrize("number", range(2))'
    project.bench(marks=mark, arguments="number, powercap, ")


def test_each_board_measures_the_kernels_once_and_its_gain_is_found(project, monkeypatch, capsys):
    two(project)  # pytest-xdist gives one item to each worker
    arguments = ("-p", "xdist", "-n", "2", "--gpu-device", "emulated:h200x2")
    result = project.run(*arguments, "--powercap", "700W", "--gpuenergy-preheat", "30")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["boards (emulated): 2 of NVIDIA H200, spread * % in energy, * % in time at 700W"]
    )
    report = project.report()
    uuids = [DEFAULT_PROFILE.uuid(index) for index in range(2)]
    assert Counter((m.gpu_uuid, m.kernel.label) for m in report.board_checks) == Counter(
        (uuid, kernel) for uuid in uuids for kernel in ("rotate", "scale")
    )
    gains = {gain.gpu_uuid: gain for gain in Boards(report).gains}
    for index, uuid in enumerate(uuids):
        energy = gains[uuid].energy
        assert energy is not None
        truth = power_factor(index) / (power_factor(0) * power_factor(1)) ** 0.5
        assert energy.low <= truth <= energy.high
        assert energy.value == pytest.approx(truth, rel=0.01)
    monkeypatch.chdir(project.path)
    assert main(["report", "--calibrated"]) == 0
    assert "scale at 700W (emulated, calibrated)" in capsys.readouterr().out


def test_a_resumed_run_measures_the_kernels_under_new_caps_only(project):
    two(project)
    project.run(*ALWAYS, "-k", "0-700W").assert_outcomes(passed=1, deselected=1)
    first = project.stored().board_checks
    assert {m.cap for m in first} == {"700W"}
    project.run(*ALWAYS[:2], "--powercap", "1,5", "--gpuenergy-resume")
    checks = project.stored().board_checks
    assert checks[: len(first)] == first
    assert {m.cap for m in checks[len(first) :]} == {"200W"}


def test_a_single_gpu_measures_no_kernels_of_ours_unless_asked_to(project):
    project.run("--powercap", "700W").assert_outcomes(passed=1)
    assert project.stored().board_checks == ()
    project.run(*ALWAYS, "--gpuenergy-resume").assert_outcomes(skipped=1)
    assert project.stored().board_checks == ()  # nothing was measured that it could be for


def test_a_kernel_that_fails_is_recorded_with_the_reason_and_the_run_goes_on(project, inject):
    inject(launch="unknown")
    project.run(*ALWAYS).assert_outcomes(failed=1)  # as without them
    checks = project.stored().board_checks
    assert [m.measured for m in checks] == [False, False]
    assert all(m.error for m in checks)


def test_verifying_measures_no_boards(project):
    project.run("--gpuenergy-verify-only", "--gpuenergy-boards", "always")
    assert project.stored().board_checks == ()


def test_calibrated_figures_need_the_gains_of_boards(project, monkeypatch, capsys):
    project.run(*ALWAYS)
    assert len(project.stored().board_checks) >= 2
    monkeypatch.chdir(project.path)
    assert main(["report", "--calibrated"]) == 2
    assert "no two boards of a model have measured the same kernels" in capsys.readouterr().err
    assert main(["report", "--calibrated", "--csv", "tree"]) == 2
    assert "--csv has raw figures only" in capsys.readouterr().err
