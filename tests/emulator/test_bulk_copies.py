"""Bulk copies in inline PTX: of bytes and of tiles of tensors, to and from shared memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import wgmma_kernels as texts
from hypothesis import HealthCheck, given, settings, strategies as st
from outcomes import raises

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch, TensorMap
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Scalar, Tensor

pytestmark = pytest.mark.slow

WORDS = 8192
ABSENT = 0x5A


def _tiles():
    """Return CUDA text that loads and stores tiles of any rank, at places in an array."""
    loads, stores = [], []
    for rank in range(1, 6):
        corner = ", ".join(f"%{3 + k}" for k in range(rank))
        given = ", ".join(f'"r"(c[{k}])' for k in range(rank))
        loads.append(
            f'if (rank == {rank}) asm volatile("cp.async.bulk.tensor.{rank}d.shared::cta.global'
            f'.mbarrier::complete_tx::bytes [%0], [%1, {{{corner}}}], [%2];" :: "r"(s), "l"(map), '
            f'"r"(b), {given} : "memory");'
        )
        corner = ", ".join(f"%{2 + k}" for k in range(rank))
        stores.append(
            f'if (rank == {rank}) asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta'
            f'.tile.bulk_group [%0, {{{corner}}}], [%1];" :: "l"(map), "r"(s), {given} : "memory");'
        )
    return "\n".join(loads), "\n".join(stores)


LOADS, STORES = _tiles()
SOURCE = f"""{texts.COMMON}{texts.PIPELINE}
__device__ void load_any(const CUtensorMap* map, uint32_t s, uint32_t b, int rank, const int* c) {{
{LOADS}
}}
__device__ void store_any(const CUtensorMap* map, uint32_t s, int rank, const int* c) {{
{STORES}
}}
__global__ void load_one(const __grid_constant__ CUtensorMap map, uint32_t* y, int rank, int bytes,
                     int c0, int c1, int c2, int c3, int c4) {{
  extern __shared__ __align__(1024) uint32_t s[];
  __shared__ uint64_t full;
  int c[] = {{c0, c1, c2, c3, c4}};
  if (!threadIdx.x) init(&full, 1);
  __syncthreads();
  if (!threadIdx.x) {{
    expect(&full, bytes);
    load_any(&map, shared_address(s), shared_address(&full), rank, c);
  }}
  wait_parity(&full, 0);
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) y[i] = s[i];
}}
__global__ void store_one(const __grid_constant__ CUtensorMap map, const uint32_t* x, int rank,
                      int bytes, int c0, int c1, int c2, int c3, int c4) {{
  extern __shared__ __align__(1024) uint32_t s[];
  int c[] = {{c0, c1, c2, c3, c4}};
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) s[i] = x[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x) return;
  store_any(&map, shared_address(s), rank, c);
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}}"""


@st.composite
def tiles(draw, unit=1):
    """A tensor map of `T`, the corner of a tile, and the tile's elements' places in both memories.

    The places are bytes, and -1 in the tensor for elements outside of it, of which rows end at a
    multiple of `unit` bytes.
    """
    dtype = draw(st.sampled_from(["uint8", "float16", "int32", "float64"]))
    item = np.dtype(dtype).itemsize
    rank = draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from([0, 32, 64, 128]))
    inner = (swizzle or 16 * draw(st.integers(1, 3))) // item
    box = (inner, *(draw(st.integers(1, 4 if rank < 4 else 2)) for _ in range(rank - 1)))
    dims = (draw(st.integers(1, 40)), *(draw(st.integers(1, 5)) for _ in range(rank - 1)))
    strides, row = [], dims[0] * item
    for dim in dims[1:]:
        strides.append(-(-row // 16) * 16 + 16 * draw(st.integers(0, 1)))
        row = strides[-1] * dim
    corner = tuple(
        draw(st.integers(-edge - 1, dim + 1)) for edge, dim in zip(box, dims, strict=True)
    )
    corner = (corner[0] * item // 16 * 16 // item, *corner[1:])
    given_map = TensorMap("map", "T", dtype, dims, tuple(strides), box, swizzle)
    index = np.indices(box[::-1]).reshape(rank, -1)[::-1] + np.array(corner)[:, None]
    ends = (-(-dims[0] * item // unit) * unit // item, *dims[1:])
    inside = ((index >= 0) & (index < np.array(ends)[:, None])).all(axis=0)
    places = (index * np.array([item, *strides])[:, None]).sum(axis=0)
    held = np.arange(index.shape[1]) * item
    held ^= (held >> 7) % max(swizzle // 16, 1) << 4
    return given_map, corner, np.where(inside, places, -1), held


def _kernel(folder, entry, other, given_map, corner, tensor):
    """Return the kernel `entry` with the tensor T and another tensor, both as bytes."""
    arenas = {}
    for name, value in (("T", tensor), other):
        role = "input" if (name == "T") == (entry == "load_one") else "output"
        described = Tensor(name, value.shape, "uint8", role)
        arenas[name] = Arena.create(folder / name, described, value)
    numbers = [
        len(given_map.dims),
        math.prod(given_map.box) * given_map.itemsize,
        *corner,
        *[0] * (5 - len(corner)),
    ]
    scalars = {f"i{k}": Scalar(f"i{k}", "int32", value) for k, value in enumerate(numbers)}
    names = ("map", other[0], *scalars)
    launch = Launch(entry, (1, 1, 1), (32, 1, 1), names, 4 * WORDS)
    return Kernel(SOURCE, (launch,), tensor_maps=(given_map,)), arenas, scalars


def _elements(data, places, item):
    return data[places[:, None] + np.arange(item)]


@settings(max_examples=12, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(tile=tiles(), seed=st.integers(0, 2**32))
def test_a_tile_is_loaded_with_zeros_outside_of_the_tensor(runner, tmp_path, tile, seed):
    given_map, corner, places, held = tile
    tensor = np.random.default_rng(seed).integers(1, 256, given_map.nbytes).astype("uint8")
    y = ("y", np.zeros(4 * WORDS, "uint8"))
    kernel, arenas, scalars = _kernel(tmp_path, "load_one", y, given_map, corner, tensor)
    runner.run(kernel, arenas, scalars, timeout_s=20.0)
    item = given_map.itemsize
    expected = np.where(places[:, None] < 0, 0, _elements(tensor, np.maximum(places, 0), item))
    np.testing.assert_array_equal(_elements(arenas["y"].value(), held, item), expected)


@settings(max_examples=12, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(tile=tiles(unit=16), seed=st.integers(0, 2**32))
def test_a_tile_is_stored_up_to_the_16_bytes_in_which_rows_end(runner, tmp_path, tile, seed):
    given_map, corner, places, held = tile
    x = np.random.default_rng(seed).integers(0, 256, 4 * WORDS).astype("uint8")
    tensor = np.full(given_map.nbytes + 16, ABSENT, "uint8")
    kernel, arenas, scalars = _kernel(tmp_path, "store_one", ("x", x), given_map, corner, tensor)
    runner.run(kernel, arenas, scalars, timeout_s=20.0)
    item = given_map.itemsize
    inside = places >= 0
    tensor[places[inside][:, None] + np.arange(item)] = _elements(x, held[inside], item)
    np.testing.assert_array_equal(arenas["T"].value(), tensor)


PLAIN = {
    "load": """if (!t) { expect(&full, 256);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1], %2, [%3];"
        :: "r"(shared_address(s)), "l"(x + 64), "r"(256), "r"(shared_address(&full)) : "memory"); }
    wait_parity(&full, 0); y[t] = s[63 - t] + 63 - t;""",
    "store": """s[t] = 64 - t; asm volatile("fence.proxy.async;" ::: "memory"); __syncthreads();
    if (!t) { asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        :: "l"(y), "r"(shared_address(s)), "r"(256) : "memory");
      asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory"); }""",
}
BEGIN = """__shared__ __align__(128) float s[64]; __shared__ uint64_t full;
    if (!t) { init(&full, 1); asm volatile("fence.proxy.async;" ::: "memory"); } __syncthreads();
"""
BEFORE = texts.COMMON + texts.PIPELINE


@pytest.mark.parametrize("body", [*PLAIN.values()], ids=PLAIN)
def test_bytes_are_copied_in_bulk(right, small_kernel, body, bodies):
    among = [BEGIN + one for one in bodies]
    right(*small_kernel(BEGIN + body, before=BEFORE, among=among), "y", 64 - np.arange(64))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (PLAIN["load"].replace("wait_parity(&full, 0);", ""), "race on shared"),
        (PLAIN["store"].replace('asm volatile("fence.proxy.async;" ::: "memory");', ""),
         r"reads s\[0\] asynchronously, and the thread that wrote it did not call fence.proxy"),
        (PLAIN["store"].replace("__syncthreads();", ""), "race on shared"),
        ("if (!t) init(&full, 1); __syncthreads();" + PLAIN["load"],
         "mbarrier, and the thread that initialized it called neither fence.mbarrier_init nor"),
        (PLAIN["store"].replace('"l"(y)', '"l"(y + 16348)'), r"y\[16384\], past its end"),
    ],
)  # fmt: skip
def test_a_bulk_copy_that_is_not_ordered_is_found(wrong, body, bodies, reason):
    wrong(reason, BEGIN + body, before=BEFORE, among=[BEGIN + one for one in bodies])


def test_what_is_loaded_is_not_there_before_its_barrier_is_waited_for(run_orders):
    body = PLAIN["load"].replace("wait_parity(&full, 0);", "__syncthreads();")
    for result in run_orders(BEGIN + body, before=BEFORE):
        assert not np.isin(result["y"][:64], 64 - np.arange(64)).any()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (PLAIN["load"].replace("[%1], %2,", "[%1 + 4], %2,"), "multiples of 16 bytes"),
        (PLAIN["load"].replace("[%0], [%1]", "[%0 + 16], [%1]"), "not all in shared memory"),
        (PLAIN["load"].replace("expect(&full, 256)", "expect(&full, 260)"), "and 4 more bytes"),
        ("CUtensorMap none{}; if (!t) load_tile(s, &none, 0, 0, &full);", "did not give"),
    ],
)
def test_a_malformed_bulk_copy_is_a_fault_with_its_reason(run_orders, body, bodies, reason):
    among = [BEGIN + one for one in bodies]
    with pytest.raises(KernelFault, match=reason):
        run_orders(BEGIN + body, before=BEFORE, among=among)


@pytest.mark.parametrize(
    ("first", "bytes_there", "reason"),
    [
        ("map", 4096 + 127, "covers 4224 bytes, and 'T' has 4223"),
        ("T", 8192, "parameter 1 of load_one is a tensor map but the launch gives a tensor"),
    ],
)
def test_a_map_must_fit_its_tensor_and_the_kernel(runner, tmp_path, first, bytes_there, reason):
    given_map = TensorMap("map", "T", "uint8", (128, 33), (128,), (128, 1))
    tensor, y = np.zeros(bytes_there, "uint8"), ("y", np.zeros(4 * WORDS, "uint8"))
    kernel, arenas, scalars = _kernel(tmp_path, "load_one", y, given_map, (0, 0), tensor)
    (launch,) = kernel.launches
    launch = replace(launch, arguments=(first, *launch.arguments[1:]))
    with raises("constraints", reason):
        runner.run(replace(kernel, launches=(launch,)), arenas, scalars, timeout_s=20.0)


def test_a_box_must_begin_at_a_multiple_of_16_bytes(runner, tmp_path):
    given_map = TensorMap("map", "T", "float16", (64, 4), (128,), (64, 2))
    tensor, y = np.zeros(512, "uint8"), ("y", np.zeros(4 * WORDS, "uint8"))
    kernel, arenas, scalars = _kernel(tmp_path, "load_one", y, given_map, (8, 1), tensor)
    runner.run(kernel, arenas, scalars, timeout_s=20.0)
    kernel, arenas, scalars = _kernel(tmp_path, "load_one", y, given_map, (7, 1), tensor)
    with raises("runtime", "begins 14 bytes into a row, which is no multiple of 16"):
        runner.run(kernel, arenas, scalars, timeout_s=20.0)
