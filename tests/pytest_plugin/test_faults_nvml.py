"""Faults of NVML and the card during a run: what fails, what is kept, what is restored."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from points import each_once

from pytest_gpuenergy.opening import open_device

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from conftest import Project

NUMBERED = '@pytest.mark.parametrize("number", [1, 2, 3])'


@pytest.fixture(autouse=True)
def file_order(project: Project) -> None:
    project.ini('gpuenergy_order = "file"')


def three(project: Project, faults: object, *, after: str = "") -> None:
    """Three items; the faults are on the card from the second item on."""
    project.bench(
        marks=NUMBERED,
        arguments="number, gpu, powercap, ",
        before=f"if number == 2: [gpu.inject(*fault) for fault in {faults!r}.items()]",
        after=after,
    )


def run_with(project: Project, *arguments: str, **faults: object) -> pytest.RunResult:
    three(project, faults)
    return project.run("--powercap", "1", *arguments)


def test_a_gpu_that_is_lost_fails_what_follows_and_keeps_what_was_measured(project):
    result = run_with(project, any={"error": "gpu_is_lost", "after_s": 1.0})
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 1
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) + outcomes.get("skipped", 0) == 2
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "GPU is lost" in text
    stored = project.stored().measurements
    assert stored[0].measured
    assert not any(m.measured for m in stored[1:])
    assert project.report().measurements == stored
    assert project.limit_w() == 200  # nobody could restore it
    three(project, {})
    project.run("--powercap", "current").assert_outcomes(passed=3)
    assert project.limit_w() == 700


@pytest.mark.parametrize(
    "cap", [pytest.param("700W", marks=pytest.mark.thorough), "300W", "current"]
)
def test_a_gpu_that_is_lost_between_items_fails_what_follows(project, cap):
    three(project, {}, after="if number == 1: gpu.inject('any', 'gpu_is_lost')")
    result = project.run("--powercap", cap)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 1
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 2
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_limit_that_changes_under_current_is_flagged(project):
    three(project, {"limit_changed": {"power_w": 444, "after_s": 0.1}})
    project.run("--powercap", "current", "-k", "2").assert_outcomes(passed=1)
    assert [m.validity for m in project.stored().measurements] == [("power_limit_changed",)]


@pytest.mark.parametrize(
    ("fault", "flag"), [("counter_reset", "counter_reset"), ("counter_stuck", "counter_stale")]
)
def test_a_counter_that_breaks_in_an_item_leaves_no_figure_there(project, fault, flag):
    result = run_with(project, **{fault: {"after_s": 0.5, "lasts_s": 0.7}})
    result.assert_outcomes(passed=2, failed=1)
    stored = project.stored().measurements
    assert [m.measured for m in stored] == [True, False, True]
    assert stored[1].validity == (flag,)
    assert project.limit_w() == 700


def test_a_limit_enforced_lower_than_asked_is_recorded(project):
    run_with(project, enforced_limit={"power_w": 150}).assert_outcomes(passed=3)
    limits = [(m.power_limit_w, m.enforced_power_limit_w) for m in project.stored().measurements]
    assert limits == [(200, 200), (200, 150), (200, 150)]
    assert project.limit_w() == 700


@pytest.mark.parametrize("after_s", [0.0, 1.5])
def test_a_process_that_appears_flags_every_item_from_then_on(project, after_s):
    run_with(project, foreign_process={"pid": 4242, "after_s": after_s}).assert_outcomes(passed=3)
    flagged = ["foreign_process" in m.validity for m in project.stored().measurements]
    assert flagged == [False, True, True]


@pytest.mark.parametrize(
    ("error", "what"),
    each_once(
        ["not_supported", "no_permission"],
        ["temperature", "samples", "processes", "power", "fields"],
    ),
)
def test_a_reading_that_cannot_be_had_does_not_stop_a_run(project, what, error):
    run_with(project, **{what: error}).assert_outcomes(passed=3)
    assert all(m.measured for m in project.stored().measurements)


def test_a_card_without_a_counter_is_measured_by_its_power(project, inject):
    inject(energy="not_supported", field_missing={"field": 186})
    result = project.run("--powercap", "700W")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["gpuenergy: energy from the modelled average power over time (no energy counter); *"]
    )
    (measurement,) = project.stored().measurements
    assert measurement.energy_source == "average power"


def test_the_source_of_energy_and_the_card_are_recorded(project):
    project.run("--powercap", "2", "--gpu-device", "emulated:v100").assert_outcomes(passed=1)
    (measurement,) = project.stored().measurements
    with open_device("emulated:v100") as device:
        assert (measurement.energy_source, measurement.gpu_uuid) == ("counter", device.uuid)


@pytest.mark.slow
def test_a_card_without_any_source_of_energy_is_told_in_one_sentence(project, inject):
    inject(**dict.fromkeys(("energy", "fields", "power"), "not_supported"))
    result = project.run("--powercap", "700W")
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str() + result.stderr.str()
    assert "NVIDIA H200 offers neither an energy counter nor a power reading" in text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text


@pytest.mark.parametrize(
    "faults",
    [
        {"driver_mismatch": True},
        {"init": "driver_not_loaded"},
        {"init": "no_permission"},
        {"any": "gpu_is_lost"},
    ],
    ids=["mismatch", "not-loaded", "no-permission", "lost"],
)
def test_an_nvml_that_does_not_start_ends_the_run_in_one_sentence(project, inject, faults):
    inject(**faults)
    result = project.run("--powercap", "1")
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str() + result.stderr.str()
    assert "NVML of the emulated NVIDIA H200 does not start: " in text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert not project.runs
    inject()
    assert project.limit_w() == 700


def test_without_the_module_pynvml_a_real_gpu_is_refused_in_one_sentence(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    result = project.run("--powercap", "1", "--gpu-device", "0")
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str() + result.stderr.str()
    assert "The module pynvml is missing: pip install nvidia-ml-py." in text
    assert "Traceback" not in text
    assert not project.runs
