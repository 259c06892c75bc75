"""Where the benches are, and the settings of a project that holds a copy of them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
INI = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "-p", "no:hypothesispytest", "-p", "no:anyio"]
filterwarnings = ["error"]
gpu_device = "emulated"
"""
