"""The memory of arrays of other libraries: what lies where, and writing to it."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pytest_gpuenergy.engine.results import is_tensor
from pytest_gpuenergy.workloads.workload import Array


def overwrite(value: Any, content: Array) -> None:
    """Write ``content`` into an array, on the current stream of its library.

    Raises:
        Exception: it cannot be written to; what its library says.
    """
    if is_tensor(value):
        with _inference(value):
            value.detach().copy_(value.new_tensor(content))
    elif hasattr(value, "__cuda_array_interface__"):
        import cupy

        cupy.asarray(value)[...] = cupy.asarray(content)
    else:
        value[...] = content


def overlap(one: Any, other: Any) -> bool:
    """Whether two arrays may share memory."""
    (begin, end), (other_begin, other_end) = _span(one), _span(other)
    return begin < other_end and other_begin < end


def _inference(tensor: Any) -> AbstractContextManager[object]:
    """Where PyTorch allows to write to a tensor that was made for inference."""
    if not tensor.is_inference():
        return nullcontext()
    mode: AbstractContextManager[object] = sys.modules["torch"].inference_mode()
    return mode


def _span(value: Any) -> tuple[int, int]:
    """First address and the one after the last; an empty span when it is not known."""
    if is_tensor(value):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    for name in ("__cuda_array_interface__", "__array_interface__"):
        if (interface := getattr(value, name, None)) is not None:
            return _span_of(interface)
    return 0, 0


def _span_of(interface: dict[str, Any]) -> tuple[int, int]:
    shape = interface["shape"]
    item = np.dtype(interface["typestr"]).itemsize
    start = interface["data"][0]
    if not math.prod(shape):
        return start, start
    strides = interface.get("strides") or [
        item * math.prod(shape[k + 1 :]) for k in range(len(shape))
    ]
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0) + item
