"""Ids that are copied from a report, a table or a page can be run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

DRY = ("--collect-only", "-q")


def two(project: Project, name: str = "test_scale", **parts: str) -> None:
    """Two sizes of a kernel, which are kernels of their own."""
    mark = '@pytest.mark.parametrize("size", [64, 128])'
    given = {"source": 'f"{SOURCE}// {size}"', "marks": mark, **parts}
    project.bench(arguments="size, powercap, ", name=name, **given)


def ids(result: pytest.RunResult) -> list[str]:
    return [line for line in result.stdout.lines if "::" in line]


def test_a_cap_in_an_id_comes_before_those_of_the_ini_file(project):
    name = "test_scale.py::test_scale[300W]"
    assert ids(project.run(name, "-o", "powercap=1,current", *DRY)) == [name]


@pytest.mark.parametrize(
    "cap", ["300W", pytest.param("450W", marks=pytest.mark.thorough), "current"]
)
def test_an_id_runs_under_its_cap_without_the_option(project, cap):
    name = f"test_scale.py::test_scale[{cap}]"
    result = project.run(name)
    result.assert_outcomes(passed=1)
    (measurement,) = project.report().measurements
    assert (measurement.node_id, measurement.cap) == (name, cap)


@pytest.mark.slow
def test_every_id_in_a_report_can_be_run(project):
    two(project)
    project.run("--powercap", "300W,current").assert_outcomes(passed=4)
    for measurement in project.report().measurements:
        assert ids(project.run(measurement.node_id, *DRY)) == [measurement.node_id]
        assert ids(project.run("-k", measurement.node_id, *DRY)) == [measurement.node_id]


@pytest.mark.slow
def test_k_takes_the_labels_of_the_latest_run(project):
    two(project)
    project.run("--powercap", "300W,current").assert_outcomes(passed=4)
    for word, chosen in {
        "scale-64": ["64-300W", "64-current"],
        "scale-64-300W": ["64-300W"],
        "scale-scale-128-current": ["128-current"],
        "scale-64-300W or scale-128-300W": ["64-300W", "128-300W"],
        "not scale-64 and 300W": ["128-300W"],
        "64-300W": ["64-300W"],
    }.items():
        found = ids(project.run("-k", word, "--powercap", "300W,current", *DRY))
        assert sorted(found) == sorted(f"test_scale.py::test_scale[{one}]" for one in chosen), word


@pytest.mark.slow
def test_words_that_name_items_by_themselves_select_no_others(project):
    two(project, "test_other")
    other = project.path / "test_other.py"
    other.write_text(other.read_text().replace("def test_scale", "def test_other"))
    project.run("--powercap", "current").assert_outcomes(passed=3)
    found = ids(project.run("-k", "scale", "--powercap", "current", *DRY))  # as all labels begin
    assert found == ["test_scale.py::test_scale[current]"]


def test_a_cap_that_the_card_does_not_accept_is_no_item(project):
    result = project.run("test_scale.py::test_scale[5000W]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not found: *test_scale.py::test_scale*"])


@pytest.mark.slow
def test_a_word_that_is_no_id_selects_nothing(project):
    project.run("--powercap", "1").assert_outcomes(passed=1)
    option = ("--powercap", "1", "-k", "test_scale[300W]")  # the option wins over caps in ids
    words = ("nothing", "scale-999-300W", "x[", "a.py::b[c-300W]", "300W")
    for arguments in (option, *(("-k", word) for word in words)):
        result = project.run(*arguments, *DRY)
        assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED, arguments


@pytest.mark.slow
def test_a_damaged_run_is_no_obstacle(project):
    two(project)
    project.run("--powercap", "current").assert_outcomes(passed=2)
    broken = project.path / ".gpuenergy" / "runs" / "99999999T000000-aaaaaa"
    broken.mkdir()
    (broken / "run.json").write_text(json.dumps({"schema_version": 99}))
    found = ids(project.run("-k", "scale-64", "--powercap", "current", *DRY))
    assert found == ["test_scale.py::test_scale[64-current]"]


@pytest.mark.parametrize("word", ["test_scale[300W]", "test_scale.py::test_scale[300W] or nothing"])
def test_a_cap_in_an_id_for_k_needs_no_option_either(project, word):
    assert ids(project.run("-k", word, *DRY)) == ["test_scale.py::test_scale[300W]"]


@pytest.mark.slow
def test_ids_that_are_no_expression_for_k_can_be_run(project):
    mark = '@pytest.mark.parametrize("size", [64, 128], ids=["one word", "two"])'
    two(project, source="SOURCE", marks=mark, more=', label=f"scale<{size}>"')
    project.run("--powercap", "300W").assert_outcomes(passed=2)
    item = "test_scale.py::test_scale[one word-300W]"
    for word in ("scale<64>-300W", "scale-scale<64>-300W", item, f" {item} ", "scale<64> at 300W"):
        assert ids(project.run("-k", word, "--powercap", "300W", *DRY)) == [item]
    assert project.run("-k", "scale<65>", *DRY).ret == pytest.ExitCode.USAGE_ERROR
