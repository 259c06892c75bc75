"""Callables are compared with `reference=` and measured in the pytest process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from device_arrays import Cupy
from unmarked_gpu import unmarked_gpu

from pytest_gpuenergy.devices import Device

ITEM = """
import numpy as np
from device_arrays import CupyArray, Tensor

X = np.arange(4.0)

def double(x):
    return Tensor(2 * x.data)

def test_double(energy_benchmark):
    m = energy_benchmark(double, Tensor(X), reference={reference})
    assert m.correctness.normwise_error == 0
"""


@pytest.fixture(autouse=True)
def real_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    with unmarked_gpu(monkeypatch, 0.02, 400.0):
        yield


@pytest.mark.parametrize(
    "reference",
    ["2 * X", "Tensor(2 * X)", "CupyArray(2 * X)", "lambda x: CupyArray(x.data + x.data)"],
)
def test_a_reference_may_be_an_array_anywhere_or_a_function(project, reference):
    project.module(ITEM.format(reference=reference))
    project.run("--powercap", "current").assert_outcomes(passed=1)
    (measurement,) = project.report().measurements
    assert measurement.measured
    assert measurement.in_process


def test_the_reference_is_made_before_the_callable_runs(project):
    project.module(
        """
        import numpy as np

        x = np.full(4, 3.0)

        def clear(x):
            x[:] = 0
            return np.full(4, 6.0)

        def test_clear(energy_benchmark):
            energy_benchmark(clear, x, reference=lambda x: 2 * x)
        """
    )
    project.run("--powercap", "current").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("X[1:]", "The callable's result has shape (4,), but its reference has shape (3,): *"),
        ("(X, X)", "The callable returned result, but reference= has result[[]0], result[[]1]: *"),
        ("'text'", "The reference of result has type str and dtype <U4: *"),
        ("lambda: X", "reference= was called with * and raised TypeError: *"),
        ("lambda x: 1 / 0", "reference= was * raised ZeroDivisionError in test_scale.py, line *"),
        ("lambda x: X", "3 of 4 elements of result (first result[[]1]) are wrong *"),
    ],
)
def test_a_reference_that_does_not_fit_fails_the_item_in_one_sentence(project, reference, sentence):
    project.module(ITEM.format(reference=reference))
    result = project.run("--powercap", "current")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([sentence])
    result.stdout.no_fnmatch_line("E  *")  # as a traceback has
    assert not project.report().measurements


def test_a_kernels_reference_belongs_to_its_workload(project):
    project.bench(more=", reference=lambda x: 2 * x")
    result = project.run("--powercap", "current")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "test_*.py:*: energy_benchmark takes no reference= for a kernel: give it to the "
            "workload, such as compute in Contract(name, contract, compute)."
        ]
    )
    assert not project.report().measurements


def test_a_workload_named_after_its_item_leaves_the_label_as_it_is(project):
    project.module(
        """
        import pytest

        def double(size):
            return 2 * size

        @pytest.mark.parametrize("size", [1, 2])
        def test_double(size, energy_benchmark):
            energy_benchmark(double, size)
        """
    )
    project.run("--powercap", "current").assert_outcomes(passed=2)
    found = [(m.workload.name, m.kernel.label) for m in project.report().measurements]
    assert found == [("test_double[1]", "double"), ("test_double[2]", "double")]


CHANGING = """
import numpy as np
from device_arrays import CupyArray, Tensor

X = np.arange(1.0, 101.0)
Y = 2 * X
calls = 0
kept = {{}}

def double(x, y):
    global calls
    calls += 1
    {body}

def test_double(energy_benchmark):
    energy_benchmark(double, Tensor(X), CupyArray(np.full(100, np.nan)), reference=Y)
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return Tensor((2 if calls < 4 else 3) * x.data)", "100 of 100 elements of result *"),
        ("return kept.setdefault(0, Tensor(2 * x.data))", "* never written or NaN."),
        ("if calls < 3: y.data[:] = 2 * x.data\n    return y", "* never written or NaN. The *"),
        ("if np.isnan(y.data).any(): y.data[:] = 2 * x.data\n    return y", "*wrong*"),
        ("x.data[5] += calls > 3; return Tensor(Y.copy())", "The argument args[[]0] has changed."),
        (
            "x.data[:] = Y if calls == 1 else x.data; return x",
            "* The result shares memory with args[[]0]: if that is also an input, the first call *",
        ),
    ],
)
def test_a_callable_that_is_right_only_at_first_fails(project, body, why):
    project.module(CHANGING.format(body=body))
    result = project.run("--powercap", "current")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"correctness: Correct at first, wrong after * calls: {why}"])
    (measurement,) = project.report().measurements
    assert (measurement.outcome, measurement.measured) == ("correctness", False)


@pytest.mark.parametrize(
    "body",
    [
        "return Tensor(2 * x.data)",
        "return CupyArray(2 * x.data)",
        "y.data[:] = 2 * x.data; return y",
        "return (2 * x.data).tolist()",
        "return 2 * x.data",
    ],
)
def test_a_callable_that_stays_right_is_measured(project, body):
    project.module(CHANGING.format(body=body))
    project.run("--powercap", "current").assert_outcomes(passed=1)


def test_only_a_callables_verification_is_asked_for(project):
    project.module(ITEM.format(reference="2 * X"))
    result = project.run("--gpuenergy-verify-only")
    result.assert_outcomes(passed=1)
    (measurement,) = project.report().measurements
    assert measurement.verified_only
    assert measurement.correctness is not None
    project.module(ITEM.format(reference="3 * X"))
    project.run("--gpuenergy-verify-only").assert_outcomes(failed=1)


def test_a_callable_without_a_reference_cannot_be_verified(project):
    project.module(ITEM.format(reference="None"))
    result = project.run("--gpuenergy-verify-only", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * a callable without a reference can be measured, *"])


def test_a_callable_on_another_gpu_than_the_measured_one_fails_in_one_sentence(
    project, monkeypatch
):
    monkeypatch.setattr(Device, "misplaced", lambda *_: "The callable works on CUDA device 0.")
    project.module(ITEM.format(reference="2 * X"))
    result = project.run("--powercap", "current")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_*.py:*: The callable works on CUDA device 0."])
    assert not project.report().measurements
