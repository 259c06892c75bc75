"""The shipped kernel specs are valid, and their baselines are correct and can be improved."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from host_triton import host_triton

from pytest_gpuenergy.devices.cuda.binders import _triton_function
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import case_of, compare, drawings_of
from pytest_gpuenergy.kernels import TritonKernel
from pytest_gpuenergy.record import Metric, peaks_of
from pytest_gpuenergy.search import (
    SearchBench,
    SpecWorkload,
    kernel_of,
    read_spec,
    spec_paths,
    spec_schema,
    workload_of,
)
from pytest_gpuenergy.workloads import Array

ROOT = Path(__file__).parents[2]
PATHS = spec_paths(ROOT / "bench/search/kernels")
CUDA = [path for path in PATHS if not path.stem.endswith("_triton")]
TRITON = [path for path in PATHS if path.stem.endswith("_triton")]
ROOM = 1.3
DAILY = "histogram"
"""The spec whose baseline is verified daily; the nightly run verifies all."""


def name_of(path: Path) -> str:
    return path.stem


def test_there_are_eight_in_cuda_and_five_in_triton():
    assert {path.stem for path in CUDA} == {
        *("attention_decode", "gemm_naive", "grouped_gemm", "histogram", "layernorm"),
        *("lora_expand", "softmax", "stencil"),
    }
    assert {path.stem.removesuffix("_triton") for path in TRITON} == {
        *("attention_decode", "gemm", "layernorm", "lora_expand", "softmax"),
    }


@pytest.mark.parametrize("path", PATHS, ids=name_of)
class TestEach:
    def test_it_is_valid(self, path):
        jsonschema.Draft202012Validator(spec_schema()).validate(json.loads(path.read_text()))
        spec = read_spec(path)
        assert spec.name == path.stem
        assert spec.language == ("triton" if path in TRITON else "cuda")

    def test_its_source_is_a_file_beside_it(self, path):
        assert json.loads(path.read_text())["file"] in (f"{path.stem}.cu", f"{path.stem}.py")

    def test_no_block_divides_its_second_sizes(self, path):
        _, second = read_spec(path).sizes
        assert all(size % 2 for size in second.values())

    def test_it_is_documented(self, path):
        assert f"| `{path.stem}` |" in (ROOT / "docs/reference/bundled.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem == DAILY else [pytest.mark.thorough])
        for path in CUDA
    ],
    ids=name_of,
)
def test_a_baseline_is_verified_and_has_room_above_it(path):
    spec = read_spec(path)
    with EmulatedDevice() as device:
        found = SearchBench(spec, device, Metric.TIME).evaluate(spec.baseline)
        peaks = peaks_of(device.name)
    assert found.outcome == "correct", found.message
    assert found.other_sizes is not None
    assert len(found.correctness) == len(spec.sizes) + 1 > 2
    assert found.time_ms is not None
    assert peaks is not None
    workload = workload_of(spec, spec.sizes[0])
    memory_ms = workload.bytes_moved / (peaks.bandwidth_gb_s * 1e6)  # nothing is in the L2
    assert found.time_ms > ROOM * max(memory_ms, workload.flops / (peaks.fp32_tflops * 1e9))


@pytest.mark.slow
@pytest.mark.parametrize("path", TRITON, ids=name_of)
def test_a_triton_baseline_is_right_as_far_as_numpy_tells(path):
    spec = read_spec(path)
    workload = workload_of(spec, spec.sizes[1])
    kernel = kernel_of(spec, spec.baseline, spec.sizes[1])
    assert isinstance(kernel, TritonKernel)
    bounds = {one.name: workload.bound_of(one) for one in workload.outputs}
    for drawing in drawings_of((2, 3, 4)):
        case = case_of(workload, drawing, None)
        with host_triton():
            outputs = outputs_of(kernel, workload, dict(case.inputs))
        compare(outputs, case.reference, bounds, drawing.seed)


def outputs_of(
    kernel: TritonKernel, workload: SpecWorkload, inputs: dict[str, Array]
) -> dict[str, Array]:
    outputs = {one.name: np.full(one.shape, np.nan, one.dtype) for one in workload.outputs}
    tensors = {name: array.reshape(-1) for name, array in (inputs | outputs).items()}
    scalars = {one.name: one.value for one in workload.scalars}
    _triton_function(kernel.source, kernel.function)[kernel.grid](
        *({**tensors, **scalars}[name] for name in kernel.arguments),
        **kernel.constants,
        num_warps=kernel.num_warps,
        num_stages=kernel.num_stages,
    )
    return outputs
