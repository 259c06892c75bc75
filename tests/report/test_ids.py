"""Ids of a report, in expressions for pytest's ``-k``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.record import KernelInfo
from pytest_gpuenergy.report import with_item_names

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("expression", "changed"),
    [
        ("scale-b1-450W", "(test_scale[b1-450W])"),
        ("scale-b1", "(test_scale[b1-200W] or test_scale[b1-450W])"),
        ("not (scale-b1-200W and x)", "not ((test_scale[b1-200W]) and x)"),
        ("b1-450W or test_scale", "b1-450W or test_scale"),
        ("nothing and 450W", "nothing and 450W"),
        ("", ""),
    ],
)
def test_ids_become_the_names_of_their_items(measured: Make, expression: str, changed: str) -> None:
    label = KernelInfo("b1", "0" * 64, "source")
    items = [
        replace(
            measured(None, cap, workload="scale"),
            node_id=f"test_scale.py::test_scale[b1-{watts}W]",
            kernel=label,
        )
        for cap, watts in ((1, 200), (3, 450))
    ]
    assert with_item_names(expression, items) == changed


@given(st.text())
def test_without_measurements_an_expression_stays_as_it_is(expression: str) -> None:
    assert with_item_names(expression, []) == expression
