"""Items judged against a baseline or a budget in their call phase."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

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

COMPARE = ("--powercap", "1", "--gpuenergy-compare", "base.json")
FAIL = (*COMPARE, "--gpuenergy-fail", "edp:5%")
SAME = (*COMPARE, "--gpuenergy-fail", "edp:20%")
"""A limit beyond the interval of a card that was not heated up first."""


def make_baseline(project: Project, *, edp: float = 1.0, **changes: object) -> None:
    """Write a baseline ``base.json`` with the measured energy, and so EDP, times ``edp``."""
    project.run("--powercap", "1", "--gpuenergy-json", "base.json").assert_outcomes(passed=1)
    path = project.path / "base.json"
    report = load_report(path)
    measurements = []
    for m in report.measurements:
        figures: dict[str, object] = {"power_w": (m.power_w or 0.0) * edp}
        for metric in (Metric.ENERGY, Metric.EDP):
            found = m.estimate(metric)
            assert found is not None
            figures[metric.field] = found.value * edp
            figures[f"{metric.field}_ci95"] = Interval(found.low * edp, found.high * edp)
        changed = replace(m, **{**figures, **changes})
        measurements.append(changed)
    write_json(Report(report.run, tuple(measurements)), path)


def slower(project: Project) -> None:
    """Make the kernel do unnecessary work."""
    (project.path / "parts.py").write_text(PARTS.replace(LINE, SLOWER))


def test_a_kernel_that_is_worse_fails_in_its_call_phase(project: Project) -> None:
    make_baseline(project)
    slower(project)
    fail = ("--gpuenergy-fail", "edp:2%", "--junitxml=j.xml")
    result = project.run(*COMPARE, *fail)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gate: EDP (emulated) +* % (+* % to +* %), limit 2 %: WORSE"])
    (case,) = ET.parse(project.path / "j.xml").getroot().iter("testcase")
    assert case.find("failure") is not None
    properties = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
    assert properties["edp_verdict"] == "WORSE"
    assert "energy_mj" in properties
    again = project.run(*COMPARE, *fail, "--lf", "-rA")
    again.assert_outcomes(failed=1)


def test_in_github_actions_what_fails_is_annotated(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_baseline(project, edp=0.5)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::error" not in project.run(*COMPARE).stdout.str()
    result = project.run(*FAIL)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["::error title=test_scale.py%3A%3Atest_scale[[]200W]::EDP (emulated) +*limit 5 %25: WORSE"]
    )


def test_names_in_a_baseline_do_not_command_the_terminal(project: Project) -> None:
    make_baseline(project, validity=("x\x1b]0;x\x07\n::error::x\r\x9b31m",))
    result = project.run(*FAIL, "--gpuenergy-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gate: EDP *AMBIGUOUS (flagged in the baseline: x*"])
    shown = result.stdout.str()
    assert not set(shown) & set("\x1b\x07\r\x9b")
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())


def test_a_baseline_of_a_gpu_with_a_hostile_name_is_refused_in_plain_text(
    project: Project,
) -> None:
    make_baseline(project)
    path = project.path / "base.json"
    report = load_report(path)
    run = replace(report.run, gpu_name="x\x1b]0;x\n::error::x")
    write_json(Report(run, report.measurements), path)
    result = project.run(*COMPARE)
    shown = result.stdout.str() + result.stderr.str()
    assert "is from x" in shown
    assert "\x1b" not in shown
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())


def test_a_kernel_that_is_the_same_passes(project: Project) -> None:
    make_baseline(project)
    result = project.run(*SAME)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["baseline: run *", "1 SAME"])


def test_without_limits_worse_is_told_and_passes(project: Project) -> None:
    make_baseline(project, edp=0.5)
    result = project.run(*COMPARE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*: EDP (emulated) +* limit 5 %: WORSE", "2 WORSE, 1 SAME"])


def test_ambiguous_is_told_and_fails_when_strict(project: Project) -> None:
    make_baseline(project, edp=1 / 1.05)
    result = project.run(*FAIL, "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["test_scale.py::test_scale[[]200W] PASSED * AMBIGUOUS *", "*limit 5 %: AMBIGUOUS"]
    )
    result = project.run(*FAIL, "--gpuenergy-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gate: EDP * limit 5 %: AMBIGUOUS"])


def test_a_flagged_baseline_is_ambiguous(project: Project) -> None:
    make_baseline(project, edp=1 / 1.15, validity=("not_steady",))
    result = project.run(*FAIL)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*AMBIGUOUS (flagged in the baseline: not_steady)"])


def test_missing_in_the_baseline_is_said(project: Project) -> None:
    make_baseline(project)
    result = project.run("--powercap", "1,2", *SAME[2:])
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["test_scale.py::test_scale[[]325W]: not in the baseline", "1 SAME, 1 not in the baseline"]
    )


def test_a_gate_with_nothing_to_judge_fails_the_run(project: Project) -> None:
    make_baseline(project)
    result = project.run("--powercap", "2", *FAIL[2:])
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*Nothing was judged, because the baseline, run *"])
    assert project.run("--powercap", "2", *COMPARE[2:]).ret == 0


def test_missing_in_the_baseline_fails_when_strict(project: Project) -> None:
    make_baseline(project)
    result = project.run("--powercap", "1,2", *SAME[2:], "--gpuenergy-strict")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["gate: not in the baseline"])


def test_another_gpu_ends_the_run_before_it_measures(project: Project) -> None:
    make_baseline(project)
    result = project.run(*FAIL, "--gpu-device", "emulated:a30")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*The baseline (run *) is from NVIDIA H200 (*), *gpu_name*"])
    assert "Traceback" not in result.stdout.str()


def test_what_was_resumed_is_judged_too(project: Project) -> None:
    make_baseline(project, edp=0.5)
    project.run("--powercap", "1").assert_outcomes(passed=1)
    project.run(*FAIL, "--gpuenergy-resume").assert_outcomes(failed=1)


def test_the_ini_file_can_ask_for_a_gate(project: Project) -> None:
    make_baseline(project, edp=0.5)
    project.ini('gpuenergy_compare = "base.json"\ngpuenergy_fail = "edp:5%,time:5%"')
    project.run("--powercap", "1").assert_outcomes(failed=1)


def test_a_run_can_be_named_by_its_id(project: Project) -> None:
    project.run("--powercap", "1").assert_outcomes(passed=1)
    (folder,) = project.runs
    result = project.run("--powercap", "1", "--gpuenergy-compare", folder.name)
    result.stdout.fnmatch_lines([f"baseline: run {folder.name} of *"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gpuenergy-fail", "edp:5%"), "*--gpuenergy-fail needs a baseline: *"),
        (
            ("--gpuenergy-compare", "no.json"),
            "*/no.json does not exist: name a folder in .gpuenergy/runs, *.",
        ),
        ((*COMPARE, "--gpuenergy-fail", "edp"), "*--gpuenergy-fail 'edp' is not understood: *"),
        ((*COMPARE, "--gpuenergy-fail="), "*--gpuenergy-fail is empty: *"),
        (("--gpuenergy-compare=",), "*--gpuenergy-compare is empty: *"),
        (
            (*COMPARE, "--gpuenergy-fail", "edp:10000%"),
            "*--gpuenergy-fail 'edp:10000%' is not understood: * such as edp:5%, below 10000%; *",
        ),
        ((*COMPARE, "--gpuenergy-allow", "gpu"), "*--gpuenergy-allow 'gpu' is not understood: *"),
        ((*COMPARE, "--gpuenergy-session-sd", "1%"), "*--gpuenergy-session-sd '1%' is not *"),
    ],
)
def test_wrong_options_are_told_at_once(
    project: Project, arguments: tuple[str, ...], sentence: str
) -> None:
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([sentence])


def test_a_legacy_baseline_is_refused(project: Project) -> None:
    make_baseline(project)
    path = project.path / "base.json"
    document = json.loads(path.read_text())
    document["run"]["legacy"] = True
    path.write_text(json.dumps(document))
    result = project.run(*FAIL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*is marked legacy*"])


def shown(project: Project) -> dict[str, object]:
    """The data embedded in ``page.html``."""
    page = (project.path / "page.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


@pytest.mark.parametrize(
    "workers",
    [(), pytest.param(("-p", "xdist", "-n1"), marks=pytest.mark.thorough)],
    ids=["one process", "xdist"],
)
def test_the_page_shows_the_comparison(project: Project, workers: tuple[str, ...]) -> None:
    make_baseline(project, edp=0.5)
    base = load_report(project.path / "base.json")
    result = project.run(*COMPARE, "--gpuenergy-html", "page.html", *workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"report: *, CSV: *, page: {project.path}/page.html"])
    data = shown(project)
    assert dict(data["baseline"])["run"] == base.run.run_id  # type: ignore[call-overload]
    changes = {one["metric"]: one["change_percent"] for one in data["differences"]}  # type: ignore[attr-defined]
    assert list(changes) == ["time", "energy", "edp"]
    assert 80 < changes["edp"] < 120
    verdicts = {one["metric"]: one["verdict"] for one in data["verdicts"]["judgements"]}  # type: ignore[call-overload]
    assert verdicts["edp"] == "WORSE"


def test_a_baseline_that_was_refused_is_not_on_the_page(project: Project) -> None:
    make_baseline(project)
    page = ("--gpuenergy-html", "page.html")
    result = project.run(*COMPARE, *page, "--gpu-device", "emulated:a30")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stdout.str().count("they differ in gpu_name") == 1
    assert shown(project)["baseline"] is None


@pytest.mark.thorough
def test_with_xdist_the_verdicts_are_told_too(project: Project) -> None:
    make_baseline(project, edp=0.5)
    result = project.run("-p", "xdist", *FAIL, "-n1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["baseline: run *", "*limit 5 %: WORSE", "1 WORSE"])


def test_with_xdist_the_last_failed_are_those_that_were_worse(project: Project) -> None:
    make_baseline(project, edp=0.5)
    arguments = ("-p", "xdist", "--powercap", "1,2", *FAIL[2:], "-n1")
    project.run(*arguments).assert_outcomes(passed=1, failed=1)
    project.run(*arguments, "--lf").assert_outcomes(failed=1)


def budget(project: Project, arguments: str) -> None:
    project.module(
        f"""
        import pytest
        from parts import LAUNCH, SCALE, SOURCE

        @pytest.mark.edp_budget({arguments})
        def test_scale(powercap, load_kernel, energy_benchmark):
            energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
        """
    )


def test_a_budget_that_is_kept_passes(project: Project) -> None:
    budget(project, "max_mj_ms=1")
    result = project.run("--powercap", "1", "--strict-markers")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= gpuenergy gate =*", "1 within budget"])


def test_over_budget_fails_in_the_call_phase(project: Project) -> None:
    budget(project, 'max_mj_ms=1e-5, rel="3%"')
    result = project.run("--powercap", "1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["budget: EDP (emulated) 0.000* mJ·ms (* to *), budget 1e-05 mJ·ms + 3 %: over budget by *"]
    )


def test_a_budget_about_right_is_ambiguous(project: Project) -> None:
    project.run("--powercap", "1").assert_outcomes(passed=1)
    (measurement,) = project.report().measurements
    budget(project, f"max_mj_ms={measurement.edp_mj_ms}")
    project.run("--powercap", "1").assert_outcomes(passed=1)
    project.run("--powercap", "1", "--gpuenergy-strict").assert_outcomes(failed=1)


def energy_budget(project: Project, markers: str) -> None:
    budget(project, "max_mj_ms=1")
    path = project.path / "test_scale.py"
    path.write_text(path.read_text().replace("@pytest.mark.edp_budget(max_mj_ms=1)", markers))


def test_an_energy_budget_is_of_joules_and_judged_like_the_edps(project: Project) -> None:
    energy_budget(project, '@pytest.mark.energy_budget(joules=1e-7, rel="3%")')
    result = project.run("--powercap", "1", "--strict-markers")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["budget: energy (emulated) 0.12* mJ (* to *), budget 0.0001 mJ + 3 %: over budget by *"]
    )
    energy_budget(project, "@pytest.mark.energy_budget(joules=1)")
    project.run("--powercap", "1").assert_outcomes(passed=1)


def test_an_energy_budget_about_right_is_ambiguous(project: Project) -> None:
    project.run("--powercap", "1").assert_outcomes(passed=1)
    (measurement,) = project.report().measurements
    assert measurement.energy_mj is not None
    energy_budget(project, f"@pytest.mark.energy_budget(joules={measurement.energy_mj / 1e3})")
    project.run("--powercap", "1").assert_outcomes(passed=1)
    project.run("--powercap", "1", "--gpuenergy-strict").assert_outcomes(failed=1)


def test_an_item_may_have_both_budgets(project: Project) -> None:
    both = "@pytest.mark.energy_budget(joules=1e-7)\n@pytest.mark.edp_budget(max_mj_ms=1e-5)"
    energy_budget(project, both)
    result = project.run("--powercap", "1", "--junitxml", "j.xml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["budget: EDP *: over budget by *", "budget: energy *: over budget by *", "2 over budget"]
    )
    text = (project.path / "j.xml").read_text()
    assert 'name="energy_budget_verdict" value="over budget"' in text
    assert 'name="budget_verdict" value="over budget"' in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "energy_budget needs joules, a number of J above 0, up to 1e+09, not None"),
        ("joules=float('nan')", "needs joules, a number of J above 0, up to 1e+09, not nan"),
        ("joules='1'", "needs joules"),
        ("joules=True", "needs joules"),
        ("1", "does not take 1: write energy_budget(joules=0.008"),
        ("max_mj_ms=1", "does not take max_mj_ms"),
        ("joules=1, rel=3", "energy_budget's rel 3 is not understood"),
    ],
)
def test_an_energy_budget_that_cannot_be_used_is_told_at_collection(
    project: Project, arguments: str, sentence: str
) -> None:
    energy_budget(project, f"@pytest.mark.energy_budget({arguments})")
    result = project.run("--powercap", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "needs max_mj_ms, a number of mJ·ms above 0, up to 1e+12, not None"),
        ("max_mj_ms=0", "needs max_mj_ms"),
        ("max_mj_ms=1e13", "above 0, up to 1e+12, not 10000000000000.0"),
        ("max_mj_ms=1, rel='10000%'", "give a percentage such as '3%', below 10000%"),
        ("0.15", "does not take 0.15"),
        ("max_mj_ms=1, relative='3%'", "does not take relative"),
        ("max_mj_ms=1, rel=3", "edp_budget's rel 3 is not understood"),
    ],
)
def test_a_budget_that_cannot_be_used_is_told_at_collection(
    project: Project, arguments: str, sentence: str
) -> None:
    budget(project, arguments)
    result = project.run("--powercap", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(rf"test_scale\[200W\]: .*{re.escape(sentence)}", result.stderr.str())


def test_with_xdist_an_unusable_budget_fails_its_item(project: Project) -> None:
    budget(project, "max_mj_ms=0")
    result = project.run("-p", "xdist", "--powercap", "1", "-n1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_scale[[]200W]: The marker edp_budget needs max_mj_ms*"])


def test_a_budget_needs_something_that_measures(project: Project) -> None:
    project.module(
        """
        import pytest

        @pytest.mark.edp_budget(max_mj_ms=1)
        def test_nothing():
            pass
        """
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*The marker edp_budget needs the fixture energy_benchmark."])


def test_exported_kernels_are_verified_and_not_measured(project: Project) -> None:
    result = project.run("--powercap", "1", "--gpuenergy-export", "out", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * written to */out, not measured"])
    assert project.stored().measurements == ()
    (exhibit,) = load_exhibits(project.path / "out")
    assert exhibit.draft.node_id == "test_scale.py::test_scale[200W]"
    assert exhibit.draft.correctness is not None
    stored = exhibit.stored
    assert stored is not None
    assert stored.job.kernel.digest == exhibit.draft.kernel.digest
    assert (stored.reference()["y"] == 2 * stored.inputs()["x"]).all()
    assert 0 < stored.job.io.bounds["y"].max_relative < 1e-5


def test_an_export_asks_for_a_cap_and_sets_none(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps({"power_limit": "no_permission"}))
    result = project.run("--powercap", "1", "--gpuenergy-export", "out", "-rs")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED * written to */out, not measured"])
    (exhibit,) = load_exhibits(project.path / "out")
    draft = exhibit.draft
    assert (draft.cap, draft.cap_index, draft.power_limit_w) == ("200W", 1, 200.0)
    assert draft.enforced_power_limit_w is None


def test_an_export_leaves_out_a_cap_that_the_card_cannot_take(project: Project) -> None:
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [100, 200]')
    result = project.run("--powercap", "1,2", "--gpuenergy-export", "out", "-rs")
    result.stdout.fnmatch_lines(["SKIPPED * Power cap 100W is skipped: 100 W is outside *"])
    (exhibit,) = load_exhibits(project.path / "out")
    assert exhibit.draft.cap == "200W"


THREE = """
import pytest
from parts import LAUNCH, SCALE, SOURCE

@pytest.mark.parametrize("name", {names})
def test_scale(name, powercap, load_kernel, energy_benchmark):
    energy_benchmark(load_kernel(SOURCE + f"// {{name}}", **LAUNCH), workload=SCALE, label=name)
"""
STRICT = ("--gpuenergy-compare", "base.json", "--gpuenergy-fail=edp:30%", "--gpuenergy-strict")


@pytest.fixture
def three(project: Project) -> Project:
    """A project with a baseline of three kernels at two caps."""
    project.module(THREE.format(names=["one", "two", "three"]))
    run = project.run("--powercap", "1,2", "--gpuenergy-json", "base.json")
    run.assert_outcomes(passed=6)
    return project


def test_a_kernel_that_is_gone_from_the_code_fails_when_strict(three: Project) -> None:
    three.module(THREE.format(names=["one", "two"]))
    result = three.run("--powercap", "1,2", *STRICT)
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*error: gate: 2 of 6 missing from this run (scale-three-200W, scale-three-325W): *",
            "*4 SAME: FAILED; 2 of 6 missing",
        ]
    )
    lenient = three.run("--powercap", "1,2", *STRICT[:-1])
    assert lenient.ret == pytest.ExitCode.OK
    lenient.stdout.fnmatch_lines(["*4 SAME: passed; 2 of 6 missing"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "one or two"),
        ("-vkone",),
        ("test_scale.py::test_scale[one-200W]",),
        ("--deselect", "test_scale.py::test_scale[three-200W]"),
        ("--powercap", "1"),
    ],
    ids=" ".join,
)
def test_what_the_command_line_deselects_is_not_missed(
    three: Project, arguments: tuple[str, ...]
) -> None:
    caps = () if "--powercap" in arguments else ("--powercap", "1,2")
    assert three.run(*caps, *arguments, *STRICT).ret == pytest.ExitCode.OK


def test_what_is_gone_is_missed_in_the_selection_only(three: Project) -> None:
    three.module(THREE.format(names=["one", "two"]))
    result = three.run("--powercap", "1", "-k", "one or three", *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: gate: 1 of 2 missing from this run (scale-three-200W)*"])
    assert three.run("--powercap", "1", "-k", "two", *STRICT).ret == pytest.ExitCode.OK


@pytest.mark.parametrize("lost", ["skip", "-x", "conftest"])
def test_what_the_user_did_not_deselect_is_missed(three: Project, lost: str) -> None:
    if lost == "conftest":
        three.pytester.makeconftest(
            "def pytest_collection_modifyitems(config, items):\n"
            "    config.hook.pytest_deselected(items=items[1:])\n"
            "    del items[1:]\n"
        )
    else:
        act = "pytest.skip()" if lost == "skip" else "pytest.fail()"
        text = THREE.format(names=["one", "two", "three"])
        measures = "    energy_benchmark("
        three.module(text.replace(measures, f"    if name == 'two': {act}\n{measures}"))
    result = three.run("--powercap", "1", *(("-x",) if lost == "-x" else ()), *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: *missing from this run*"])


def test_a_project_tells_what_its_own_option_leaves_out(three: Project) -> None:
    three.module(THREE.format(names=["one", "two"]))
    three.pytester.makeconftest(
        "def pytest_addoption(parser): parser.addoption('--kernels')\n"
        "def pytest_gpuenergy_deselected(config, measurement):\n"
        "    return measurement.kernel.label not in config.getoption('kernels')\n"
    )
    caps = ("--powercap", "1,2")
    assert three.run(*caps, "--kernels=one,two", *STRICT).ret == pytest.ExitCode.OK
    assert three.run(*caps, "--kernels=three", *STRICT).ret == pytest.ExitCode.TESTS_FAILED


def test_with_xdist_the_selection_is_that_of_the_workers(three: Project) -> None:
    xdist = ("-p", "xdist", "-n1", "--powercap", "1,2")
    assert three.run(*xdist, "-k", "one", *STRICT).ret == pytest.ExitCode.OK
    three.module(THREE.format(names=["one", "two"]))
    result = three.run(*xdist, *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: gate: 2 of 6 missing from this run *"])


def test_in_github_actions_what_is_missing_is_annotated(
    three: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    three.module(THREE.format(names=["one", "two"]))
    result = three.run("--powercap", "1,2", *STRICT[:-1])
    result.stdout.fnmatch_lines(["::warning title=gate::passed; 2 of 6 missing"])


def test_an_item_has_one_interval_everywhere(three: Project) -> None:
    arguments = ("--gpuenergy-json", "new.json", "--gpuenergy-html", "page.html")
    limit = "--gpuenergy-fail=edp:0%"
    result = three.run("--powercap", "1,2", *STRICT[:2], limit, *arguments)
    path = three.path
    main(["compare", "base.json", "new.json", "--fail", "edp:0%", "--json", "gate.json"])
    compared = json.loads((path / "gate.json").read_text())["judgements"]
    page = shown(three)["verdicts"]["judgements"]  # type: ignore[index]
    by_place = {(one["kernel"], one["cap"]): one["interval"] for one in compared}
    assert {(one["kernel"], one["cap"]): one["interval"] for one in page} == by_place
    text = result.stdout.str()
    for low, high in by_place.values():
        assert f"({100 * low:+.1f} % to {100 * high:+.1f} %), limit 0 %" in text


def test_an_item_that_is_run_again_has_one_line_and_one_set_of_properties(
    project: Project,
) -> None:
    pytest.importorskip("pytest_rerunfailures")
    make_baseline(project)
    slower(project)
    rerun = ("-p", "pytest_rerunfailures", "--reruns", "2", "--junitxml=j.xml")
    result = project.run(*COMPARE, "--gpuenergy-fail", "edp:2%", *rerun)
    assert result.stdout.str().count("[200W]: EDP (emulated) +") == 1
    result.stdout.fnmatch_lines(["1 WORSE"])
    names = [
        one.attrib["name"] for one in ET.parse(project.path / "j.xml").getroot().iter("property")
    ]
    assert len(names) == len(set(names))
    assert {"edp_verdict", "edp_mj_ms"} <= set(names)


def test_figures_of_the_emulated_gpu_say_so(project: Project) -> None:
    make_baseline(project)
    result = project.run(*SAME, "-v", "--junitxml=j.xml")
    result.stdout.fnmatch_lines(["*PASSED * mJ·ms (emulated)*", "baseline: run *(emulated)"])
    assert "mJ·ms (emulated)" in (project.path / "j.xml").read_text()
    (folder, *_) = project.runs
    assert "emulated" in (folder / "csv" / "EMULATED.txt").read_text()
