"""The emulated GPU on which the templates' kernels are verified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device
