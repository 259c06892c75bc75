"""Dilated, grouped and depthwise convolutions: from a record to CUDA text that computes them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from points import MORE

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import FORMS
from pytest_gpuenergy.tuning import Record, RecordFile
from pytest_gpuenergy.workloads import Conv2d

pytestmark = pytest.mark.tvm

PLAIN = Conv2d.of("plain", 1, 9, 11, 8, 8, 3, 3, 1, 2)
WORKLOADS = [
    Conv2d.of("dilated", 1, 9, 11, 8, 8, 3, 3, 1, 2, 2),
    Conv2d.of("grouped", 1, 9, 11, 8, 4, 3, 1, 2, 1, 1, 2),
    Conv2d.of("depthwise", 2, 9, 11, 8, 8, 3, 3, 1, 1, 1, 8),
    MORE(Conv2d.of("multiplied", 1, 9, 11, 16, 8, 3, 3, 1, 1, 1, 8)),
    MORE(Conv2d.of("atrous_depthwise", 1, 9, 11, 8, 8, 3, 3, 2, 3, 3, 8)),
]
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}
TOOLCHAIN = {"tvm": "0.27", "target": {}}


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


def one_thread_per_output(workload: Conv2d) -> RecordFile:
    """A record whose schedule is the simplest there is: padding inlined, 64 outputs a block."""
    block = "group_conv2d_nchw" if workload.shape.groups > 1 else "conv2d_nchw"
    trace = [
        ["GetSBlock", [], ["pad_temp", "main"], ["b0"]],
        ["ComputeInline", ["b0"], [], []],
        ["GetSBlock", [], [block, "main"], ["b1"]],
        ["GetLoops", ["b1"], [], [f"l{k}" for k in range(7)]],
        ["Fuse", ["l0", "l1", "l2", "l3"], [1], ["l7"]],
        ["Split", ["l7", "None", 64], [1, 0], ["l8", "l9"]],
        ["Bind", ["l8"], ["blockIdx.x"], []],
        ["Bind", ["l9"], ["threadIdx.x"], []],
    ]
    arguments = [["TENSOR", tensor.dtype, list(tensor.shape)] for tensor in workload.tensors]
    text = json.dumps([[trace, []], [1e-5], TARGET, arguments])
    records = (Record(1, "fastest", text),)
    return RecordFile(
        workload, FORMS["tvm"].tuner, "Test GPU", "580.0", TOOLCHAIN, "2026-11-21", 1, 1, records
    )


@pytest.mark.parametrize("workload", [PLAIN, *WORKLOADS], ids=lambda workload: workload.name)
def test_it_is_lowered_to_cuda_and_is_right(workload, store, device):
    kernel = store.kernel(one_thread_per_output(workload), 1)
    assert "__global__" in kernel.source
    (launch,) = kernel.launches
    assert launch.blocks == -(-workload.outputs[0].size // 64)
    errors = verify_on_device(device, kernel, workload)
    assert 0 < errors.normwise_error <= errors.normwise_bound


def test_the_kernel_of_another_dilation_is_found_wrong(store, device):
    one, other = (Conv2d.of("x", 1, 9, 9, 4, 4, 3, 3, 1, d, d) for d in (1, 2))
    assert [t.shape for t in one.tensors] == [t.shape for t in other.tensors]
    kernel = store.kernel(one_thread_per_output(one), 1)
    with pytest.raises(KernelFault, match="wrong") as fault:
        verify_on_device(device, kernel, other)
    assert fault.value.outcome == "correctness"
