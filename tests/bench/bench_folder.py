"""Where the benches are, and the settings of a project that holds a copy of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_project import LEAN

ROOT = Path(__file__).parents[2]
INI = f"""
[tool.pytest.ini_options]
addopts = ["--strict-markers", {LEAN}]
filterwarnings = ["error"]
gpu_device = "emulated"
gpuenergy_preheat = "0"
"""


def bench_folder(pytester: pytest.Pytester, named: str) -> pytest.Pytester:
    """A project with one of the benches, such as ``bench/test_gemm.py``."""
    (pytester.path / "bench").mkdir()
    for name in ("conftest.py", named):
        shutil.copyfile(ROOT / name, pytester.path / name)
    (pytester.path / "pyproject.toml").write_text(INI)
    return pytester


def ids(folder: pytest.Pytester, *arguments: str) -> list[str]:
    """What is between the brackets of the ids of the items that these arguments select."""
    result = folder.runpytest_inprocess("--collect-only", "-q", *arguments)
    return [line.partition("[")[2].rstrip("]") for line in result.stdout.lines if "::" in line]
