"""The study of energy finds the terms that it was made of."""

from __future__ import annotations

import pytest
from convolution_energy import Terms, counted, fit, floors
from convolution_results import Layer
from convolution_sweep import CARD

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import ImplicitParameters
from pytest_gpuenergy.workloads import Conv2d

TERMS = Terms(static_w=150.0, product_pj=2.0, element_pj=50.0, error=0.0, kernels=0)


def measured(number: int, us: float) -> Layer:
    """A layer whose energy consists of `TERMS`; cuDNN takes twice as much."""
    conv = Conv2d.of(f"drawn{number:02}", 1, 30, 30, 8 * number, 40, 3, 3, 1, 1, mode="3xtf32")
    tiles = {one.tile_c: one for one in ImplicitParameters.fitting(conv, CARD)}
    chosen = [*tiles.values()][number % len(tiles)]
    operations, elements = counted(chosen, conv)
    mj = 1e-3 * us * TERMS.static_w
    mj += 1e-9 * (operations * TERMS.product_pj + elements * TERMS.element_pj)
    kernel = {
        "template": "implicit",
        "numbers": chosen.numbers,
        "us": us,
        "steady_us": us,
        "mj": mj,
    }
    return Layer(conv, {}, [kernel], {"nchw": {"mj": 2 * mj}})


def test_terms_are_found_and_the_least_energy_has_no_copies():
    layers = [measured(number, us) for number, us in enumerate((5.0, 9.0, 7.0, 30.0), 2)]
    found = fit(layers)
    assert (found.static_w, found.product_pj, found.element_pj) == pytest.approx((150, 2, 50))
    assert found.error < 1e-6
    assert found.least_mj(layers[0].conv) == pytest.approx(
        3 * layers[0].conv.flops * 2e-9 / (1 - 150 / 700)
    )
    *_, row = floors(layers, found).splitlines()
    assert row.startswith("| drawn | 4 | 0.50 | 0.")
    with pytest.raises(InputError, match="too few energies"):
        fit(layers[:2])
