"""Hooks that a project's ``conftest.py`` may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuenergy.record.measurement import Measurement


@pytest.hookspec
def pytest_gpuenergy_deselected(config: pytest.Config, measurement: Measurement) -> bool:  # type: ignore[empty-body]
    """Report whether an option of the project leaves out a kernel that the baseline has.

    It is called for kernels of the baseline that the run did not collect, such as those that an
    option ``--kernels`` left out of the parameters of a test. Without it, they are missing.
    """
