"""Our items as records of the installed pytest-benchmark."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from points import MORE
from pytest_benchmark.table import TableResults
from pytest_benchmark.utils import TIME_UNITS

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

ONE = ("-p", "benchmark", "--powercap", "450W")
NAME = "test_scale.py::test_scale[450W] (emulated)"


def records(project: Project) -> dict[str, Any]:
    document = json.loads((project.path / "b.json").read_text())
    return {record["fullname"]: record for record in document["benchmarks"]}


def test_time_energy_and_edp_are_records_of_their_own_in_the_right_units(project):
    before = TableResults.compute_scale, dict(TIME_UNITS)
    result = project.run("--benchmark-json", "b.json", *ONE)
    assert (TableResults.compute_scale, dict(TIME_UNITS)) == before
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["* benchmark 'EDP (mJ·ms) (emulated)': 1 tests *"])
    result.stdout.fnmatch_lines(["Name (in ?J·ms) *", "Name (in ?J) *", "Name (time in us) *"])
    (measurement,) = project.report().measurements
    found = records(project)
    energy, edp = found[f"{NAME} energy (mJ)"], found[f"{NAME} EDP (mJ·ms)"]
    assert len(found) == 3
    assert math.isclose(found[NAME]["stats"]["mean"] * 1e3, measurement.time_ms or 0.0)
    assert math.isclose(energy["stats"]["mean"], measurement.energy_mj or 0.0)
    assert math.isclose(edp["stats"]["mean"], measurement.edp_mj_ms or 0.0)
    assert energy["stats"]["rounds"] == len(measurement.trials)
    assert [record["extra_info"].get("unit") for record in (found[NAME], energy, edp)] == [
        None,
        "mJ",
        "mJ·ms",
    ]
    info = found[NAME]["extra_info"]
    assert (info["gpu"], info["emulated"]) == ("NVIDIA H200", True)
    assert info["enforced_power_limit_w"] == 450.0
    assert json.loads((project.path / "b.json").read_text())["gpuenergy"]["emulated"] is True


def test_saved_records_are_compared_and_more_energy_fails(project):
    project.run("--benchmark-save", "first", *ONE).assert_outcomes(passed=1)
    result = project.run("--benchmark-compare", "--benchmark-compare-fail=mean:50%", *ONE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*'energy (mJ) (emulated)': 2 tests *", "*energy (mJ) (0001_first) *"]
    )
    (saved,) = project.path.glob(".benchmarks/*/0001_first.json")
    document = json.loads(saved.read_text())
    for record in document["benchmarks"]:
        if record["fullname"].endswith("energy (mJ)"):
            record["stats"]["mean"] /= 2
    saved.write_text(json.dumps(document))
    result = project.run_apart("--benchmark-compare", "--benchmark-compare-fail=mean:50%", *ONE)
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str() + result.stderr.str()
    assert "energy (mJ) (0001_first) - Field 'mean' has failed" in text
    assert "EDP (mJ·ms) (0001_first) - Field" not in text


def test_the_histogram_names_the_right_units(project):
    # In a subprocess, because drawing changes sys.meta_path.
    result = project.run_apart("--benchmark-histogram=plots/h", *ONE)
    result.assert_outcomes(passed=1)
    plots = {path.name: path.read_text() for path in (project.path / "plots").glob("*.svg")}
    assert len(plots) == 3
    (energy,) = (text for name, text in plots.items() if "energy" in name)
    assert "in mJ of" in energy


def test_benchmarks_of_others_stay_as_they_are(project):
    project.module(
        "def test_own(benchmark):\n    benchmark.pedantic(sum, ([1, 2],))\n", name="test_own"
    )
    result = project.run("--benchmark-json", "b.json", *ONE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["* benchmark: 1 tests *", "Name (time in *s) *"])
    assert records(project)["test_own.py::test_own"]["extra_info"] == {}


def test_without_an_output_of_it_nothing_is_added(project):
    result = project.run(*ONE)
    result.assert_outcomes(passed=1)
    assert "benchmark '" not in result.stdout.str()


def test_without_pytest_benchmark_all_else_works(project):
    result = project.run_apart(*ONE, "-p", "no:benchmark")
    result.assert_outcomes(passed=1)


def test_workers_of_xdist_hand_their_items_over(project):
    result = project.run("--benchmark-json", "b.json", "-p", "xdist", "-n", "1", *ONE)
    result.assert_outcomes(passed=1)
    assert len(records(project)) == 3


@pytest.fixture
def parametrized(project: Project) -> None:
    project.bench(
        head="def test_own(benchmark, powercap): benchmark.pedantic(sum, ([1, 2],))",
        marks='@pytest.mark.parametrize("n", [1, 2])',
        arguments="n, powercap, ",
    )


@pytest.mark.usefixtures("parametrized")
@pytest.mark.parametrize(
    ("group_by", "titles"),
    [
        ("param:n", ["n=1", "n=1 energy (mJ) (emulated)", "n=2", "n=None"]),
        MORE("param:powercap", ["powercap=450W", "powercap=450W EDP (mJ·ms) (emulated)"]),
        ("param", ["1-450W", "1-450W energy (mJ) (emulated)", "450W"]),
        MORE("func", ["test_own", "test_scale", "test_scale EDP (mJ·ms) (emulated)"]),
        ("group,param:n", ["time (emulated) n=1", "energy (mJ) (emulated) n=2"]),
    ],
)
def test_items_are_grouped_by_their_parameters_and_unit(project, group_by, titles):
    result = project.run("--benchmark-json", "b.json", "--benchmark-group-by", group_by, *ONE)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random([f"*- benchmark '{title}': * tests -*" for title in titles])
    result.stdout.fnmatch_lines(["report: *"])


@pytest.mark.usefixtures("parametrized")
def test_parameters_are_readable_in_every_record(project):
    project.run("--benchmark-json", "b.json", *ONE).assert_outcomes(passed=3)
    assert "UNSERIALIZABLE" not in (project.path / "b.json").read_text()
    found = records(project)
    scale = found["test_scale.py::test_scale[2-450W] (emulated)"]
    assert scale["params"]["n"] == 2
    assert scale["params"]["powercap"] == "450W"
    assert scale["param"] == "2-450W"
    assert found["test_scale.py::test_own[450W]"]["params"] == {"powercap": "450W"}


def test_a_failure_of_another_plugin_at_the_end_drops_no_line_of_ours(project):
    (project.path / "conftest.py").write_text(
        "import pytest\n@pytest.hookimpl(trylast=True)\n"
        "def pytest_sessionfinish(session):\n    raise KeyError('n')\n"
    )
    result = project.run_apart(*ONE)
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*= gpuenergy =*", "report: *"])
    assert result.stdout.str().count("= gpuenergy =") == 1
