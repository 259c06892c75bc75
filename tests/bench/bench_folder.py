"""Where the benches are, and the settings of a project that holds a copy of them."""

from pathlib import Path

from small_project import QUICK

ROOT = Path(__file__).parents[2]
INI = f"""
[tool.pytest.ini_options]
addopts = "--strict-markers {QUICK} -p no:benchmark -p no:platformdirs"
filterwarnings = ["error"]
gpu_device = "emulated"
"""
