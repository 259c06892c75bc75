"""What a covariate explains of the differences between runs."""

from __future__ import annotations

import numpy as np
import pytest
from aa_covariates import clock_spread, remaining
from gate_simulation import Session, drawn_measurement
from msgspec.structs import replace


def test_what_goes_with_a_covariate_is_removed_for_all_kernels_together():
    rng = np.random.default_rng(1)
    kernels = []
    for level in (0.0, 3.0):
        clock = rng.normal(level, 0.01, 200)
        kernels.append(np.stack([level + 2 * clock + rng.normal(0, 0.001, 200), clock], axis=1))
    assert remaining(kernels, 0, None)[0] == pytest.approx(0.02, rel=0.1)
    sd, slope = remaining(kernels, 0, 1)
    assert sd == pytest.approx(0.001, rel=0.1)
    assert slope == pytest.approx(2.0, rel=0.02)


def test_clocks_are_compared_between_kernels_of_one_workload():
    made = drawn_measurement(np.random.default_rng(1))("k01", Session(0.0, 0.0), 1.0)
    rows = [
        replace(made, effective_sm_clock_mhz=1980.0 * clock, cap_binding=False)
        for clock in (1.0, 1.01)
    ]
    alone = replace(rows[0], workload=replace(rows[0].workload, name="alone"))
    capped = replace(rows[0], effective_sm_clock_mhz=1000.0, cap_binding=True)
    kernels, _, largest = clock_spread([*rows, alone, capped])
    assert kernels == 2
    assert largest == pytest.approx(np.log(1.01))
