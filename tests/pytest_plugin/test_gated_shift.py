"""In a pytest run, changes are judged relative to what unchanged kernels have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from gate_shift_simulation import multiplied
from msgspec.structs import replace
from small_project import LINE, SLOWER

from pytest_gpuenergy.report import load_report, write_json

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

UNCHANGED = [f"same{number}" for number in range(6)]
COMPARE = ("--powercap", "current", "--gpuenergy-compare", "base.json")
CHANGED = "test_scale.py::test_scale[[]changed-current]"


def cases(project: Project) -> list[ElementTree.Element]:
    """The elements of items in the run's JUnit XML."""
    return [*ElementTree.parse(project.path / "j.xml").getroot().iter("testcase")]


def bench(project: Project, change: str, *, first: bool) -> None:
    """A bench of a kernel with ``change``, before or after the unchanged ones."""
    names = ["changed", *UNCHANGED] if first else [*UNCHANGED, "changed"]
    project.bench(
        f'SOURCE.replace({LINE!r}, {change!r}) if name == "changed" else SOURCE',
        marks=f'@pytest.mark.parametrize("name", {names})',
        arguments="name, powercap, ",
        more=", label=name",
    )


def other_board(project: Project, factor: float) -> None:
    """Measure a baseline, and make it that of another board, on which every EDP is ``factor``."""
    project.baseline("--powercap", "current", passed=7)
    path = project.path / "base.json"
    report = load_report(path)
    run = replace(report.run, gpu_uuid="GPU-other")
    rows = (replace(multiplied(row, factor), gpu_uuid="GPU-other") for row in report.measurements)
    write_json(replace(report, run=run, measurements=tuple(rows)), path)


def test_another_board_hides_no_regression(project):
    bench(project, LINE, first=False)
    other_board(project, 1.2)
    bench(project, SLOWER, first=False)
    result = project.run(*COMPARE, "--gpuenergy-fail", "edp:2%")
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gate: EDP (emulated) +* % (+* % to +* %), limit 2 %: WORSE",
            "6 unchanged kernels at current, another board (emulated) changed in common by EDP -1*",
        ]
    )


def test_what_was_measured_first_is_judged_again_at_the_end(project):
    bench(project, LINE, first=True)
    other_board(project, 1.2)
    bench(project, SLOWER, first=True)
    result = project.run(*COMPARE, "--gpuenergy-fail", "edp:2%", "--junitxml=j.xml")
    result.assert_outcomes(passed=7)  # another board: nothing was certain in the call phase
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            f"gpuenergy: error: gate: {CHANGED}, judged again with all kernels: EDP (emulated) +*",
            f"{CHANGED}, judged again with all kernels: EDP (emulated) +*: WORSE",
        ]
    )
    case = next(one for one in cases(project) if "changed" in one.attrib["name"])
    properties = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
    assert properties["edp_verdict"] == "WORSE"
    assert properties["edp_change"].endswith("WORSE (when it was measured: AMBIGUOUS)")


def test_an_items_interval_is_the_same_in_junit_xml_and_in_the_summary(project):
    bench(project, LINE, first=False)
    project.baseline("--powercap", "current", passed=7)
    bench(project, SLOWER, first=False)
    result = project.run(*COMPARE, "--gpuenergy-strict", "--junitxml=j.xml")
    told = {
        f"test_scale.py::{case.attrib['name']}: {one.attrib['value']}"
        for case in cases(project)
        for one in case.iter("property")
        if one.attrib["name"].endswith("_change") and one.attrib["value"][-4:] != "SAME"
    }
    assert told
    assert told <= set(result.outlines)
    failure = next(one for case in cases(project) for one in case.iter("failure"))
    assert failure.attrib["message"].removeprefix("Failed: ") in result.stdout.str()


def test_a_slower_harness_fails_the_run(project):
    bench(project, LINE, first=False)
    other_board(project, 0.5)
    result = project.run(*COMPARE, "--gpuenergy-fail", "time:5%", "--junitxml=j.xml")
    (case,) = (one for one in cases(project) if one.attrib["classname"] == "gpuenergy")
    (failure,) = case.iter("failure")
    assert "of what has not changed at current (emulated): +4" in failure.attrib["message"]
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["time of what has not changed at current (emulated): +4*limit of 5 %: WORSE*"]
    )
