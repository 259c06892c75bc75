"""``--gpuenergy-verify-only``: an item ends, and passes, once its kernel is verified."""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn

import pytest

from pytest_gpuenergy.pytest_plugin.names import FIGURES
from pytest_gpuenergy.record import VERIFIED

_ENDED = pytest.StashKey[bool]()


def end_verified(item: pytest.Item) -> NoReturn:
    """End an item whose kernel is correct: the rest of its test may need figures."""
    item.stash[_ENDED] = True
    item.user_properties.append((FIGURES, VERIFIED))
    pytest.skip(VERIFIED)


class VerifyOnlyPlugin:
    """Lets items pass that have ended because their kernel is verified."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """An item that ends in a fixture remains skipped, because its test has not begun."""
        report = yield
        ended = item.stash.get(_ENDED, False) and call.excinfo is not None
        if call.when == "call" and ended and report.skipped:
            report.outcome, report.longrepr = "passed", None
        return report
