"""What a search may try is right on any sizes: drawn from all parameters that are offered."""

from __future__ import annotations

from typing import Any

import pytest
from gemm_products import aligned_products, products
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.tuners import TEMPLATES
from pytest_gpuenergy.tuning import CardResources

SMALL_HOPPER = CardResources(90, 2, 128, 2048, 228 << 10, 227 << 10)
"""Its blocks compute several tiles of small products, or share them."""


@st.composite
def offered(draw: st.DrawFn, template: str) -> tuple[Any, Any]:
    """A product, and parameters of a template for it."""
    kind: Any = TEMPLATES[template]
    modes = st.sampled_from(kind.modes)
    gemm = draw((aligned_products if "wgmma" in template else products)(modes, 140))
    found = list(kind.fitting(gemm, SMALL_HOPPER))
    return gemm, draw(st.sampled_from(found)) if found else None


@pytest.mark.slow
@pytest.mark.thorough
@settings(max_examples=5, suppress_health_check=[*HealthCheck])
@given(st.data())
@pytest.mark.parametrize("template", ["simt", "mma", "wgmma", "wgmma_tf32"])
def test_any_parameters_that_are_offered_are_right(
    device: EmulatedDevice, template: str, data: st.DataObject
) -> None:
    gemm, chosen = data.draw(offered(template))
    if chosen is not None:  # short sums in 3xtf32 are left to another template
        verify_on_device(device, chosen.kernel(gemm), gemm)
