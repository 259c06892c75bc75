"""The labels under which items are recorded; no two items of a run share one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.pytest_plugin import item_label

if TYPE_CHECKING:
    from conftest import Project

ONE = ("--powercap", "450W")
CAP = Setpoint(450.0, index=3)


def item(ids: str | None, *, capped: bool = True) -> Any:
    """An item with the given parameter ids."""
    if ids is None:
        return SimpleNamespace()
    params = {"powercap": CAP} if capped else {}
    return SimpleNamespace(callspec=SimpleNamespace(id=ids, params=params))


@pytest.mark.parametrize(
    ("ids", "workload", "base", "label"),
    [
        (None, "scale", "scale", "scale"),
        ("450W", "scale", "scale", "scale"),
        ("64-450W", "scale", "scale", "scale-64"),
        ("64-float32-450W", "scale", "scale", "scale-64-float32"),
        ("case1-k01-450W", "case1", "k01", "k01"),
        ("case1-k01-450W", "case10", "k01", "k01-case1"),
        ("case1-k010-450W", "case1", "k01", "k01-k010"),
        ("block-4-64-450W", "block-4", "conv", "conv-64"),
        ("450W-x-450W", "scale", "scale", "scale-450W-x"),
        ("-1-450W", "scale", "scale", "scale--1"),
        ("scale-450W", "scale", "scale", "scale"),
        ("", "scale", "scale", "scale"),
    ],
)
def test_labels_hold_what_the_record_lacks_otherwise(ids, workload, base, label):
    assert item_label(item(ids), base, workload, CAP) == label


def test_a_parameter_called_as_the_cap_stays_where_no_cap_is_set():
    assert item_label(item("current", capped=False), "f", "w", CURRENT) == "f-current"


@given(st.lists(st.text("abc-0", max_size=8), min_size=2, max_size=2, unique=True))
def test_different_parameters_give_different_labels(ids):
    one, other = (item_label(item(f"{text}-450W"), "f", "w", CAP) for text in ids)
    assert one != other


def sizes(project: Project, *, arguments: str = "powercap, ", more: str = "") -> None:
    """A test with two sizes."""
    mark = '@pytest.mark.parametrize("size", [64, 128])'
    project.bench(marks=mark, arguments=f"size, {arguments}", more=more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "more", "names"),
    [
        ("powercap, ", "", ["scale-64", "scale-128"]),
        ("", "", ["scale-64", "scale-128"]),
        ("powercap, ", ', label=f"n{size}"', ["n64", "n128"]),
    ],
    ids=["capped", "no cap", "label"],
)
def test_items_of_a_parametrized_test_are_recorded_apart(project, arguments, more, names):
    sizes(project, arguments=arguments, more=more)
    project.run(*ONE).assert_outcomes(passed=2)
    assert {m.kernel.label for m in project.report().measurements} == {*names}


def test_an_item_that_could_not_be_told_apart_is_refused(project):
    sizes(project, more=', label="same"')
    result = project.run(*ONE)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "test_*.py:*: test_scale.py::test_scale[[]64-450W] and "
            "test_scale.py::test_scale[[]128-450W] would both be recorded as scale-same-450W, *: "
            "give energy_benchmark a label= of its own in each."
        ]
    )
    (measurement,) = project.report().measurements
    assert measurement.node_id == "test_scale.py::test_scale[64-450W]"


def test_it_is_refused_too_when_the_other_one_was_measured_before_a_resume(project):
    sizes(project, more=', label="same"')
    project.run(*ONE, "-k", "128").assert_outcomes(passed=1, deselected=1)
    flagged = any(m.validity for m in project.report().measurements)
    result = project.run(*ONE, "--gpuenergy-resume")
    result.assert_outcomes(failed=1, passed=int(flagged), skipped=int(not flagged))
    assert len(project.report().measurements) == 1


def test_two_tests_of_one_name_are_refused(project):
    project.module(
        """
        from parts import LAUNCH, SCALE, SOURCE

        def test_a(load_kernel, energy_benchmark):
            energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)

        test_b = test_a
        """
    )
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["test_scale.py:4: test_scale.py::test_a and test_scale.py::test_b would *"]
    )


@pytest.mark.slow
def test_items_that_two_workers_measured_are_told_at_the_end(project):
    project.module(
        """
        import os, threading, time
        from pathlib import Path
        import pytest
        from parts import LAUNCH, SCALE, SOURCE

        @pytest.mark.parametrize("number", range(2))
        def test_scale(number, powercap, load_kernel, energy_benchmark):
            # Each worker waits for the other, so that neither measures both.
            Path("met-" + os.environ["PYTEST_XDIST_WORKER"]).touch()
            deadline_s = time.monotonic() + 60
            while len(list(Path().glob("met-*"))) < 2 and time.monotonic() < deadline_s:
                threading.Event().wait(0.01)
            energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE, label="same")
        """
    )
    arguments = ("-p", "xdist", "-n", "2", "--gpu-device", "emulated:h200x2", *ONE)
    result = project.run(*arguments)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpuenergy: error: *[[]?-450W] and *[[]?-450W] were both recorded as scale-same-450W, *"]
    )
    assert len(project.report().measurements) == 2
