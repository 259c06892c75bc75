"""The errors that NVIDIA documents for approximate functions hold on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from approximate_functions import COUNT, POWERS_SOURCE, SOURCE, errors, operands, powers

from pytest_gpuenergy.devices import CudaDevice
from pytest_gpuenergy.opening import open_device

pytestmark = pytest.mark.gpu

ROUNDED = 1.05
"""Documented exponents have one decimal place at most: on an H100 `cos.approx` reaches 1.025 times
its 2^-20.5, and `__log2f` 1.026 times its 2^-22."""


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """run(source, grid, block, *inputs, size=...): the numbers that k(inputs..., y) writes."""
    cupy = pytest.importorskip("cupy")
    with open_device("auto") as device:
        assert isinstance(device, CudaDevice)
        cupy.cuda.Device(device.ordinal).use()

        def go(source: str, grid: int, block: int, *inputs: Any, size: int) -> Any:
            y = cupy.empty(size, dtype=cupy.float32)
            function = cupy.RawModule(code=source).get_function("k")
            function((grid,), (block,), (*map(cupy.asarray, inputs), y))
            return cupy.asnumpy(y)

        yield go


def test_errors_are_within_the_documented_maximum(run, record_testsuite_property):
    x, d = operands()
    y = run(SOURCE, COUNT // 256, 256, x.reshape(-1), d, size=x.size)
    found = {name: np.abs(e).max() for name, e in errors(x, d, y.reshape(x.shape)).items()}
    for name, largest in found.items():
        record_testsuite_property(name, largest)  # for --junit-xml
    assert {name for name, largest in found.items() if largest > ROUNDED} == set()


def test_powers_of_two_are_exact(run):
    x, exact = powers()
    np.testing.assert_array_equal(run(POWERS_SOURCE, 1, 1, x, size=x.size), exact)
