"""Shows our errors in tests as the sentence they are, without a traceback of our modules."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytest_gpuenergy
from pytest_gpuenergy.support import GpuEnergyError


class BadOptionError(pytest.Collector.CollectError):
    """An option cannot work, which shows at collection: the run ends as on any usage error."""


_OURS = Path(pytest_gpuenergy.__file__).parent


def shorten(
    report: pytest.TestReport | pytest.CollectReport,
    excinfo: pytest.ExceptionInfo[BaseException],
    config: pytest.Config,
) -> None:
    """Replace the traceback in a report of one of our errors by the place and the sentence.

    The traceback remains where ``--tb`` or ``--full-trace`` asks for one.
    """
    error = excinfo.value
    asked = config.getoption("tbstyle") != "auto" or config.getoption("fulltrace")
    if not report.failed or asked or not isinstance(error, GpuEnergyError):
        return
    try:
        pytest.fail(f"{_place(excinfo, config.rootpath)}{error}", pytrace=False)
    except pytest.fail.Exception:
        report.longrepr = pytest.ExceptionInfo.from_current().getrepr(style="value")


def _place(excinfo: pytest.ExceptionInfo[BaseException], root: Path) -> str:
    """``test_scale.py:12: ``, the last line of the user's own that led to the error; or nothing."""
    for entry in reversed(excinfo.traceback):
        path = Path(entry.path)
        is_own = path.is_relative_to(root) and not path.is_relative_to(_OURS)
        if is_own and "site-packages" not in path.parts:
            return f"{path.relative_to(root)}:{entry.lineno + 1}: "
    return ""
