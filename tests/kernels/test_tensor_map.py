"""Tensor maps: what can be described, and that it survives in a launch plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuenergy.kernels import Kernel, Launch, TensorMap, launch_plan, load_kernel
from pytest_gpuenergy.support import InputError, KernelFault, encode

MAP = TensorMap("a_map", "A", "bfloat16", (640, 512), (1280,), (64, 128), 128)
KERNEL = Kernel(
    "__global__ void f() {}",
    (Launch("f", (1, 1, 1), (128, 1, 1), ("a_map", "C")),),
    tensor_maps=(MAP,),
)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dtype": "f4,f8"}, "its type is 'f4,f8', not one of float16"),
        ({"dims": ()}, "0 dimensions instead of 1 to 5"),
        ({"dims": (640, 5.0)}, "no integer"),
        ({"strides_bytes": ()}, "a stride for all but one"),
        ({"box": (64,)}, "a size of the box for each dimension"),
        ({"dims": (640, 0)}, "not between 1 and 4294967296"),
        ({"box": (64, 257)}, "not between 1 and 256"),
        ({"strides_bytes": (1272,)}, r"\(1272,\) are not multiples of 16"),
        ({"strides_bytes": (-1280,)}, "less than a row of 1280 bytes"),
        ({"box": (60, 128)}, "rows of 120 bytes in the box are no multiple of 16"),
        ({"box": (128, 128)}, "rows of 256 bytes in the box do not fill 128"),
        ({"swizzle_bytes": 100}, "its swizzle is 100 instead of"),
    ],
)
def test_a_map_that_cannot_exist_is_refused(change, problem):
    with pytest.raises(InputError, match=f"The tensor map 'a_map' cannot be used: .*{problem}"):
        replace(MAP, **change)


def test_it_knows_its_bytes():
    assert replace(MAP, strides_bytes=(2000,)).nbytes == 511 * 2000 + 640 * 2


def test_a_map_is_part_of_what_a_kernel_is():
    other = replace(KERNEL, tensor_maps=(replace(MAP, box=(64, 64)),))
    assert other.digest != KERNEL.digest


def test_a_launch_plan_keeps_it(tmp_path):
    (tmp_path / "f.cu").write_text(KERNEL.source)
    (tmp_path / "f.json").write_bytes(encode(launch_plan(KERNEL, "f.cu")))
    assert load_kernel(tmp_path / "f.json") == KERNEL


def test_a_map_of_no_tensor_is_found():
    KERNEL.check_arguments(["A", "C"], [])
    with pytest.raises(KernelFault, match="The tensor map 'a_map' takes an argument 'A'"):
        KERNEL.check_arguments(["B", "C"], [])
