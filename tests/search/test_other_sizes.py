"""Verification on sizes that a spec does not list."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from kernel_specs import spec_with, write

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import Bench, Result, between, has_others, other_sizes, read_spec

NUMBERS = st.integers(1, 1 << 20)
LISTED = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4).map(
    lambda rows: [{"M": m, "N": n} for m, n in rows]
)


@given(LISTED, st.integers(0, 9))
def test_sizes_lie_between_the_listed_ones_and_keep_their_divisors(
    listed: list[dict[str, int]], seed: int
) -> None:
    found = between(listed, random.Random(seed))
    for name, value in found.items():
        values = [sizes[name] for sizes in listed]
        assert min(values) <= value <= max(values)
        assert value % math.gcd(*values) == 0


@given(NUMBERS, NUMBERS, st.integers(1, 50), st.integers(2, 9), st.integers(0, 9))
def test_relations_of_the_listed_sizes_are_kept(
    first: int, second: int, more: int, times: int, seed: int
) -> None:
    listed = [{"N": n, "MORE": n + more, "TIMES": n * times} for n in (first, second, first + 1)]
    found = between(listed, random.Random(seed))
    assert found["MORE"] == found["N"] + more
    assert found["TIMES"] == found["N"] * times


def test_seeds_give_different_sizes() -> None:
    listed = [{"N": 4000}, {"N": 501}]
    assert len({between(listed, random.Random(seed))["N"] for seed in range(50)}) > 40


@pytest.mark.parametrize(
    ("sizes", "has"),
    [
        ([{"N": 4000}], False),
        ([{"N": 4000}, {"N": 501}], True),
        ([{"N": 64}, {"N": 128}], False),
        ([{"N": 64}, {"N": 192}], True),
    ],
)
def test_a_spec_allows_others_where_there_are_any_between(
    sizes: list[dict[str, int]], has: bool, tmp_path: Path
) -> None:
    spec = read_spec(write(tmp_path, spec_with(sizes=sizes)))
    assert has_others(spec) is has
    assert (other_sizes(spec, random.Random(0), lambda _: True) is not None) is has


def test_a_spec_can_refuse_others(tmp_path: Path) -> None:
    assert not has_others(read_spec(write(tmp_path, spec_with(other_sizes=False))))


def test_sizes_that_a_shape_cannot_have_are_not_used(tmp_path: Path) -> None:
    scalar = {"name": "n", "dtype": "int32", "value": "N // ((N - 4000) * (N - 501) + 1)"}
    by = {"name": "by", "dtype": "float32", "value": 2.5}
    grid = {"grid": ["(N - 4000) * (N - 501) + 1"], "block": [32], "constants": {"ITEMS": 4}}
    spec = read_spec(write(tmp_path, spec_with(scalars=[by, scalar], launch=grid)))
    assert other_sizes(spec, random.Random(0), lambda _: True) is None


def evaluated(path: Path) -> Result:
    with EmulatedDevice() as device:
        spec = read_spec(path)
        return Bench(spec, device, Metric.TIME).evaluate(spec.baseline)


@pytest.mark.slow
class TestOnTheEmulatedGpu:
    def test_the_result_says_on_which_a_variant_was_verified(self, tmp_path: Path) -> None:
        found = evaluated(write(tmp_path))
        assert found.outcome == "correct"
        assert found.other_sizes is not None
        assert 501 <= found.other_sizes["N"] <= 4000
        assert len(found.correctness) == 3

    def test_the_baseline_decides_which_it_can_do(self, tmp_path: Path) -> None:
        only = "if (n != 4000 && n != 501) return;"
        source = spec_with()["source"].replace("int first", f"{only} int first")
        found = evaluated(write(tmp_path, spec_with(source=source)))
        assert (found.outcome, found.other_sizes) == ("correct", None)
        assert len(found.correctness) == 2

    def test_a_reference_that_fails_for_others_is_not_used_for_them(self, tmp_path: Path) -> None:
        reference = {"y": "by * x if N in (4000, 501) else 1 // 0"}
        found = evaluated(write(tmp_path, spec_with(reference=reference)))
        assert (found.outcome, found.other_sizes) == ("correct", None)
