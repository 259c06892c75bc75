"""Which items go to one board."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.pytest_plugin import item_groups

if TYPE_CHECKING:
    from conftest import Project

MODULE = """
import pytest
from dataclasses import dataclass
from parts import LAUNCH, SCALE, SOURCE
from pytest_gpuenergy.kernels.kernel_files import load_kernel
from pytest_gpuenergy.workloads import CASES, Workload

@dataclass
class Candidate:
    workload: Workload
    rank: int

ONE, TWO = (load_kernel(SOURCE, **LAUNCH) for _ in range(2))

@pytest.mark.parametrize("case", [CASES["case1"], CASES["case2"]], ids=str)
def test_workload(case, powercap, energy_benchmark):
    pass

@pytest.mark.parametrize("one", [Candidate(CASES["case2"], 1), Candidate(SCALE, 1)], ids=["c", "d"])
def test_candidate(one, powercap, energy_benchmark):
    pass

@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kernel", [ONE, TWO], ids=["one", "two"])
def test_sizes(size, kernel, powercap, energy_benchmark):
    pass

@pytest.mark.xdist_group("mine")
@pytest.mark.parametrize("size", [1, 2])
def test_marked(size, energy_benchmark):
    pass

def test_single(powercap, energy_benchmark):
    pass

@pytest.mark.parametrize("size", [1, 2])
def test_plain(size):
    pass
"""


@pytest.fixture
def groups(project: Project) -> dict[str, str | None]:
    """The group of each item of the module, by its name."""
    project.ini('markers = ["xdist_group(name)"]')
    project.module(MODULE)
    items, _ = project.pytester.inline_genitems("--powercap", "1,2")
    names, places = item_groups(items)
    return {
        item.name: None if place < 0 else names[place]
        for item, place in zip(items, places, strict=True)
    }


def members(groups: dict[str, str | None], name: str) -> set[str]:
    return {item for item, group in groups.items() if group == name}


def test_the_items_of_a_workload_are_a_group(groups):
    found = sorted(str(group) for item, group in groups.items() if "workload" in item)
    assert found == ["workload case1"] * 2 + ["workload case2"] * 2
    assert members(groups, "workload case2") > {"test_candidate[c-200W]", "test_candidate[c-325W]"}
    assert groups["test_candidate[d-200W]"] == "workload scale"


def test_without_a_workload_caps_and_kernels_are_a_group(groups):
    first = groups["test_sizes[one-1-200W]"]
    assert first is not None
    assert members(groups, first) == {
        f"test_sizes[{kernel}-1-{cap}]" for kernel in ("one", "two") for cap in ("200W", "325W")
    }
    assert groups["test_single[200W]"] == groups["test_single[325W]"] != first


def test_a_mark_names_a_group(groups):
    assert members(groups, "group mine") == {"test_marked[1]", "test_marked[2]"}


def test_items_of_somebody_else_have_no_group(groups):
    assert {groups["test_plain[1]"], groups["test_plain[2]"]} == {None}
