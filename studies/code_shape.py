"""Counts how finely the package is cut: modules, single-use helpers, lazy imports, repeated names.

python studies/code_shape.py
git worktree add /tmp/before 8678e3bf; python studies/code_shape.py /tmp/before
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = "pytest_gpuenergy"


def counts(root: Path) -> dict[str, float]:
    """Return each count of the package in ``root``, a checkout, by what it says."""
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in (root / PACKAGE).rglob("*.py")
        if path.name != "__init__.py"
    }
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths.values())
    importers = defaultdict(set)
    lazy = 0
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    importers[whole if whole in trees else node.module].add(name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (one for one in ast.walk(node) if isinstance(one, ast.ImportFrom))
                lazy += sum((one.module or "").startswith(PACKAGE) for one in inner)
    files = Counter(path.name for path in paths.values())
    classes = Counter(
        node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    return {
        "modules": len(paths),
        "lines": lines,
        "lines a module": round(lines / len(paths)),
        "private functions that are called once": sum(map(_called_once, trees.values())),
        "imports of ours inside functions": lazy,
        "modules with one importer in their room": sum(len(importers[name]) == 1 for name in trees),
        "file names used twice": sum(count > 1 for count in files.values()),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "most modules in one folder": max(Counter(path.parent for path in paths.values()).values()),
    }


def _called_once(tree: ast.Module) -> int:
    """Count the private functions of a module that it names once besides their definition."""
    private = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_") and node.name[1] != "_"
    ]
    used: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
    return sum(used[name] == 1 for name in private)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    for name, count in counts(parser.parse_args().root).items():
        print(f"| {name} | {count} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
