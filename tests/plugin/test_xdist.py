"""Under pytest-xdist the workers share one run, and have a GPU each where there are several."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Project

TWO = ("-p", "no:benchmark", "-n", "2")


def test_workers_write_one_report(project: Project) -> None:
    project.ini('gpuenergy_json = "r.json"')
    arguments = (*TWO, "--gpu-device", "emulated:h200x2")
    project.run(*arguments).assert_outcomes(passed=5)
    report = project.report()
    assert sorted(m.cap for m in report.measurements) == ["200W", "325W", "450W", "575W", "700W"]
    assert (project.path / "r.json").exists()
    flagged = sum(bool(m.validity) for m in report.measurements)
    project.run(*arguments, "--gpuenergy-resume").assert_outcomes(
        passed=flagged, skipped=5 - flagged
    )


def test_what_no_item_can_do_is_said_without_a_crash(project: Project) -> None:
    project.run("--powercap", "1").assert_outcomes(passed=1)
    arguments = (*TWO, "--gpu-device", "emulated:a30x2", "--gpuenergy-resume")
    result = project.run("--powercap", "1,2", *arguments)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["The last run was made on NVIDIA H200 (*), and this is *."])
    assert "INTERNALERROR" not in result.stdout.str()
