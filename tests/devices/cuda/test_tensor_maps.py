"""What the driver is told of a tensor map."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices import encoded_map
from pytest_gpuenergy.kernels import TensorMap
from pytest_gpuenergy.support import KernelFault

MAP = TensorMap("a_map", "A", "bfloat16", (640, 512), (1280,), (64, 128), 128)


def test_every_argument_of_the_driver_function_is_given() -> None:
    given: list[Any] = []

    def encode(to: ctypes.c_void_p, *rest: Any) -> int:
        assert to.value is not None
        assert to.value % 64 == 0
        ctypes.memset(to.value, 0xA5, 128)
        given.extend(one.value if hasattr(one, "value") else list(one) for one in rest)
        return 0

    argument = encoded_map(MAP, 0x7F0000010000, encode)
    assert argument.tobytes() == b"\xa5" * 128
    assert isinstance(argument, np.generic)  # which CuPy passes by value
    bfloat16, zeros, swizzle_128, promoted_to_256 = 9, 0, 3, 3
    assert given == [
        *(bfloat16, 2, 0x7F0000010000, [640, 512], [1280], [64, 128], [1, 1]),
        *(0, swizzle_128, promoted_to_256, zeros),
    ]


def test_a_map_that_the_driver_refuses_is_a_fault() -> None:
    with pytest.raises(KernelFault, match=r"refuses the tensor map 'a_map' \(error 1\)") as fault:
        encoded_map(MAP, 0, lambda *_: 1)
    assert fault.value.outcome == "constraints"


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(KernelFault, match="need a driver of CUDA 12 or later"):
        encoded_map(MAP, 0)
