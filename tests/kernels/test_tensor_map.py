"""Tensor maps: what can be described, and that it survives in a launch plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_gpuenergy.kernels import Im2col, Kernel, Launch, TensorMap, launch_plan, load_kernel
from pytest_gpuenergy.support import InputError, KernelFault, encode

MAP = TensorMap("a_map", "A", "bfloat16", (640, 512), (1280,), (64, 128), 128)
WALK = Im2col((-1, -2), (-1, 1), (2, 1))
IMAGES = TensorMap(
    "a_map", "A", "bfloat16", (64, 9, 14, 2), (128, 1152, 16128), (64, 128), 128, WALK
)
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


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dims": (64, 9), "strides_bytes": (128,)}, "2 dimensions instead of 3 to 5"),
        ({"box": (64, 1, 1, 128)}, "a box of channels and pixels, and a stride for all but C"),
        ({"box": (64, 1025)}, r"its box \(64, 1025\) has not 1 to 256 channels of 1 to 1024"),
        ({"box": (257, 1)}, r"its box \(257, 1\) has not 1 to 256 channels of 1 to 1024"),
        ({"box": (32, 8)}, "rows of 64 bytes in the box do not fill 128"),
    ],
)
def test_an_im2col_map_that_cannot_exist_is_refused(change, problem):
    with pytest.raises(InputError, match=f"The tensor map 'a_map' cannot be used: .*{problem}"):
        replace(IMAGES, **change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lower": (-1,)}, "corners and strides for 2 dimensions, all but C and N"),
        ({"strides": (1, 1, 1)}, "corners and strides for 2 dimensions, all but C and N"),
        ({"upper": (-1, 1.5)}, "corners or strides is no integer"),
        ({"lower": (-129, 0)}, "not between -128 and 127"),
        ({"upper": (0, 128)}, "not between -128 and 127"),
        ({"strides": (1, 9)}, r"strides \(1, 9\) are not between 1 and 8"),
        ({"strides": (0, 1)}, r"strides \(0, 1\) are not between 1 and 8"),
        ({"lower": (8, 0)}, r"corners \(8, 0\) and \(-1, 1\) have no pixels between them"),
    ],
)
def test_images_that_cannot_be_visited_are_refused(change, problem):
    with pytest.raises(InputError, match=f"The tensor map 'a_map' cannot be used: .*{problem}"):
        replace(IMAGES, im2col=replace(WALK, **change))


@pytest.mark.parametrize(("rank", "limit"), [(3, 1 << 15), (4, 1 << 7), (5, 1 << 4)])
def test_corners_are_limited_by_the_rank(rank, limit):
    def corners(lower, upper):
        pixels = (lower,) * (rank - 2), (upper,) * (rank - 2), (1,) * (rank - 2)
        dims = (8, *[2 * limit] * (rank - 2), 1)
        strides = tuple(16 * math.prod(dims[1:k]) for k in range(1, rank))
        return TensorMap("a_map", "A", "float16", dims, strides, (8, 1), 0, Im2col(*pixels))

    assert corners(-limit, limit - 1).im2col is not None
    for lower, upper in ((-limit - 1, 0), (0, limit)):
        with pytest.raises(InputError, match=f"not between {-limit} and {limit - 1}"):
            corners(lower, upper)


def test_it_knows_its_bytes():
    assert replace(MAP, strides_bytes=(2000,)).nbytes == 511 * 2000 + 640 * 2


def test_a_map_is_part_of_what_a_kernel_is():
    other = replace(KERNEL, tensor_maps=(replace(MAP, box=(64, 64)),))
    assert other.digest != KERNEL.digest


def test_what_im2col_visits_is_part_of_what_a_kernel_is():
    walks = WALK, replace(WALK, strides=(1, 1)), replace(WALK, upper=(0, 0))
    kernels = [replace(KERNEL, tensor_maps=(replace(IMAGES, im2col=walk),)) for walk in walks]
    assert len({kernel.digest for kernel in kernels}) == len(walks)


def test_a_map_of_tiles_has_the_content_that_it_had_before_im2col():
    assert "im2col" not in MAP.content


@pytest.mark.parametrize("given", [MAP, IMAGES], ids=["tiles", "im2col"])
def test_a_launch_plan_keeps_it(tmp_path, given):
    kernel = replace(KERNEL, tensor_maps=(given,))
    (tmp_path / "f.cu").write_text(kernel.source)
    (tmp_path / "f.json").write_bytes(encode(launch_plan(kernel, "f.cu")))
    assert load_kernel(tmp_path / "f.json") == kernel


def test_a_map_of_no_tensor_is_found():
    KERNEL.check_arguments(["A", "C"], [])
    with pytest.raises(KernelFault, match="The tensor map 'a_map' takes an argument 'A'"):
        KERNEL.check_arguments(["B", "C"], [])
