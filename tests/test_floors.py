"""Each package imports only from the floors below its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_gpuenergy

PACKAGE = Path(pytest_gpuenergy.__file__).parent
FLOORS = (
    {"support"},
    {"record"},
    {"workloads"},
    {"kernels"},
    {"report"},
    {"devices"},
    {"emulator"},
    {"opening"},
    {"control", "energy"},
    {"advice", "gate"},
    {"engine"},
    {"tuning"},
    {"ab", "conv", "fleet", "gemm", "replay", "tvm"},
    {"search"},
    {"tuners"},
    {"contenders"},
    {"commands", "pytest_plugin"},
    {"cli", "plugin"},
)
"""From the ground up. What shares a floor imports nothing of its neighbours."""

STANDS_ON = {
    "record": {"support"},
    "report": {"record", "support"},
    "advice": {"record", "report", "support"},
    "gate": {"record", "report", "support"},
}
"""Packages that may not even use everything below them."""


def imported(path: Path) -> Iterator[str]:
    """The packages of ours that a module imports, at the top or within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            first, _, rest = name.partition(".")
            if first == PACKAGE.name and rest:
                yield rest.partition(".")[0]


def allowed(package: str) -> set[str]:
    if package in STANDS_ON:
        return STANDS_ON[package]
    level = next(level for level, floor in enumerate(FLOORS) if package in floor)
    return set().union(*FLOORS[:level])


@pytest.mark.parametrize("package", sorted(set().union(*FLOORS)))
def test_no_module_imports_from_its_own_floor_or_above(package: str) -> None:
    paths = [PACKAGE / f"{package}.py", *(PACKAGE / package).rglob("*.py")]
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in filter(Path.exists, paths)
        for name in imported(path)
        if name not in allowed(package) | {package}
    }
    assert found == set()


def test_every_package_has_a_floor() -> None:
    names = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    names |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert names == set().union(*FLOORS)


def test_a_report_can_be_read_without_devices_kernels_and_numpy() -> None:
    code = "import sys, pytest_gpuenergy.report; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    above = set().union(*FLOORS) - {"record", "report", "support"}
    assert loaded & {*(f"{PACKAGE.name}.{name}" for name in above), "numpy", "pynvml"} == set()
