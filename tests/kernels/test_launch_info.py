"""What a report says about launches."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.kernels import (
    Kernel,
    Launch,
    LibraryCall,
    TritonKernel,
)
from pytest_gpuenergy.record import LaunchInfo

SIZES = {"float": 4, "double": 8, "unsigned char": 1, "__half": 2, "float4": 16, "unsigned": 4}
ARRAYS = st.tuples(
    st.sampled_from(sorted(SIZES)),
    st.lists(st.integers(1, 99), max_size=3),
    st.sampled_from(["", "__align__(16) ", "volatile "]),
)


def static_shared_bytes(source: str) -> int | None:
    kernel = Kernel(f"{source}\nvoid f", (Launch("f", (1, 1, 1), (1, 1, 1), ()),))
    return kernel.launch_infos[0].static_shared_bytes


@given(st.lists(ARRAYS, max_size=4))
def test_static_shared_memory_is_that_of_all_arrays(arrays):
    lines = [
        f"  __shared__ {prefix}{kind} a{place}{''.join(f'[{size}]' for size in sizes)};"
        for place, (kind, sizes, prefix) in enumerate(arrays)
    ]
    source = "\n".join(["// __shared__ float no[9];", "extern __shared__ char more[];", *lines])
    expected = sum(SIZES[kind] * math.prod(sizes) for kind, sizes, _ in arrays)
    assert static_shared_bytes(source) == expected


@pytest.mark.parametrize(
    "source",
    ["__shared__ float a[N];", "__shared__ Tile a[4];", "__shared__ union { float a; int b; } u;"],
)
def test_what_the_text_does_not_say_is_not_guessed(source):
    assert static_shared_bytes(source) is None


def test_a_library_decides_itself_and_triton_chooses_its_shared_memory():
    triton = TritonKernel("import triton", "add", (8, 2, 1), ("x",), num_warps=2)
    assert triton.launch_infos == (LaunchInfo("add", (8, 2, 1), (64, 1, 1)),)
    assert LibraryCall.__new__(LibraryCall).launch_infos == ()


def test_of_several_launches_no_one_knows_whose_the_arrays_are():
    launches = tuple(Launch("f", (count, 1, 1), (32, 1, 1), ()) for count in (1, 2))
    infos = Kernel("__shared__ float a[4]; void f", launches).launch_infos
    assert [(one.grid, one.static_shared_bytes) for one in infos] == [
        ((1, 1, 1), None),
        ((2, 1, 1), None),
    ]
