"""Clusters of blocks, which reach one another's shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import wgmma_kernels as texts
from points import MORE

from pytest_gpuenergy.kernels import Im2col, TensorMap
from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

STEPS, BLOCKS, COLUMNS = 3, 6, 64
WAIT_FOR_EMPTY = "wait_parity(&empty, (step & 1) ^ 1);"
TELL_ALL = "if (t < 2) arrive_at(&empty, t);"
MEET = 'asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");'
# Of each row of X, a block loads one half for both blocks of its cluster.
SOURCE = f"""{texts.COMMON}{texts.PIPELINE}
__device__ void arrive_at(uint64_t* barrier, int rank) {{
  asm volatile("{{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
    " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];}}"
    :: "r"(shared_address(barrier)), "r"(rank) : "memory");
}}
__device__ void load_for_all(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    ".multicast::cluster [%0], [%1, {{%3, %4}}], [%2], %5;"
    :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y),
       "h"((unsigned short)3) : "memory");
}}
__global__ void __cluster_dims__(2, 1, 1) k(const __grid_constant__ CUtensorMap map, float* y) {{
  __shared__ __align__(128) float s[{COLUMNS}];
  __shared__ uint64_t full, empty;
  int t = threadIdx.x, rank = blockIdx.x % 2;
  if (t == 0) {{
    init(&full, 1);
    init(&empty, 2);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  {MEET}
  for (int step = 0; step < {STEPS}; ++step) {{
    int row = blockIdx.x / 2 * {STEPS} + step;
    if (t == 32) {{
      {WAIT_FOR_EMPTY}
      expect(&full, 4 * {COLUMNS});
      load_for_all(s + rank * {COLUMNS // 2}, &map, rank * {COLUMNS // 2}, row, &full);
    }}
    if (t < 32) {{
      wait_parity(&full, step & 1);
      float* to = y + (blockIdx.x * {STEPS} + step) * {COLUMNS};
      for (int i = t; i < {COLUMNS}; i += 32) to[i] = s[i];
      __syncwarp();
      {TELL_ALL}
    }}
  }}
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
}}"""


@pytest.fixture
def copied(built):
    """Make copied(old, new): the kernel with ``new`` for ``old``, its arenas and the right Y."""
    x = np.arange(BLOCKS // 2 * STEPS * COLUMNS, dtype="float32").reshape(-1, COLUMNS)

    def make(old="", new=""):
        assert old in SOURCE
        given = TensorMap("map", "X", "float32", x.shape[::-1], (4 * COLUMNS,), (COLUMNS // 2, 1))
        kernel, arenas = built(
            SOURCE.replace(old, new),
            {"X": x},
            {"Y": ((BLOCKS, STEPS, COLUMNS), "float32")},
            arguments=("map", "Y"),
            grid=BLOCKS,
            block=64,
            tensor_maps=(given,),
        )
        return kernel, arenas, np.repeat(x.reshape(-1, STEPS, COLUMNS), 2, axis=0)

    return make


def test_blocks_load_for_one_another(right, copied):
    kernel, arenas, expected = copied()
    right(kernel, arenas, "Y", expected)


def test_blocks_load_pixels_for_one_another(right, copied):
    kernel, arenas, expected = copied(
        ".2d.shared::cluster.global.tile", ".3d.shared::cluster.global.im2col"
    )
    source = kernel.source.replace("{%3, %4}], [%2], %5;", "{%3, %4, 0}], [%2], {0}, %5;")
    rows = BLOCKS // 2 * STEPS
    pixels = TensorMap(
        *("map", "X", "float32", (COLUMNS, rows, 1), (4 * COLUMNS, 4 * COLUMNS * rows)),
        *((COLUMNS // 2, 1), 0, Im2col((0,), (0,), (1,))),
    )
    right(replace(kernel, source=source, tensor_maps=(pixels,)), arenas, "Y", expected)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (WAIT_FOR_EMPTY, "", "race on shared memory|that expects 0 more arrivals"),
        MORE(
            TELL_ALL, "if (t == 0) { arrive_at(&empty, rank); arrive_at(&empty, rank); }", "race on"
        ),
        (TELL_ALL, "", "deadlock: .* waits at a cuda::barrier or mbarrier for"),
        MORE("wait_parity(&full, step & 1);", "", "race on shared memory"),
        ("barrier.cluster.arrive; barrier.cluster.wait;", "", "has ended"),
        (MEET, "__syncthreads();", "of another block of its cluster that nothing has initialized"),
        MORE(
            "[there];", "[there + 65536];", "of another block of its cluster that nothing has init"
        ),
        ('"r"(rank)', '"r"(rank + 2)', "to block [23] of a cluster of 2"),
        ("barrier.cluster.arrive; ", "", "barrier.cluster.wait without barrier.cluster.arrive"),
        ("cluster.arrive; ", "cluster.arrive; barrier.cluster.arrive; ", "arrive twice without"),
        ("__cluster_dims__(2, 1, 1)", "__cluster_dims__(4)", "clusters of 4 x 1 x 1 do not divide"),
        MORE("__cluster_dims__(2, 1, 1)", "__cluster_dims__(3, 3)", "clusters of 3 x 3 x 1 blocks"),
    ],
)
def test_what_is_wrong_in_a_cluster_is_found(runner, copied, old, new, reason):
    kernel, arenas, _ = copied(old, new)
    with pytest.raises(KernelFault, match=reason):
        runner.check_races(kernel, arenas, {}, timeout_s=20.0)


PLACE = """
__global__ void __cluster_dims__(2, 3) k(unsigned* y) {
  unsigned v[10];
  asm("mov.u32 %0, %%cluster_ctaid.x; mov.u32 %1, %%cluster_ctaid.y;"
      "mov.u32 %2, %%cluster_nctaid.y;"
      "mov.u32 %3, %%clusterid.x; mov.u32 %4, %%clusterid.y; mov.u32 %5, %%nclusterid.x;"
      "mov.u32 %6, %%nclusterid.y; mov.u32 %7, %%cluster_ctarank; mov.u32 %8, %%cluster_nctarank;"
      "mov.u32 %9, %%cluster_nctaid.x;"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]),
        "=r"(v[7]), "=r"(v[8]), "=r"(v[9]));
  for (int i = 0; i < 10; ++i) y[(blockIdx.y * gridDim.x + blockIdx.x) * 10 + i] = v[i];
}"""


def test_a_block_knows_its_place_in_its_cluster(run):
    found = run(PLACE, grid=(4, 6, 1), block=1, outputs={"y": (240, "uint32")})["y"]
    y, x = np.mgrid[:6, :4]
    rank = x % 2 + 2 * (y % 3)
    every = [x % 2, y % 3, 3, x // 2, y // 3, 2, 2, rank, 6, 2]
    np.testing.assert_array_equal(found, np.stack(np.broadcast_arrays(*every), -1).ravel())


def test_all_blocks_of_a_cluster_begin(run):
    source = """__global__ void __cluster_dims__(8) k(int* y) {
      asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
      if (threadIdx.x == 0) y[blockIdx.x] = 7;
    }"""
    found = run(source, grid=8, block=1024, outputs={"y": (8, "int32")})["y"]
    np.testing.assert_array_equal(found, 7)


@pytest.mark.parametrize(
    "text",
    [
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%1], %0, [%1];",
        "mapa.u32 %0, %1, 0;",
    ],
)
def test_other_accesses_to_the_shared_memory_of_other_blocks_are_refused(run, text):
    source = (
        f'__global__ void k(unsigned* y) {{ unsigned a = 0; asm("{text}" : "+r"(y[0]) : "r"(a)); }}'
    )
    with pytest.raises(KernelFault, match="cannot run on the emulated GPU: inline PTX"):
        run(source, outputs={"y": (1, "uint32")})


def test_a_cluster_is_a_group_of_cooperative_groups(run):
    source = """#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __global__ void __cluster_dims__(2, 3) k(unsigned* y, unsigned* flags) {
      auto cluster = cg::this_cluster();
      unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
      unsigned first = block - cluster.block_index().x - gridDim.x * cluster.block_index().y;
      if (threadIdx.x == 0) flags[block] = 1 + cluster.block_rank();
      cluster.sync();
      if (threadIdx.x) return;
      y[block] = flags[first] + 100 * cluster.num_blocks() + 10000 * cluster.dim_blocks().y;
      cluster.sync();
    }"""
    outputs = {"y": (24, "uint32"), "flags": (24, "uint32")}
    found = run(source, outputs=outputs, grid=(4, 6, 1), block=32)
    assert found["y"].tolist() == [30601] * 24
    ranks = [1 + x % 2 + 2 * (y % 3) for y in range(6) for x in range(4)]
    assert found["flags"].tolist() == ranks


SYNC = "cluster.sync();"
HISTOGRAM = f"""#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void __cluster_dims__(4) k(const int* x, int* y) {{
  extern __shared__ int total[];
  __shared__ int bins[8];
  cg::cluster_group cluster = cg::this_cluster();
  int t = threadIdx.x, first = blockIdx.x - cluster.block_rank();
  if (t < 8) bins[t] = 0;
  if (t == 0) total[0] = 0;
  {SYNC}
  // Each block owns 8 of the 32 bins of its cluster.
  int bin = x[blockIdx.x * blockDim.x + t];
  int* owner = cluster.map_shared_rank(bins, bin / 8);
  atomicAdd(&owner[bin % 8], 1);
  {SYNC}
  if (t < 8) atomicAdd(cluster.map_shared_rank(total, 0), bins[t]);
  {SYNC}
  if (t < 8) y[blockIdx.x * 9 + t] = bins[t];
  if (t == 8) y[blockIdx.x * 9 + 8] = *cluster.map_shared_rank(total, 0)
      + 1000 * cluster.query_shared_rank(cluster.map_shared_rank(total, 3));
  {SYNC}
}}"""


@pytest.fixture
def counted(built):
    """Make counted(source): the kernel, its arenas and the right y."""

    def make(source):
        x = np.random.default_rng(5).integers(0, 32, (2, 4 * 64)).astype("int32")
        kernel, arenas = built(
            source, {"x": x}, {"y": ((8, 9), "int32")}, grid=8, block=64, shared_bytes=4
        )
        bins = np.stack([np.bincount(row, minlength=32) for row in x]).reshape(8, 8)
        return kernel, arenas, np.column_stack([bins, np.full(8, 3256)])

    return make


def test_blocks_access_the_shared_memory_of_one_another(right, counted):
    kernel, arenas, expected = counted(HISTOGRAM)
    right(kernel, arenas, "y", expected)


def changed(number, new, text=HISTOGRAM):
    """Return the text with the barrier of that number changed."""
    parts = text.split(SYNC)
    return SYNC.join(parts[: number + 1]) + new + SYNC.join(parts[number + 1 :])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (changed(0, "__syncthreads();"), "of another block of its cluster, which may"),
        (changed(1, "__syncthreads();"), r"race on shared memory: .* bins\[\d\], and nothing"),
        (changed(2, "__syncthreads();"), "race on shared memory: .* the dynamic"),
        (changed(3, ""), "may end before .* has accessed its shared memory|which has ended"),
        (HISTOGRAM.replace("atomicAdd(&owner[bin % 8], 1)", "owner[bin % 8] += 1"),
         "race on shared memory"),
        (HISTOGRAM.replace("owner[bin % 8]", "owner[bin]"), r"past its end of 8 elements|outside"),
        (HISTOGRAM.replace("(total, 3)", "(total, 4)"), "block 4 of its cluster, which does not"),
        (HISTOGRAM.replace("(bins, bin / 8)", "(&bin, bin / 8)"), "that is not in shared memory"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_accesses_among_blocks_is_found(runner, counted, source, reason):
    kernel, arenas, _ = counted(source)
    with pytest.raises(KernelFault, match=reason):
        runner.check_races(kernel, arenas, {}, timeout_s=20.0)


@pytest.mark.parametrize(
    "access",
    [
        "int* there = (int*)__cluster_map_shared_rank(&s, other); v = there[0]; *there = 5;",
        'asm("{.reg .u64 a; mapa.u64 a, %1, %2; ld.s32 %0, [a]; st.s32 [a], 5;}"'
        ' : "=r"(v) : "l"(&s), "r"(other) : "memory");',
        'asm("{.reg .b32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.s32 %0, [a];'
        ' st.shared::cluster.s32 [a], 3; red.shared::cluster.add.s32 [a], 2;}"'
        ' : "=r"(v) : "r"((unsigned)__cvta_generic_to_shared(&s)), "r"(other) : "memory");',
        'asm("{.reg .u64 a; mapa.u64 a, %1, %2; getctarank.u64 %0, a;}"'
        ' : "=r"(v) : "l"(&s), "r"(other)); v = v == other ? 71 - blockIdx.x % 2 : 0;'
        " *(int*)__cluster_map_shared_rank(&s, other) = 5;",
    ],
)
def test_addresses_in_other_blocks_are_those_of_ptx(run, access):
    source = f"""__global__ void __cluster_dims__(2) k(int* y) {{
      __shared__ int s;
      int other = 1 - blockIdx.x % 2, v = 0;
      s = 70 + blockIdx.x % 2;
      __cluster_barrier_arrive();
      __cluster_barrier_wait();
      {access}
      __cluster_barrier_arrive();
      __cluster_barrier_wait();
      y[blockIdx.x] = 100 * v + s;
    }}"""
    y = run(source, outputs={"y": (4, "int32")}, grid=4)["y"]
    np.testing.assert_array_equal(y, [7105, 7005, 7105, 7005])


def test_a_template_may_have_clusters_of_a_plain_size(run):
    source = """template <int N> __global__ void __cluster_dims__(2, 1) k(int* y) {
      unsigned n;
      asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
      if (threadIdx.x == 0) y[blockIdx.x] = N + n;
    }"""
    y = run(source, outputs={"y": (4, "int32")}, grid=4, entry="k<5>")["y"]
    assert y.tolist() == [7] * 4
