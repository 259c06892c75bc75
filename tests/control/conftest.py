"""The card whose settings the tests change."""

from __future__ import annotations

import pytest
from power_cards import PRIOR_MW, write

from pytest_gpuenergy.emulator import EmulatedDevice


@pytest.fixture
def card(device: EmulatedDevice) -> EmulatedDevice:
    """A card whose owner has set a limit, and whose clocks nobody has locked."""
    write(device, PRIOR_MW)
    return device
