"""The page about the architecture names what exists, and its walks lead downwards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_gpuenergy"
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
MODULE = re.compile(r"`([\w/]+\.py)`")
WALKS = PAGE.partition("## Eight walks")[2].partition("\n## ")[0].split("\n### ")[1:]


def _floors() -> list[list[str]]:
    """Packages and modules of each floor, top floor first."""
    table = PAGE.partition("| floor |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return [re.findall(r"`(\w+)`", row.rpartition(" | ")[2]) for row in rows]


def _floor(module: str) -> int:
    package = module.removesuffix(".py").partition("/")[0]
    (floor,) = [number for number, packages in enumerate(_floors()) if package in packages]
    return floor


def test_there_are_eight_walks():
    assert len(WALKS) == 8


def test_every_module_named_exists():
    named = set(MODULE.findall(PAGE))
    assert named
    assert {module for module in named if not (PACKAGE / module).is_file()} == set()


def test_every_package_has_a_floor():
    named = [package for floor in _floors() for package in floor]
    found = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert sorted(named) == sorted(found - {"__init__"})


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition("\n")[0])
def test_a_step_of_a_walk_leads_downwards(walk):
    for step in re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]:
        floors = [_floor(module) for module in MODULE.findall(step)]
        assert floors
        assert floors == sorted(floors), step
