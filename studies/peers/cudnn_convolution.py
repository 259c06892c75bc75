"""cuDNN's convolutions through PyTorch, with the inputs of `SEED`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpuenergy.workloads import ErrorBound

if TYPE_CHECKING:
    from pytest_gpuenergy.workloads import Conv2d

Precision = Literal["ieee", "tf32"]
FORMATS = {"contiguous": "contiguous_format", "channels_last": "channels_last"}
"""PyTorch's attributes for memory formats, by their names in item ids."""
SEED = 0
TF32_ERROR = 2.0**-9


def convolution(torch: Any, workload: Conv2d, memory_format: Any) -> Callable[[], Any]:
    """A function that launches ``workload`` on the inputs of `SEED` and returns the output."""
    shape = workload.shape
    inputs = workload.make_inputs(SEED)
    data, weight = (
        torch.from_numpy(inputs[name]).cuda().to(memory_format=memory_format)
        for name in ("data", "weight")
    )
    conv2d = torch.nn.functional.conv2d

    def convolve() -> Any:
        return conv2d(
            data, weight, None, shape.strides, shape.padding, shape.dilation, shape.groups
        )

    return convolve


def error_bound(workload: Conv2d, precision: Precision) -> ErrorBound:
    """The workload's own bound, plus 2^-9 for TF32.

    TF32 keeps 10 bits of a factor's fraction (NVIDIA A100 Tensor Core GPU Architecture, 2020), so
    each factor has a relative error of at most 2^-10, even if it is truncated, and each product one
    of 2^-9. If zero-mean products are each off by some fraction, their sum is off by about that
    fraction of its typical size.
    """
    bound = workload.error_bound
    if precision == "ieee":
        return bound
    return ErrorBound(bound.max_relative + TF32_ERROR, bound.normwise + TF32_ERROR)


@contextmanager
def cudnn_settings(torch: Any, precision: Precision) -> Iterator[None]:
    """Let cuDNN choose among all its algorithms of that precision; restored afterwards."""
    cudnn = torch.backends.cudnn
    wanted = [(cudnn, "benchmark", True), (cudnn, "benchmark_limit", 0)]
    if hasattr(cudnn, "conv"):  # PyTorch 2.9; its older switch warns there
        wanted.append((cudnn.conv, "fp32_precision", precision))
    else:
        wanted.append((cudnn, "allow_tf32", precision == "tf32"))
    prior = [(where, name, getattr(where, name)) for where, name, _ in wanted]
    try:
        for where, name, value in wanted:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in prior:
            setattr(where, name, value)
