"""`--gpuenergy-resume`: clean measurements are not repeated."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow


def test_clean_items_are_skipped_and_the_report_is_complete(project):
    project.run("--powercap", "1,2,3").assert_outcomes(passed=3)
    before = {m.cap: m for m in project.report().measurements}
    flagged = sum(bool(m.validity) for m in before.values())
    assert flagged < 3
    result = project.run("-rs", "--gpuenergy-resume", "--gpuenergy-json", "r.json")
    result.assert_outcomes(passed=2 + flagged, skipped=3 - flagged)
    result.stdout.fnmatch_lines([f"SKIPPED * already measured in run {project.runs[0].name}"])
    after = {m.cap: m for m in project.report().measurements}
    assert sorted(after) == ["200W", "325W", "450W", "575W", "700W"]
    for cap, measurement in before.items():
        if not measurement.validity:
            assert after[cap] == measurement
    assert len(json.loads((project.path / "r.json").read_text())["measurements"]) == 5


def test_flagged_items_are_measured_again(project, inject):
    inject(thermal_throttle=True)
    project.run("--powercap", "1").assert_outcomes(passed=1)
    assert project.report().measurements[0].validity
    inject()
    project.run("--powercap", "1", "--gpuenergy-resume").assert_outcomes(passed=1)
    (measurement,) = project.report().measurements
    assert "sw_thermal_slowdown" not in measurement.validity


def test_failed_items_are_measured_again(project):
    right = (project.path / "parts.py").read_text()
    (project.path / "parts.py").write_text(right.replace("= factor *", "= nonsense *"))
    project.run("--powercap", "1").assert_outcomes(failed=1)
    project.run("--powercap", "1", "--gpuenergy-resume").assert_outcomes(failed=1)
    (project.path / "parts.py").write_text(right)
    project.run("--powercap", "1", "--gpuenergy-resume").assert_outcomes(passed=1)
    assert [m.outcome for m in project.report().measurements] == ["correct"]


def test_a_changed_kernel_is_measured_again(project):
    project.run("--powercap", "1,2").assert_outcomes(passed=2)
    (before, _) = project.report().measurements
    parts = (project.path / "parts.py").read_text()
    (project.path / "parts.py").write_text(parts.replace("= factor *", "= 1.0f * factor *"))
    project.run("--powercap", "1,2", "--gpuenergy-resume").assert_outcomes(passed=2)
    after, other = project.report().measurements
    assert after.kernel.digest == other.kernel.digest != before.kernel.digest


def test_a_run_is_a_new_one_without_the_option_or_an_earlier_run(project):
    project.run("--powercap", "1", "--gpuenergy-resume").assert_outcomes(passed=1)
    project.run("--powercap", "1").assert_outcomes(passed=1)
    assert len(project.runs) == 2


def test_another_device_is_refused_in_one_sentence(project):
    project.run("--powercap", "1").assert_outcomes(passed=1)
    before = project.report()
    result = project.run("--powercap", "1", "--gpuenergy-resume", "--gpu-device", "emulated:a30")
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str()
    assert text.count("The last run was made on NVIDIA H200 (GPU-") == 1
    assert "but this one is on NVIDIA A30 (GPU-" in text
    assert "run without --gpuenergy-resume." in text
    assert "Traceback" not in text
    assert project.report() == before


def test_a_changed_workload_is_measured_again(project):
    project.run("--powercap", "1").assert_outcomes(passed=1)
    (before,) = project.report().measurements
    parts = (project.path / "parts.py").read_text()
    # Of a different length: Python detects a changed module by its size and mtime in seconds.
    (project.path / "parts.py").write_text(parts.replace("flops=1024", "flops=10240"))
    project.run("--powercap", "1", "--gpuenergy-resume").assert_outcomes(passed=1)
    (after,) = project.report().measurements
    assert (before.workload.flops, after.workload.flops) == (1024, 10240)
    assert after.kernel.digest == before.kernel.digest
