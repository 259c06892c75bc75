"""The corpus of wrong and right kernels, and the command that judges it."""

from __future__ import annotations

import re
from collections import Counter

import corpus  # noqa: F401 -- it puts the next one on the path
import numpy as np
import pytest
from entries import kinds, read_corpus

ENTRIES = read_corpus()
FAMILIES = {entry.family: entry for entry in reversed(ENTRIES)}


def test_all_kernels_are_different_and_have_a_sentence() -> None:
    ran = Counter((entry.source, entry.launches, entry.scalars) for entry in ENTRIES)
    assert [source for source, count in ran.items() if count > 1] == []
    assert [one.name for one in ENTRIES if not re.fullmatch(r"[A-Z0-9].*\.", one.why)] == []


def test_each_kind_has_a_wrong_kernel() -> None:
    assert {entry.kind for entry in ENTRIES if not entry.right} <= set(kinds())


@pytest.mark.parametrize("family", FAMILIES)
def test_launches_take_what_is_declared(family: str) -> None:
    for entry in ENTRIES:
        if entry.family == family:
            named = (*entry.inputs, *entry.outputs, *entry.workspaces, *entry.scalars)
            known = {one.name for one in named}
            taken = {name for launch in entry.launches for name in launch.arguments}
            assert taken <= known
            assert all(f"{launch.entry}(" in entry.source for launch in entry.launches)


@pytest.mark.parametrize("family", FAMILIES)
def test_references_return_the_declared_outputs(family: str) -> None:
    entry = FAMILIES[family]
    draw = np.random.default_rng(0)
    inputs = {}
    for one in entry.inputs:
        low, high = entry.ranges.get(one.name, (0, 2))
        inputs[one.name] = draw.uniform(low, high, one.shape)
        if np.dtype(one.dtype.replace("bfloat16", "float32")).kind != "f":
            inputs[one.name] = inputs[one.name].astype(one.dtype)
    result = entry.reference(inputs)
    assert {name: value.shape for name, value in result.items()} == {
        one.name: one.shape for one in entry.outputs
    }
