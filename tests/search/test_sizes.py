"""Expressions of sizes, and sizes that a spec does not list."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from kernel_specs import spec_with, write

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import (
    Result,
    SearchBench,
    allows_other_sizes,
    draw_between,
    draw_other_sizes,
    evaluate,
    read_spec,
    used_names,
)
from pytest_gpuenergy.support import InputError

NAMES = {"N": 1000, "block_x": 128, "BLOCK": 96, "SCALE": 0.5, "FLAG": True}

texts = st.recursive(
    st.integers(0, 999).map(str) | st.sampled_from(["N", "block_x", "BLOCK"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda one: f"(-{one})"),
        st.tuples(st.sampled_from(["min", "max", "ceil_div"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
    ),
    max_leaves=8,
)


def told(text: str) -> str:
    """Return the sentence that refuses an expression; empty if it is accepted."""
    try:
        evaluate(text, NAMES)
    except InputError as error:
        return str(error)
    return ""


@given(texts)
def test_an_expression_has_the_value_that_python_gives_it(text):
    names = {**NAMES, "ceil_div": lambda a, b: -(-a // b)}
    try:
        right = eval(text, {"__builtins__": {"min": min, "max": max}}, names)
    except ZeroDivisionError:
        with pytest.raises(InputError, match="divides by 0"):
            evaluate(text, NAMES)
        return
    if abs(right) < 1 << 40:
        assert evaluate(text, NAMES) == right


@given(st.integers(-(1 << 40), 1 << 40))
def test_a_number_is_its_own_value(number):
    assert evaluate(number, {}) == number


@given(st.text(max_size=500))
def test_any_text_has_a_value_or_is_refused_in_one_sentence(text):
    said = told(text)
    assert said == "" or said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not an expression"),
        ("N +", "is not an expression"),
        ("N / 2", "only integers"),
        ("N ** 9", "only integers"),
        ("__import__('os')", "only integers"),
        ("N.real", "only integers"),
        ("ceil_div(N, b=2)", "only integers"),
        ("True", "only integers"),
        ("1.5", "only integers"),
        ("min(N)", "min takes two numbers"),
        ("ceil_div(N, 2, 3)", "ceil_div takes two numbers"),
        ("M", r"'M' is not a known name \(known: BLOCK, FLAG, N, SCALE, block_x\)"),
        ("SCALE", "SCALE is 0.5 instead of an integer"),
        ("FLAG", "FLAG is True instead of an integer"),
        ("ceil_div(N, 0)", "divides by 0"),
        ("N % (N - 1000)", "divides by 0"),
        ("99999999999 * 99999999999", "exceeds 2\\*\\*62"),
        ("(" * 300 + "N" + ")" * 300, "longer than 400 characters"),
    ],
)
def test_what_is_no_size_is_refused_in_one_sentence(text, why):
    with pytest.raises(InputError, match=why):
        evaluate(text, NAMES)


def test_names_are_found_without_those_of_functions():
    assert used_names("ceil_div(N, min(block_x, 7))") == {"N", "block_x"}
    assert used_names(7) == set()


NUMBERS = st.integers(1, 1 << 20)
LISTED = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4).map(
    lambda rows: [{"M": m, "N": n} for m, n in rows]
)


@given(LISTED, st.integers(0, 9))
def test_sizes_lie_between_the_listed_ones_and_keep_their_divisors(listed, seed):
    found = draw_between(listed, random.Random(seed))
    for name, value in found.items():
        values = [sizes[name] for sizes in listed]
        assert min(values) <= value <= max(values)
        assert value % math.gcd(*values) == 0


@given(NUMBERS, NUMBERS, st.integers(1, 50), st.integers(2, 9), st.integers(0, 9))
def test_relations_of_the_listed_sizes_are_kept(first, second, more, times, seed):
    listed = [{"N": n, "MORE": n + more, "TIMES": n * times} for n in (first, second, first + 1)]
    found = draw_between(listed, random.Random(seed))
    assert found["MORE"] == found["N"] + more
    assert found["TIMES"] == found["N"] * times


def test_seeds_give_different_sizes():
    listed = [{"N": 4000}, {"N": 501}]
    assert len({draw_between(listed, random.Random(seed))["N"] for seed in range(50)}) > 40


@pytest.mark.parametrize(
    ("sizes", "has"),
    [
        ([{"N": 4000}], False),
        ([{"N": 4000}, {"N": 501}], True),
        ([{"N": 64}, {"N": 128}], False),
        ([{"N": 64}, {"N": 192}], True),
    ],
)
def test_a_spec_allows_others_where_there_are_any_between(sizes, has, tmp_path):
    spec = read_spec(write(tmp_path, spec_with(sizes=sizes)))
    assert allows_other_sizes(spec) is has
    assert (draw_other_sizes(spec, random.Random(0), lambda _: True) is not None) is has


def test_a_spec_can_refuse_others(tmp_path):
    assert not allows_other_sizes(read_spec(write(tmp_path, spec_with(other_sizes=False))))


def test_sizes_that_a_shape_cannot_have_are_not_used(tmp_path):
    scalar = {"name": "n", "dtype": "int32", "value": "N // ((N - 4000) * (N - 501) + 1)"}
    by = {"name": "by", "dtype": "float32", "value": 2.5}
    grid = {"grid": ["(N - 4000) * (N - 501) + 1"], "block": [32], "constants": {"ITEMS": 4}}
    spec = read_spec(write(tmp_path, spec_with(scalars=[by, scalar], launch=grid)))
    assert draw_other_sizes(spec, random.Random(0), lambda _: True) is None


def evaluated(path: Path) -> Result:
    with EmulatedDevice() as device:
        spec = read_spec(path)
        return SearchBench(spec, device, Metric.TIME).evaluate(spec.baseline)


@pytest.mark.slow
class TestOnTheEmulatedGpu:
    def test_the_result_says_on_which_a_variant_was_verified(self, tmp_path):
        found = evaluated(write(tmp_path))
        assert found.outcome == "correct"
        assert found.other_sizes is not None
        assert 501 <= found.other_sizes["N"] <= 4000
        assert len(found.correctness) == 3

    def test_the_baseline_decides_which_it_can_do(self, tmp_path):
        only = "if (n != 4000 && n != 501) return;"
        source = spec_with()["source"].replace("int first", f"{only} int first")
        found = evaluated(write(tmp_path, spec_with(source=source)))
        assert (found.outcome, found.other_sizes) == ("correct", None)
        assert len(found.correctness) == 2

    def test_a_reference_that_fails_for_others_is_not_used_for_them(self, tmp_path):
        reference = {"y": "by * x if N in (4000, 501) else 1 // 0"}
        found = evaluated(write(tmp_path, spec_with(reference=reference)))
        assert (found.outcome, found.other_sizes) == ("correct", None)
