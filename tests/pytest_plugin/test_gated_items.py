"""Items judged against a baseline or a budget in their call phase."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from small_project import LINE, PARTS, SLOWER

from pytest_gpuenergy.ab import load_exhibits
from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import Interval, Metric
from pytest_gpuenergy.report import Report, load_report, write_json

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

ONE = ("--powercap", "1")
XDIST = ("-p", "xdist", "-n1")
BASE = ("--gpuenergy-compare", "base.json")
COMPARE = (*ONE, *BASE)
FAIL = (*COMPARE, "--gpuenergy-fail", "edp:5%")
SAME = (*BASE, "--gpuenergy-fail", "edp:20%")
"""A limit beyond the interval of a card that was not heated up first."""


def make_baseline(project: Project, *, edp: float = 1.0, **changes: object) -> None:
    """Write a baseline ``base.json`` with the measured energy, and so EDP, times ``edp``."""
    project.baseline(*ONE, passed=1)
    path = project.path / "base.json"
    report = load_report(path)
    (m,) = report.measurements
    figures: dict[str, object] = {"power_w": (m.power_w or 0.0) * edp}
    for metric in (Metric.ENERGY, Metric.EDP):
        found = m.estimate(metric)
        assert found is not None
        figures[metric.field] = found.value * edp
        figures[f"{metric.field}_ci95"] = Interval(found.low * edp, found.high * edp)
    write_json(Report(report.run, (replace(m, **{**figures, **changes}),)), path)


def properties(project: Project) -> list[tuple[str, str]]:
    """The properties of the only item in ``j.xml``."""
    (case,) = ET.parse(project.path / "j.xml").getroot().iter("testcase")
    return [(p.attrib["name"], p.attrib["value"]) for p in case.iter("property")]


def test_a_kernel_that_is_worse_fails_in_its_call_phase(project):
    make_baseline(project)
    (project.path / "parts.py").write_text(PARTS.replace(LINE, SLOWER))
    arguments = (*COMPARE, "--gpuenergy-fail", "edp:2%", "--junitxml=j.xml")
    result = project.run(*arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gate: EDP (emulated) +* % (+* % to +* %), limit 2 %: WORSE"])
    assert "<failure" in (project.path / "j.xml").read_text()
    assert dict(properties(project))["edp_verdict"] == "WORSE"
    project.run(*arguments, "--lf", "-rA").assert_outcomes(failed=1)
    # An item that is run again has one line and one set of properties.
    pytest.importorskip("pytest_rerunfailures")
    result = project.run(*arguments, "-p", "pytest_rerunfailures", "--reruns", "2")
    assert result.stdout.str().count("[200W]: EDP (emulated) +") == 1
    result.stdout.fnmatch_lines(["1 WORSE"])
    names = [name for name, _ in properties(project)]
    assert len(names) == len(set(names))
    assert {"edp_verdict", "edp_mj_ms"} <= set(names)


def test_in_github_actions_what_fails_is_annotated(project, monkeypatch):
    make_baseline(project, edp=0.5)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::error" not in project.run(*COMPARE).stdout.str()
    result = project.run(*FAIL)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["::error title=test_scale.py%3A%3Atest_scale[[]200W]::EDP (emulated) +*limit 5 %25: WORSE"]
    )


def test_names_in_a_baseline_do_not_command_the_terminal(project):
    make_baseline(project, validity=("x\x1b]0;x\x07\n::error::x\r\x9b31m",))
    result = project.run(*FAIL, "--gpuenergy-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gate: EDP *AMBIGUOUS (flagged in the baseline: x*"])
    path = project.path / "base.json"
    report = load_report(path)
    run = replace(report.run, gpu_name="x\x1b]0;x\n::error::x")
    write_json(Report(run, report.measurements), path)
    refused = project.run(*COMPARE)
    assert "is from x" in refused.stdout.str() + refused.stderr.str()
    for shown in (result.stdout.str(), refused.stdout.str() + refused.stderr.str()):
        assert not set(shown) & set("\x1b\x07\r\x9b")
        assert not any(line.lstrip().startswith("::") for line in shown.splitlines())


@pytest.mark.parametrize(
    ("edp", "arguments", "failed", "lines"),
    [
        (1, (*ONE, *SAME), 0, ["baseline: run *(emulated)", "1 SAME"]),
        (0.5, COMPARE, 0, ["*: EDP (emulated) +* limit 5 %: WORSE", "2 WORSE, 1 SAME"]),
        (1 / 1.05, (*FAIL, "-v"), 0, ["*[[]200W] PASSED * AMBIGUOUS *", "*limit 5 %: AMBIGUOUS"]),
        (1 / 1.05, (*FAIL, "--gpuenergy-strict"), 1, ["gate: EDP * limit 5 %: AMBIGUOUS"]),
    ],
    ids=["same", "worse without a limit", "ambiguous", "ambiguous and strict"],
)
def test_the_verdict_is_shown_and_fails_an_item_where_it_must(
    project, edp, arguments, failed, lines
):
    make_baseline(project, edp=edp)
    result = project.run(*arguments)
    result.assert_outcomes(passed=1 - failed, failed=failed)
    result.stdout.fnmatch_lines(lines)


def test_a_flagged_baseline_is_ambiguous(project):
    make_baseline(project, edp=1 / 1.07, validity=("not_steady",))
    result = project.run(*FAIL)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*AMBIGUOUS (flagged in the baseline: not_steady)"])


def test_what_the_baseline_lacks_is_named_and_fails_when_strict(project):
    make_baseline(project)
    result = project.run("--powercap", "1,2", *SAME)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["test_scale.py::test_scale[[]325W]: not in the baseline", "1 SAME, 1 not in the baseline"]
    )
    result = project.run("--powercap", "1,2", *SAME, "--gpuenergy-strict")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["gate: not in the baseline"])
    # A gate that has nothing to judge fails the run.
    result = project.run("--powercap", "2", *FAIL[2:])
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*Nothing was judged, because the baseline, run *"])
    assert project.run("--powercap", "2", *BASE).ret == pytest.ExitCode.OK


def test_another_gpu_ends_the_run_before_it_measures(project):
    make_baseline(project)
    result = project.run(*FAIL, "--gpu-device", "emulated:a30", "--gpuenergy-html", "page.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*The baseline (run *) is from NVIDIA H200 (*), *gpu_name*"])
    assert result.stdout.str().count("they differ in gpu_name") == 1
    assert "Traceback" not in result.stdout.str()
    assert shown(project)["baseline"] is None


def test_what_was_resumed_is_judged_too(project):
    make_baseline(project, edp=0.5)
    project.run(*ONE).assert_outcomes(passed=1)
    project.run(*FAIL, "--gpuenergy-resume").assert_outcomes(failed=1)


def test_the_ini_file_can_ask_for_a_gate(project):
    make_baseline(project, edp=0.5)
    project.ini('gpuenergy_compare = "base.json"\ngpuenergy_fail = "edp:5%,time:5%"')
    project.run(*ONE).assert_outcomes(failed=1)


def test_a_run_can_be_named_by_its_id(project):
    project.run(*ONE).assert_outcomes(passed=1)
    (folder,) = project.runs
    result = project.run(*ONE, "--gpuenergy-compare", folder.name)
    result.stdout.fnmatch_lines([f"baseline: run {folder.name} of *"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--gpuenergy-fail=edp:5%", "fail needs a baseline: *"),
        ("--gpuenergy-compare=no.json", "*/no.json does not exist: name a folder in *."),
        ("--gpuenergy-compare=x --gpuenergy-fail=edp", "fail 'edp' is not understood: *"),
        ("--gpuenergy-compare=x --gpuenergy-fail=", "fail is empty: *"),
        ("--gpuenergy-compare=", "compare is empty: *"),
        (
            "--gpuenergy-compare=x --gpuenergy-fail=edp:10000%",
            "fail 'edp:10000%' is not understood: * such as edp:5%, below 10000%; *",
        ),
        ("--gpuenergy-compare=x --gpuenergy-allow=gpu", "allow 'gpu' is not understood: *"),
        ("--gpuenergy-compare=x --gpuenergy-session-sd=1%", "session-sd '1%' is not *"),
    ],
)
def test_a_gate_that_cannot_be_used_is_refused(project, arguments, sentence):
    project.refused(*arguments.split()).fnmatch_lines([f"*{sentence}"])


def test_a_legacy_baseline_is_refused(project):
    make_baseline(project)
    path = project.path / "base.json"
    document = json.loads(path.read_text())
    document["run"]["legacy"] = True
    path.write_text(json.dumps(document))
    result = project.run(*FAIL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*is marked legacy*"])


def shown(project: Project) -> dict[str, Any]:
    """The data embedded in ``page.html``."""
    page = (project.path / "page.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.parametrize(
    "workers", [(), pytest.param(XDIST, marks=pytest.mark.thorough)], ids=["one process", "xdist"]
)
def test_the_page_shows_the_comparison(project, workers):
    make_baseline(project, edp=0.5)
    base = load_report(project.path / "base.json")
    result = project.run(*COMPARE, "--gpuenergy-html", "page.html", *workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"report: *, CSV: *, page: {project.path}/page.html"])
    data = shown(project)
    assert dict(data["baseline"])["run"] == base.run.run_id
    changes = {one["metric"]: one["change_percent"] for one in data["differences"]}
    assert list(changes) == ["time", "energy", "edp"]
    assert 80 < changes["edp"] < 120
    verdicts = {one["metric"]: one["verdict"] for one in data["verdicts"]["judgements"]}
    assert verdicts["edp"] == "WORSE"


def test_with_xdist_the_verdicts_are_shown_and_the_last_failed_are_those_that_were_worse(project):
    make_baseline(project, edp=0.5)
    arguments = (*XDIST, "--powercap", "1,2", *FAIL[2:])
    result = project.run(*arguments)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["baseline: run *", "*limit 5 %: WORSE", "1 WORSE*"])
    project.run(*arguments, "--lf").assert_outcomes(failed=1)


EDP, ENERGY = "@pytest.mark.edp_budget({})", "@pytest.mark.energy_budget({})"


@pytest.mark.parametrize(
    ("markers", "lines"),
    [
        (EDP.format("max_mj_ms=1"), ["*= gpuenergy gate =*", "1 within budget"]),
        (ENERGY.format("joules=1"), ["*= gpuenergy gate =*", "1 within budget"]),
        (
            EDP.format('max_mj_ms=1e-5, rel="3%"'),
            ["budget: EDP (emulated) 0.000* mJ·ms (* to *), budget 1e-05 mJ·ms + 3 %: over *"],
        ),
        (
            ENERGY.format('joules=1e-7, rel="3%"'),
            ["budget: energy (emulated) 0.12* mJ (* to *), budget 0.0001 mJ + 3 %: over budget *"],
        ),
        (
            ENERGY.format("joules=1e-7") + "\n" + EDP.format("max_mj_ms=1e-5"),
            ["budget: EDP *: over budget *", "budget: energy *: over budget *", "2 over budget"],
        ),
    ],
    ids=["EDP within", "energy within", "EDP over", "energy over", "both over"],
)
def test_a_budget_is_judged_in_the_call_phase(project, markers, lines):
    project.bench(marks=markers)
    result = project.run(*ONE, "--strict-markers", "--junitxml", "j.xml")
    failed = int("over" in lines[0])
    result.assert_outcomes(passed=1 - failed, failed=failed)
    result.stdout.fnmatch_lines(lines)
    verdicts = [value for name, value in properties(project) if name.endswith("budget_verdict")]
    assert verdicts == ["over budget" if failed else "within budget"] * markers.count("@")


def test_a_budget_about_right_is_ambiguous(project):
    project.run(*ONE).assert_outcomes(passed=1)
    (m,) = project.report().measurements
    assert m.energy_mj is not None
    for marks in (EDP.format(f"{m.edp_mj_ms}"), ENERGY.format(f"{m.energy_mj / 1e3}")):
        project.bench(
            marks=marks.replace("edp_budget(", "edp_budget(max_mj_ms=").replace(
                "energy_budget(", "energy_budget(joules="
            )
        )
        project.run(*ONE).assert_outcomes(passed=1)
        project.run(*ONE, "--gpuenergy-strict").assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        ("energy_budget()", "needs joules, a number of J above 0, up to 1e+09, not None"),
        ("energy_budget(joules=float('nan'))", "joules, a number of J above 0, up to 1e+09, not n"),
        ("energy_budget(joules='1')", "needs joules"),
        ("energy_budget(joules=True)", "needs joules"),
        ("energy_budget(1)", "does not take 1: write energy_budget(joules=0.008"),
        ("energy_budget(max_mj_ms=1)", "does not take max_mj_ms"),
        ("energy_budget(joules=1, rel=3)", "energy_budget's rel 3 is not understood"),
        ("edp_budget()", "needs max_mj_ms, a number of mJ·ms above 0, up to 1e+12, not None"),
        ("edp_budget(max_mj_ms=0)", "needs max_mj_ms"),
        ("edp_budget(max_mj_ms=1e13)", "above 0, up to 1e+12, not 10000000000000.0"),
        ("edp_budget(max_mj_ms=1, rel='10000%')", "a percentage such as '3%', below 10000%"),
        ("edp_budget(0.15)", "does not take 0.15"),
        ("edp_budget(max_mj_ms=1, relative='3%')", "does not take relative"),
        ("edp_budget(max_mj_ms=1, rel=3)", "edp_budget's rel 3 is not understood"),
    ],
)
def test_a_budget_that_cannot_be_used_is_refused_at_collection(project, marker, sentence):
    project.bench(marks=f"@pytest.mark.{marker}")
    text = project.refused(*ONE).str()
    assert re.search(rf"test_scale\[200W\]: .*{re.escape(sentence)}", text)


def test_with_xdist_an_unusable_budget_fails_its_item(project):
    project.bench(marks=EDP.format("max_mj_ms=0"))
    result = project.run(*XDIST, *ONE)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_scale[[]200W]: The marker edp_budget needs max_mj_ms*"])


def test_a_budget_needs_something_that_measures(project):
    project.module(f"import pytest\n\n{EDP.format('max_mj_ms=1')}\ndef test_nothing(): pass\n")
    project.refused().fnmatch_lines(["*The marker edp_budget needs the fixture energy_benchmark."])


def test_exported_kernels_are_verified_and_not_measured(project, inject):
    inject(power_limit="no_permission")  # a cap is recorded, but none is set
    result = project.run(*ONE, "--gpuenergy-export", "out", "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED * written to */out, not measured"])
    assert project.stored().measurements == ()
    (exhibit,) = load_exhibits(project.path / "out")
    draft, stored = exhibit.draft, exhibit.stored
    assert (draft.node_id, draft.cap) == ("test_scale.py::test_scale[200W]", "200W")
    assert (draft.cap_index, draft.power_limit_w, draft.enforced_power_limit_w) == (1, 200.0, None)
    assert draft.correctness is not None
    assert stored is not None
    assert stored.job.kernel.digest == draft.kernel.digest
    assert (stored.reference()["y"] == 2 * stored.inputs()["x"]).all()
    assert 0 < stored.job.io.bounds["y"].max_relative < 1e-5


def test_an_export_leaves_out_a_cap_that_the_card_cannot_take(project):
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [100, 200]')
    result = project.run("--powercap", "1,2", "--gpuenergy-export", "out", "-rs")
    result.stdout.fnmatch_lines(["SKIPPED * Power cap 100W is skipped: 100 W is outside *"])
    (exhibit,) = load_exhibits(project.path / "out")
    assert exhibit.draft.cap == "200W"


STRICT = (*BASE, "--gpuenergy-fail=edp:30%", "--gpuenergy-strict")
TWO_CAPS = ("--powercap", "1,2")


def kernels(project: Project, *names: str, before: str = "") -> None:
    """A test of kernels with these labels."""
    project.bench(
        marks=f'@pytest.mark.parametrize("name", {names})',
        arguments="name, powercap, ",
        before=before,
        more=", label=name",
    )


@pytest.fixture
def three(project: Project) -> Project:
    """A project with a baseline of three kernels at two caps."""
    kernels(project, "one", "two", "three")
    project.baseline(*TWO_CAPS, passed=6)
    return project


def test_a_kernel_that_is_gone_from_the_code_fails_when_strict(three, monkeypatch):
    kernels(three, "one", "two")
    result = three.run(*TWO_CAPS, *STRICT)
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*error: gate: 2 of 6 missing from this run (scale-three-200W, scale-three-325W): *",
            "*4 SAME: FAILED; 2 of 6 missing",
        ]
    )
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lenient = three.run(*TWO_CAPS, *STRICT[:-1])
    assert lenient.ret == pytest.ExitCode.OK
    lenient.stdout.fnmatch_lines(["*4 SAME: passed; 2 of 6 missing"])
    lenient.stdout.fnmatch_lines(["::warning title=gate::passed; 2 of 6 missing"])
    # Only what is selected is missed.
    result = three.run(*ONE, "-k", "one or three", *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: gate: 1 of 2 missing from this run (scale-three-200W)*"])
    assert three.run(*ONE, "-k", "two", *STRICT).ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    "arguments",
    [
        (*TWO_CAPS, "-k", "one or two"),
        (*TWO_CAPS, "-vkone"),
        (*TWO_CAPS, "test_scale.py::test_scale[one-200W]"),
        (*TWO_CAPS, "--deselect", "test_scale.py::test_scale[three-200W]"),
        ONE,
    ],
    ids=" ".join,
)
def test_what_the_command_line_deselects_is_not_missed(three, arguments):
    assert three.run(*arguments, *STRICT).ret == pytest.ExitCode.OK


@pytest.mark.parametrize("lost", ["skip", "-x", "conftest"])
def test_what_the_user_did_not_deselect_is_missed(three, lost):
    if lost == "conftest":
        three.pytester.makeconftest(
            "def pytest_collection_modifyitems(config, items):\n"
            "    config.hook.pytest_deselected(items=items[1:])\n"
            "    del items[1:]\n"
        )
    else:
        act = "pytest.skip()" if lost == "skip" else "pytest.fail()"
        kernels(three, "one", "two", "three", before=f"if name == 'two': {act}")
    result = three.run(*ONE, *(("-x",) if lost == "-x" else ()), *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: *missing from this run*"])


def test_a_project_tells_what_its_own_option_leaves_out(three):
    kernels(three, "one", "two")
    three.pytester.makeconftest(
        "def pytest_addoption(parser): parser.addoption('--kernels')\n"
        "def pytest_gpuenergy_deselected(config, measurement):\n"
        "    return measurement.kernel.label not in config.getoption('kernels')\n"
    )
    assert three.run(*TWO_CAPS, "--kernels=one,two", *STRICT).ret == pytest.ExitCode.OK
    assert three.run(*TWO_CAPS, "--kernels=three", *STRICT).ret == pytest.ExitCode.TESTS_FAILED


def test_with_xdist_the_selection_is_that_of_the_workers(three):
    assert three.run(*XDIST, *TWO_CAPS, "-k", "one", *STRICT).ret == pytest.ExitCode.OK
    kernels(three, "one", "two")
    result = three.run(*XDIST, *TWO_CAPS, *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: gate: 2 of 6 missing from this run *"])


def test_an_item_has_one_interval_everywhere(three):
    arguments = ("--gpuenergy-json", "new.json", "--gpuenergy-html", "page.html")
    result = three.run(*TWO_CAPS, *BASE, "--gpuenergy-fail=edp:0%", *arguments)
    main(["compare", "base.json", "new.json", "--fail", "edp:0%", "--json", "gate.json"])
    compared = json.loads((three.path / "gate.json").read_text())["judgements"]
    by_place = {(one["kernel"], one["cap"]): one["interval"] for one in compared}
    page = shown(three)["verdicts"]["judgements"]
    assert {(one["kernel"], one["cap"]): one["interval"] for one in page} == by_place
    for low, high in by_place.values():
        assert f"({100 * low:+.1f} % to {100 * high:+.1f} %), limit 0 %" in result.stdout.str()


def test_figures_of_the_emulated_gpu_say_so(project):
    result = project.run(*ONE, "-v", "--junitxml=j.xml")
    result.stdout.fnmatch_lines(["*PASSED * mJ·ms (emulated)*"])
    assert "mJ·ms (emulated)" in (project.path / "j.xml").read_text()
    (folder,) = project.runs
    assert "emulated" in (folder / "csv" / "EMULATED.txt").read_text()
