"""The memory of other libraries' arrays: where it lies, and how to write to it."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pytest_gpuenergy.engine.host_arrays import is_tensor
from pytest_gpuenergy.workloads import Array


def overwrite(value: Any, content: Array) -> None:
    """Write ``content`` into an array, on the current stream of its library.

    Raises:
        Exception: the array cannot be written to; whatever its library raises.
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
    """A context in which PyTorch allows writes to ``tensor``, even if it is an inference tensor."""
    if not tensor.is_inference():
        return nullcontext()
    mode: AbstractContextManager[object] = sys.modules["torch"].inference_mode()
    return mode


def _span(value: Any) -> tuple[int, int]:
    """The first address and the one past the last; an empty span if they are unknown."""
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
