"""How runs of unchanged kernels differ at the same temperature."""

from __future__ import annotations

import numpy as np
import pytest
from aa_temperature import difference
from gate_simulation import Session, drawn_measurement
from msgspec.structs import replace

BASE = replace(
    drawn_measurement(np.random.default_rng(1))("k01", Session(0.0, 0.0), 1.0),
    energy_mj=1.02,
    raw_energy_mj=1.0,
    temperature_c=50.0,
    settling_error=0.003,
    energy_change_per_k=0.004,
)


def test_what_the_temperature_explains_is_no_difference_at_the_same_one():
    warmer = replace(BASE, raw_energy_mj=1.0 * np.exp(0.008), temperature_c=52.0)
    found = difference(BASE, warmer)
    assert found is not None
    assert found.apart_k == 2.0
    assert found.measured == pytest.approx(0.008)
    assert found.at_same_temperature == pytest.approx(0.0, abs=1e-12)
    assert found.declared_sd == pytest.approx(0.003 * np.sqrt(2))


def test_a_card_without_a_temperature_has_no_such_difference():
    assert difference(BASE, replace(BASE, temperature_c=None)) is None
