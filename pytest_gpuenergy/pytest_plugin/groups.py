"""Which items are to be measured on one board, so that their kernels and caps compare."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.pytest_plugin.names import DEVICE_FIXTURE, POWERCAP_FIXTURE
from pytest_gpuenergy.record import WorkloadInfo
from pytest_gpuenergy.workloads import Workload

Seen = dict[tuple[str, str], dict[int, int]]
"""The values of each parameter of each test, by identity, numbered as they appear."""


def group_of(item: pytest.Item, seen: Seen) -> str | None:
    """The name of an item's group; None for an item that is not ours.

    A mark ``xdist_group`` names the group. Otherwise, the items of one workload are a group if a
    parameter of the test is the workload, or has it as its ``workload``. Where none is, the group
    has all items of a test that differ only in power cap and kernel.
    """
    if DEVICE_FIXTURE not in getattr(item, "fixturenames", ()):
        return None
    marks = {_name_of(mark) for mark in item.iter_markers("xdist_group")}
    if marks:
        return f"group {'_'.join(sorted(marks))}"
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    for value in params.values():
        if (workload := _workload_of(value)) is not None:
            return f"workload {workload}"
    test = item.nodeid.partition("[")[0]
    if callspec is None:
        return f"test {test}"
    rest = [
        f"{name}{_number(seen.setdefault((test, name), {}), value)}"  # values may be large
        for name, value in params.items()
        if name not in ("powercap", POWERCAP_FIXTURE) and not isinstance(value, AnyKernel)
    ]
    return f"test {test}[{', '.join(rest)}]"


def groups_of(items: Sequence[pytest.Item]) -> tuple[list[str], list[int]]:
    """The names of all groups, and for each item the place of its own; -1 for none."""
    places: dict[str, int] = {}
    seen: Seen = {}
    of_items = [
        -1 if (name := group_of(item, seen)) is None else places.setdefault(name, len(places))
        for item in items
    ]
    return list(places), of_items


def _number(known: dict[int, int], value: object) -> int:
    return known.setdefault(id(value), len(known))


def _name_of(mark: pytest.Mark) -> str:
    return str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))


def _workload_of(value: object) -> str | None:
    if isinstance(value, Workload):
        return value.name
    found = getattr(value, "workload", None)
    return found.name if isinstance(found, Workload | WorkloadInfo) else None
