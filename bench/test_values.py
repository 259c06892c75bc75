"""How much energy a layer of Vicuna-7B takes with weights of other values.

pytest bench/test_values.py --powercap current
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuenergy import EnergyBenchmark

TOKENS, WIDTH = 1024, 4096
SCALE = 0.02
"""The published `initializer_range`."""

VALUES: dict[str, Callable[[Any], Any]] = {
    "random": lambda weights: weights,
    "four-bits": lambda weights: (weights / SCALE * 4).round().clamp(-8, 7) / 4 * SCALE,
    "half-zeros": lambda weights: weights.where(weights > 0, 0.0),
    "sorted": lambda weights: weights.sort().values,
    "zeros": lambda weights: 0 * weights,
}
"""What becomes of weights that were drawn from a normal distribution."""


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_linear(energy_benchmark: EnergyBenchmark, name: str, tokens: int) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that PyTorch can use")
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = [
        torch.randn(shape, device="cuda", generator=generator)
        for shape in ((WIDTH, WIDTH), (tokens, WIDTH))
    ]
    weights = VALUES[name](drawn[0] * SCALE).half()
    energy_benchmark(
        torch.nn.functional.linear,
        *(drawn[1].half(), weights),
        flops=2 * tokens * WIDTH**2,
    )
