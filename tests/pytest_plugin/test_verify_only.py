"""``--gpuenergy-verify-only``: kernels are verified, and nothing is measured."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.report import load_report, merge

VERIFY = "--gpuenergy-verify-only"


def test_a_correct_kernel_passes_without_figures_whatever_its_budget(project):
    budget = "@pytest.mark.energy_budget(joules=1e-9)"
    project.bench(marks=budget, after="assert m.time_ms < 1e-9")
    result = project.run(VERIFY, "-v")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "gpuenergy: verify only: nothing is measured, and no power limit is set",
            "test_scale.py::test_scale[[]current[]] PASSED verified, not measured *",
            "scale at current (emulated), *",
            "  scale * verified, not measured",
            "1 of 1 kernels are verified, not measured",
        ]
    )
    (measurement,) = project.report().measurements
    assert measurement.verified_only
    assert measurement.correctness is not None
    assert measurement.correctness.seeds[:2] == (0, 1)


def test_a_wrong_kernel_fails(project):
    project.bench('SOURCE.replace("factor *", "(i == 77 ? 0 : factor) *")')
    result = project.run(VERIFY)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["correctness: 1 of 1024 elements of y (first y[[]77]) is wrong *"])


def test_each_cap_that_is_named_is_an_item_and_none_is_set(project):
    project.ini("gpuenergy_verify_only = true")
    project.run("--powercap", "1,2").assert_outcomes(passed=2)
    found = [(m.verified_only, m.enforced_power_limit_w) for m in project.report().measurements]
    assert found == [(True, None), (True, None)]


@pytest.mark.slow
def test_workers_of_xdist_verify_only_too(project):
    result = project.run("-p", "xdist", VERIFY, "-n1", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 of 1 kernels are verified, not measured"])


def test_what_cannot_be_verified_is_skipped(project):
    project.module("def test_callable(energy_benchmark):\n    energy_benchmark(lambda: None)\n")
    project.run(VERIFY).assert_outcomes(skipped=1)


def test_an_item_verified_in_a_fixture_is_skipped_because_its_test_has_not_begun(project):
    project.module(
        """
        import pytest
        from parts import LAUNCH, SCALE, SOURCE

        @pytest.fixture
        def measured(load_kernel, energy_benchmark):
            return energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)

        def test_scale(measured):
            assert measured.time_ms > 0
        """
    )
    result = project.run(VERIFY, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * verified, not measured"])


def test_resuming_skips_what_is_verified_and_later_measures_it(project):
    project.run(VERIFY).assert_outcomes(passed=1)
    again = project.run(VERIFY, "--gpuenergy-resume", "-rs")
    again.assert_outcomes(skipped=1)
    again.stdout.fnmatch_lines(["SKIPPED * already verified in run *"])
    project.run("--powercap", "current", "--gpuenergy-resume").assert_outcomes(passed=1)
    assert project.report().measurements[0].measured
    project.run(VERIFY, "--gpuenergy-resume").assert_outcomes(skipped=1)
    assert project.report().measurements[0].measured


def test_merging_a_later_verification_keeps_the_figures(project):
    project.run("--powercap", "current").assert_outcomes(passed=1)
    project.run(VERIFY).assert_outcomes(passed=1)
    reports = [load_report(folder / "report.json") for folder in project.runs]
    assert all(m.measured for m in merge(reports).measurements)
    assert all(m.measured for m in merge(reports[::-1]).measurements)


@pytest.mark.parametrize("gpu", ["emulated:h200", "emulated:a100"])
def test_a_baseline_in_the_ini_file_is_not_judged(project, gpu):
    project.baseline("--powercap", "1", passed=1)
    project.ini('gpuenergy_compare = "base.json"\ngpuenergy_fail = "edp:5%"')
    result = project.run(VERIFY, "--gpu-device", gpu)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert "gpuenergy gate" not in result.stdout.str()


def test_a_limit_on_the_command_line_contradicts_it(project):
    limit = ("--gpuenergy-fail", "edp:5%", "--gpuenergy-compare", "x.json")
    error = project.refused(VERIFY, *limit)
    error.fnmatch_lines(["*--gpuenergy-verify-only measures nothing that *"])


@pytest.mark.slow
def test_commands_cope_with_records_that_have_no_figures(project, monkeypatch, capsys):
    monkeypatch.chdir(project.path)
    project.run("--powercap", "current", "--gpuenergy-json", "base.json")
    project.run(VERIFY, "--gpuenergy-html", "page.html")
    for words, code, said in (
        (["report"], 0, "verified, not measured"),
        (["report", "--md", "-"], 0, "verified, not measured"),
        (["report", "--tidy", "-"], 0, "correct"),
        (["report", "--csv", "out"], 2, "--csv has figures only"),
        (["compare", "base.json"], 2, "has verified its kernels and measured none"),
        (["compare", "base.json", "--fail", "edp:5%"], 2, "run it without --gpuenergy-verify-only"),
        (["baseline", "update"], 2, "has no measurement without a flag"),
        (["history"], 0, ""),
    ):
        capsys.readouterr()
        assert main(words) == code, words
        shown = capsys.readouterr()
        assert said in shown.out + shown.err
