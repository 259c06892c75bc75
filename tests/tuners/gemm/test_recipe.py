"""Recipes of templates: what is stored is read again, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.tuners import TEMPLATE_FORM, SimtParameters
from pytest_gpuenergy.workloads import CASES, Gemm

GEMM = Gemm("g", 64, 64, 64)
PARAMETERS = SimtParameters(blocks=7, asynchronous=False)
STORED = {"template": "simt", "parameters": PARAMETERS.numbers, "time_ms": 0.5}


@given(st.sampled_from([4, 8, 16]), st.integers(0, 1 << 20), st.booleans(), st.floats(1e-4, 1e4))
def test_what_is_stored_is_read_again(thread_m, blocks, asynchronous, time_ms):
    chosen = SimtParameters(tile_m=128, thread_m=thread_m, blocks=blocks, asynchronous=asynchronous)
    stored = TEMPLATE_FORM.with_time(TEMPLATE_FORM.recipe(chosen), time_ms)
    assert TEMPLATE_FORM.parameters(stored) == chosen
    assert TEMPLATE_FORM.time_ms(stored) == time_ms
    assert TEMPLATE_FORM.identity(stored) == TEMPLATE_FORM.recipe(chosen)
    assert TEMPLATE_FORM.check(json.loads(stored), GEMM) == stored


def changed(**parameters: Any) -> dict[str, Any]:
    return {**STORED, "parameters": {**PARAMETERS.numbers, **parameters}}


def without(name: str) -> dict[str, Any]:
    kept = {key: value for key, value in PARAMETERS.numbers.items() if key != name}
    return {**STORED, "parameters": kept}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "the recipe is an integer instead of an object"),
        ({**STORED, "template": "none"}, "the template is 'none' instead of simt"),
        ({**STORED, "more": 1}, "more"),
        (changed(tile_m=-64), "needs tile_m to be a whole number from 1 to 1048576, not -64"),
        (changed(tile_m=10**9), "not 1000000000"),
        (changed(tile_m=65), "cannot be divided among warps"),
        (changed(asynchronous=2), "needs asynchronous to be 0 or 1"),
        (changed(warps=2), "does not take 'warps'"),
        (without("stages"), "needs stages"),
        ({**STORED, "time_ms": None}, "the time is None"),
        ({**STORED, "time_ms": -1.0}, "the time is -1.0"),
    ],
)
def test_anything_else_is_refused(value, message):
    with pytest.raises(FormError, match=message):
        TEMPLATE_FORM.check(value, GEMM)


@pytest.mark.parametrize("added", ["slices", "transpose_a"])
def test_a_recipe_of_a_version_without_a_parameter_has_its_first_value(added):
    assert TEMPLATE_FORM.parameters(json.dumps(without(added))) == PARAMETERS


@pytest.mark.parametrize("workload", [CASES["case1"], Gemm("h", 64, 64, 64, mode="float16")])
def test_a_recipe_for_what_the_template_does_not_compute_is_refused(workload):
    with pytest.raises(FormError, match=f"does not compute {workload.name}"):
        TEMPLATE_FORM.check(STORED, workload)


def test_a_trial_that_ran_has_a_time():
    failed = TEMPLATE_FORM.recipe(PARAMETERS)
    TEMPLATE_FORM.check_stored(failed, ran=False)
    with pytest.raises(FormError, match="its time is missing"):
        TEMPLATE_FORM.check_stored(failed, ran=True)


def test_a_damaged_line_is_told(tmp_path):
    path = tmp_path / TEMPLATE_FORM.file_name
    path.write_text(json.dumps(STORED) + "\n{\n")
    with pytest.raises(InputError, match=r"Line 2 of .*parameters.jsonl cannot be used"):
        TEMPLATE_FORM.read(path)
