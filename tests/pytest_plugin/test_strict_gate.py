"""A strict gate that has nothing to judge fails the run, as ``gpuenergy compare`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

STRICT = ("--powercap", "1", "--gpuenergy-compare", "base.json", "--gpuenergy-strict")
PROBLEM = "*error: Nothing was judged, because nothing was measured: select energy items.*"


@pytest.fixture
def judged(project: Project) -> Project:
    """A project with a baseline and a test that measures nothing."""
    project.baseline("--powercap", "1", passed=1)
    project.module("def test_plain(): pass", "test_plain")
    return project


def test_a_selection_without_energy_items_fails(judged):
    result = judged.run(*STRICT, "test_plain.py")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([PROBLEM])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_items_that_are_all_skipped_fail(judged):
    judged.bench(marks="@pytest.mark.skip")
    result = judged.run(*STRICT)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines([PROBLEM])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_items_that_are_all_skipped_fail_with_xdist_too(judged):
    judged.bench(marks="@pytest.mark.skip")
    judged.ini('gpuenergy_compare = "base.json"\ngpuenergy_strict = true')
    result = judged.run("-p", "xdist", "--powercap", "1", "-n1")
    result.stdout.fnmatch_lines([PROBLEM])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_budget_is_no_comparison(judged):
    judged.bench(marks="@pytest.mark.edp_budget(max_mj_ms=1e9)", more=", label='other'")
    result = judged.run(*STRICT[:-1], "--gpuenergy-fail", "edp:5%", "test_scale.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_other_tests_pass_where_the_ini_file_asks_for_it(judged):
    judged.ini('gpuenergy_compare = "base.json"\ngpuenergy_strict = true')
    assert judged.run("test_plain.py").ret == pytest.ExitCode.OK


def test_collecting_fails_nothing(judged):
    assert judged.run(*STRICT, "--collect-only").ret == pytest.ExitCode.OK
