"""Where the benches are, and the settings of a project that holds a copy of them."""

from pathlib import Path

from small_project import LEAN

ROOT = Path(__file__).parents[2]
INI = f"""
[tool.pytest.ini_options]
addopts = ["--strict-markers", {LEAN}]
filterwarnings = ["error"]
gpu_device = "emulated"
"""
