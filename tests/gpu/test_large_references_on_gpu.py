"""References computed on a real GPU equal NumPy's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_gpuenergy.devices import Device, DeviceArrays
from pytest_gpuenergy.engine import Drawing, case_of, compare, references
from pytest_gpuenergy.workloads import (
    NUMPY,
    Allowance,
    Contract,
    Conv2d,
    Tensor,
    Workload,
    numbers,
    rounded_to,
)

pytestmark = pytest.mark.gpu


def contract(name: str, out: str, of: str) -> Contract:
    compute = {
        "doubled": lambda x: 2 * x,
        "exp": np.exp,
        "sorted": lambda x: np.sort(x, axis=-1),
        "summed": lambda x: np.cumsum(x, axis=-1),
    }[name]
    tensors = (Tensor("x", (64, 1024), of, "input"), Tensor("y", (64, 1024), out, "output"))
    return Contract(
        name, tensors, lambda inputs: {"y": compute(inputs["x"])}, reduction_length=1024
    )


WORKLOADS = (
    contract("doubled", "float32", "float32"),
    contract("exp", "float32", "float32"),
    contract("sorted", "float16", "float16"),
    contract("summed", "bfloat16", "bfloat16"),
    contract("doubled", "float64", "float64"),
    Conv2d.of("conv", 2, 57, 55, 32, 24, 3, 3, 2, 1, 1, 2),
    Conv2d.of("conv", 2, 57, 55, 32, 24, 3, 3, 2, 1, mode="tf32", layout="nhwc", bias=1, relu=1),
    Conv2d.of("conv", 2, 57, 55, 32, 24, 3, 3, 2, 1, mode="bfloat16", bias=True),
)


def named(workload: Workload) -> str:
    return f"{workload.name}-{workload.outputs[0].dtype}"


@pytest.fixture
def arrays(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> DeviceArrays:
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)
    if gpu.arrays is None:
        pytest.skip("needs a GPU that takes more than one process")
    return gpu.arrays


@pytest.mark.parametrize("drawing", [Drawing(0), Drawing(1, -1), Drawing(2, 1)])
@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_they_equal_numpys(workload, drawing, arrays):
    there, here = (case_of(workload, drawing, one).reference for one in (arrays, None))
    assert there.arrays is not None
    for name, right in here.items():
        scale = np.abs(right).max()
        np.testing.assert_allclose(there[name].get(), right, rtol=1e-12, atol=1e-13 * scale)


@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_a_right_output_has_the_errors_it_has_on_the_host(workload, arrays):
    there, here = (case_of(workload, Drawing(0), one).reference for one in (arrays, None))
    outputs = {
        tensor.name: numbers(rounded_to(here[tensor.name], tensor.dtype), tensor.dtype)
        for tensor in workload.outputs
    }
    found, right = (compare(outputs, one, workload.io.bounds, 0) for one in (there, here))
    assert found.max_relative == pytest.approx(right.max_relative, rel=1e-3, abs=1e-12)
    assert found.normwise == pytest.approx(right.normwise, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_our_kernels_compute_what_numpy_computes(dtype, arrays):
    draw = np.random.default_rng(3)
    expected = draw.normal(size=(513, 259))
    stored = rounded_to(expected + 1e-3, dtype)
    output = numbers(stored, dtype)
    own = np.abs(expected)
    bits = np.frombuffer(draw.bytes(-(-expected.size // 8)), np.uint8)
    places = draw.integers(expected.size, size=300)
    with arrays.used():
        assert arrays.is_loaded
        there, off, right = map(arrays.put, (stored, output, expected))
        for of_gpu, of_host in (
            (arrays.widened(there, dtype), NUMPY.widened(stored, dtype)),
            (arrays.numbers(there, dtype), output),
            (
                arrays.changed(right, 0.5, 2.0**-20, bits),
                NUMPY.changed(expected, 0.5, 2.0**-20, bits),
            ),
        ):
            np.testing.assert_array_equal(arrays.get(of_gpu), of_host)
        np.testing.assert_array_equal(arrays.take(there, places), stored.reshape(-1)[places])
        assert arrays.extremes(there, dtype) == NUMPY.extremes(stored, dtype)
        assert arrays.root_mean_square(right) == pytest.approx(NUMPY.root_mean_square(expected))
        assert arrays.distance(off, right) == pytest.approx(NUMPY.distance(output, expected))
        for limit in (1e-3, 3.0, 9.0):
            assert arrays.has_small_slice(right, limit) == NUMPY.has_small_slice(expected, limit)
        allowance = Allowance(1e-3, 1e-3, 1e-4, 2.0, own)
        within = arrays.count_within(off, right, replace(allowance, own=arrays.put(own)))
        assert within == NUMPY.count_within(output, expected, allowance)
        for before in (None, own):
            reaction, is_same = NUMPY.larger_reaction(expected, output, 0.5, before)
            found, is_so = arrays.larger_reaction(
                right,
                arrays.widened(there, dtype),
                0.5,
                None if before is None else arrays.put(before),
            )
            np.testing.assert_allclose(arrays.get(found), reaction, rtol=1e-15)
            assert is_so == is_same
