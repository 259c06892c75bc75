"""Every study still starts: what it imports of the package is there, and its options are read."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"
SCRIPTS = sorted(
    str(path.relative_to(STUDIES))
    for path in STUDIES.rglob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_describes_itself(script, monkeypatch, capsys):
    path = STUDIES / script
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split()[:3]
    assert " ".join(first) in " ".join(capsys.readouterr().out.split())
