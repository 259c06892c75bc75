"""A second signal while an interrupted run writes its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

CONFTEST = """
import os, signal
import pytest

@pytest.hookimpl(tryfirst={first})
def {hook}():
    os.kill(os.getpid(), signal.{name})
"""
INTERRUPTED = """
import os, signal
from parts import LAUNCH, SCALE, SOURCE

def test_scale(powercap, load_kernel, energy_benchmark):
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("hook", ["pytest_terminal_summary", "pytest_unconfigure"])
@pytest.mark.parametrize(
    "name",
    ["SIGINT", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("SIGTERM", "SIGHUP"))],
)
def test_the_report_is_written_all_the_same(project: Project, hook: str, name: str) -> None:
    project.module(INTERRUPTED)
    project.pytester.makeconftest(CONFTEST.format(hook=hook, name=name, first=True))
    result = project.run_apart("--powercap", "1", "--gpuenergy-json", "r.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    shown = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in shown
    assert (project.path / "r.json").exists()
