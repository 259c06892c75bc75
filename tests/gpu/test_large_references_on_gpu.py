"""References computed on a real GPU equal NumPy's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pytest_gpuenergy.devices import Device, DeviceArrays
from pytest_gpuenergy.engine import Drawing, case_of, compare, references
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.workloads import Contract, Conv2d, Tensor, Workload, numbers, rounded_to

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


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with open_device("auto") as device:
        yield device


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
