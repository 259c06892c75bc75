"""Each package imports only what packages on the floors below its own declare."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
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
    {"ab", "fleet", "replay", "tuners"},
    {"search"},
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


ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.pyi")}
"""Packages that declare their names, in a stub beside their ``__init__``."""

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


METHODS = {
    *("exists", "is_file", "is_dir", "is_symlink", "is_socket", "is_fifo", "is_mount"),
    *("is_block_device", "is_char_device", "is_junction", "samefile"),
}
FUNCTIONS = {"exists", "lexists", "isfile", "isdir", "islink", "ismount", "samefile"}


ASKS = re.compile(rf"\.(?:{'|'.join(METHODS | FUNCTIONS)})\(")


@dataclass
class Source:
    """What the text of a module says.

    Attributes:
        imports: the modules of ours, and the names from them, that it imports, also in functions,
            or that it takes from a room that it imports as a whole.
        declared: the modules that it imports names from at its top, by name.
        names: the names that it assigns, defines or imports at its top.
        looks: the lines with a call that asks for the kind of a file.
    """

    imports: list[tuple[str, str]]
    declared: dict[str, str]
    names: set[str]
    looks: list[int]


@functools.cache
def source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    module = ast.parse(text)
    found = Source([], {}, set(), [])
    for node in statements(module):
        if isinstance(node, ast.ImportFrom):
            found.imports += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found.imports += [(alias.name, "") for alias in node.names]
    whole = {
        alias.asname or alias.name: f"{PACKAGE.name}.{alias.name}"
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE.name
        for alias in node.names
        if alias.name in ROOMS
    }
    found.imports += [
        (whole[node.value.id], node.attr)
        for node in (ast.walk(module) if whole else ())
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id in whole and node.attr != "__file__"
    ]
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found.names |= {alias.asname or alias.name for alias in node.names}
            found.declared |= {alias.name: node.module or "" for alias in node.names}
        else:
            found.names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    if ASKS.search(text):
        found.looks += looks(module)
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node; expressions, which are most of a text, are not looked through."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        inner = getattr(node, name, ())
        for one in inner if isinstance(inner, list) else ():
            yield one
            yield from statements(one)


def looks(module: ast.Module) -> Iterator[int]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(called := node.func, ast.Attribute):
            of_os_path = isinstance(called.value, ast.Attribute) and called.value.attr == "path"
            if called.attr in (FUNCTIONS if of_os_path else METHODS):
                yield called.lineno


def imported(path: Path) -> Iterator[str]:
    """The packages of ours that a module imports, at the top or within functions."""
    for module, _ in source(path).imports:
        first, _, rest = module.partition(".")
        if first == PACKAGE.name and rest:
            yield rest.partition(".")[0]


@functools.cache
def declared(room: str) -> dict[str, str]:
    """The module that defines each name a room declares."""
    names = source(PACKAGE / room / "__init__.pyi").declared
    return {name: f"{PACKAGE.name}.{room}.{module}" for name, module in names.items()}


def allowed(package: str) -> set[str]:
    if package in STANDS_ON:
        return STANDS_ON[package]
    level = next(level for level, floor in enumerate(FLOORS) if package in floor)
    return set().union(*FLOORS[:level])


@pytest.mark.parametrize("package", sorted(set().union(*FLOORS)))
def test_no_module_imports_from_its_own_floor_or_above(package):
    paths = [PACKAGE / f"{package}.py", *(PACKAGE / package).rglob("*.py")]
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in filter(Path.exists, paths)
        for name in imported(path)
        if name not in allowed(package) | {package}
    }
    assert found == set()


def test_every_package_has_a_floor():
    names = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    names |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert names == set().union(*FLOORS)


def test_the_package_looks_at_files_in_one_way():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(MODULES.values())
        for line in source(path).looks
    ]
    assert found == [], "use pytest_gpuenergy.support.files"


@pytest.mark.slow
def test_rooms_import_from_each_other_what_they_declare():
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "bench").rglob("*.py")]
    found = [
        f"{path.relative_to(PACKAGE.parent)}: {name} of {module}"
        for path in files
        for module, name in source(path).imports
        if (parts := module.split("."))[0] == PACKAGE.name
        if len(parts) > 1 and parts[1] in ROOMS
        if not path.is_relative_to(PACKAGE / parts[1])
        if (path.name, parts[1]) != ("plugin.py", "pytest_plugin")  # it is that room's front
        if len(parts) > 2 or name not in declared(parts[1])
    ]
    assert found == []


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_what_a_room_declares_exists(room):
    missing = [
        name for name, module in declared(room).items() if name not in source(MODULES[module]).names
    ]
    assert missing == []


def test_no_modules_import_each_other_in_a_circle():
    names = {room: declared(room) for room in ROOMS}
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for importer, path in MODULES.items():
        for module, name in source(path).imports:
            room = module.removeprefix(f"{PACKAGE.name}.")
            whole = f"{module}.{name}"
            used = names[room].get(name, whole) if room in ROOMS else module
            used = whole if whole in MODULES and name not in names.get(room, {}) else used
            if used in MODULES and used not in (importer, PACKAGE.name):
                graph[importer].add(used)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_two_modules_and_no_two_classes_have_one_name():
    names = [path.name for path in MODULES.values() if path.name != "__init__.py"]
    assert [name for name, count in Counter(names).items() if count > 1] == ["_compat.py"]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in MODULES.values())
    classes = Counter(n.name for tree in trees for n in tree.body if isinstance(n, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []


def test_a_report_can_be_read_without_devices_kernels_and_numpy():
    code = "import sys; from pytest_gpuenergy.report import load_report; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    above = set().union(*FLOORS) - {"record", "report", "support"}
    assert loaded & {*(f"{PACKAGE.name}.{name}" for name in above), "numpy", "pynvml"} == set()
