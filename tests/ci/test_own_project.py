"""The workflow that the documentation offers to other projects, run on the emulated GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_project import BENCH, INI, LINE, PARTS, SLOWER

PAGE = Path(__file__).parents[2] / "docs/how-to/ci-own-project.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vl_convert") is None,
        reason="the page's charts need vl-convert-python",
    ),
]


def job() -> dict[str, Any]:
    (text,) = re.findall(r"^```yaml[^\n]*\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
    found: dict[str, Any] = yaml.safe_load(text)["jobs"]["bench"]
    return found


def run(folder: Path, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A step of the page's workflow, with its variables; both outputs are in ``stdout``."""
    (step,) = (step for step in job()["steps"] if step.get("id") == name)
    environment = {
        **os.environ,
        **job()["env"],
        "BENCH": "test_scale.py --powercap all",
        "BASELINE": "baseline.json",
        **variables,
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("gpu", ["v100", pytest.param("a100", marks=pytest.mark.thorough)])
@pytest.mark.usefixtures("machine_apart")
def test_it_measures_under_the_caps_of_the_board_and_finds_a_regression(tmp_path, gpu):
    (tmp_path / "pyproject.toml").write_text(INI)
    (tmp_path / "test_scale.py").write_text(BENCH)
    (tmp_path / "parts.py").write_text(PARTS)
    device = f"emulated:{gpu}"
    measured = run(tmp_path, "measure", GPU_DEVICE=device)
    assert measured.returncode == 0, measured.stdout
    assert "4 passed, 1 skipped" in measured.stdout
    assert "There is no baseline" in run(tmp_path, "gate").stdout
    shutil.copy(tmp_path / "gpuenergy-out/report.json", tmp_path / "baseline.json")
    (tmp_path / "parts.py").write_text(PARTS.replace(LINE, SLOWER))
    assert run(tmp_path, "measure", GPU_DEVICE=device).returncode == 0
    assert run(tmp_path, "gate").returncode == 1
    assert run(tmp_path, "summary").returncode == 0
    assert "# Failed: run " in (tmp_path / "summary.md").read_text("utf-8")
    assert run(tmp_path, "restore").returncode == 0
