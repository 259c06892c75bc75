"""A device of PyTorch's, ``card``, whose tensors lie on the host: a GPU for tests of copies.

It knows how to copy, compare and add. Needs PyTorch; `card_stands_in` makes the device, once a
process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

REFUSED = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"
_capturing: list[bool] = []


@contextmanager
def capturing() -> Iterator[None]:
    """Refuse copies from the host, as PyTorch does while a CUDA graph is captured."""
    _capturing.append(True)
    try:
        yield
    finally:
        _capturing.pop()


@cache
def card_stands_in() -> Any:
    """Make the device, and return a function that gives the elements of a tensor on it."""
    import torch
    from torch.utils import backend_registration

    make = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if make is None:
        pytest.skip("this PyTorch has no devices in Python")
    make("card")

    class CardTensor(torch.Tensor):
        """A tensor on the device; ``held`` has its elements."""

        def __new__(cls, held: Any) -> Any:
            tensor = torch._C._acc.create_empty_tensor(held.shape, held.dtype)
            tensor.__class__ = cls
            return tensor

        def __init__(self, held: Any) -> None:
            self.held = held

    def elements(tensor: Any) -> Any:
        return getattr(tensor, "held", tensor)

    def implements(name: str) -> Any:
        return torch.library.impl(f"aten::{name}", "PrivateUse1")

    @implements("empty.memory_format")
    def empty(sizes: Any, *, dtype: Any = None, **_options: Any) -> Any:
        return CardTensor(torch.empty(sizes, dtype=dtype))

    @implements("empty_strided")
    def empty_strided(sizes: Any, strides: Any, *, dtype: Any = None, **_options: Any) -> Any:
        return CardTensor(torch.empty_strided(sizes, strides, dtype=dtype))

    @implements("as_strided")
    def as_strided(tensor: Any, sizes: Any, strides: Any, offset: Any = None) -> Any:
        return CardTensor(tensor.held.as_strided(sizes, strides, offset))

    @implements("view.dtype")
    def view(tensor: Any, dtype: Any) -> Any:
        return CardTensor(tensor.held.view(dtype))

    @implements("equal")
    def equal(left: Any, right: Any) -> bool:
        return torch.equal(left.held, right.held)

    @implements("_copy_from")
    def copy_from(source: Any, target: Any, _non_blocking: bool = False) -> Any:
        if _capturing and not (hasattr(source, "held") and hasattr(target, "held")):
            raise RuntimeError(f"{REFUSED} unless the CPU tensor is pinned.")
        elements(target).copy_(elements(source))
        return target

    @implements("add.Tensor")
    def add(left: Any, right: Any, *, alpha: Any = 1) -> Any:
        return CardTensor(torch.add(elements(left), elements(right), alpha=alpha))

    @implements("add_.Tensor")
    def add_(left: Any, right: Any, *, alpha: Any = 1) -> Any:
        elements(left).add_(elements(right), alpha=alpha)
        return left

    @implements("index.Tensor")
    def index(tensor: Any, indices: Any) -> Any:
        if _capturing and any(one is not None and not hasattr(one, "held") for one in indices):
            raise RuntimeError(f"{REFUSED} unless the CPU tensor is pinned.")
        own = [None if one is None else elements(one) for one in indices]
        return CardTensor(torch.ops.aten.index.Tensor(elements(tensor), own))

    return elements
