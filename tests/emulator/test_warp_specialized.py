"""A product of matrices as Hopper's are written: tiles by TMA, mbarriers, wgmma, roles of warps."""

from __future__ import annotations

import numpy as np
import pytest
import wgmma_kernels as texts

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch, TensorMap
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor, rounded_to

pytestmark = pytest.mark.slow

M, N, K, DEPTH = 128, 128, 256, 64
WAIT_FOR_FULL = "wait_parity(&full[i], k / stages & 1);"
WAIT_FOR_EMPTY = "wait_parity(&empty[i], (k / stages & 1) ^ 1);"
SOURCE = (
    texts.COMMON
    + texts.PIPELINE
    + texts.product("multiply", N, "bf16")
    + """
constexpr int stages = 2, depth = 64, tile_bytes = 128 * depth * 2;

__global__ void __launch_bounds__(160) k(const __grid_constant__ CUtensorMap a,
    const __grid_constant__ CUtensorMap b, float* c) {
  extern __shared__ __align__(1024) unsigned char s[];
  __shared__ uint64_t full[stages], empty[stages];
  if (threadIdx.x == 0) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&a) : "memory");
    for (int i = 0; i < stages; ++i) { init(&full[i], 1); init(&empty[i], 1); }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    for (int k = 0; threadIdx.x == 128 && k < 4; ++k) {
      int i = k % stages;
      WAIT_FOR_EMPTY
      expect(&full[i], 2 * tile_bytes);
      load_tile(s + 2 * i * tile_bytes, &a, k * depth, 0, &full[i]);
      load_tile(s + (2 * i + 1) * tile_bytes, &b, k * depth, 0, &full[i]);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float d[2][64];
  for (int k = 0; k < 4; ++k) {
    int i = k % stages;
    WAIT_FOR_FULL
    uint32_t tile = shared_address(s) + 2 * i * tile_bytes;
    fence();
    for (int half = 0; half < 2; ++half)
      for (int j = 0; j < depth / 16; ++j)
        multiply(d[half], descriptor(tile + half * 64 * depth * 2 + 32 * j, 16, 1024, 1),
                 descriptor(tile + tile_bytes + 32 * j, 16, 1024, 1), k + j);
    commit();
    wait<0>();
    if (threadIdx.x == 0) arrive(&empty[i]);
  }
  store<128>(d[0], c);
  store<128>(d[1], c + 64 * 128);
}"""
)


@pytest.fixture
def product(tmp_path):
    """product(without): the kernel, without some statement, its arenas, and what C should be."""
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-3, 4, (rows, K)).astype(np.float64) for rows in (M, N))

    def make(without=""):
        source = SOURCE.replace("WAIT_FOR_FULL", WAIT_FOR_FULL)
        source = source.replace("WAIT_FOR_EMPTY", WAIT_FOR_EMPTY)
        if without:
            assert source.count(without) == 1
        arenas = {}
        for name, values in (("A", a), ("B", b)):
            tensor = Tensor(name, values.shape, "bfloat16", "input")
            arenas[name] = Arena.create(tmp_path / name, tensor, rounded_to(values, "bfloat16"))
        arenas["C"] = Arena.create(tmp_path / "C", Tensor("C", (M, N), "float32", "output"))
        maps = [
            TensorMap(name.lower(), name, "bfloat16", (K, rows), (2 * K,), (DEPTH, rows), 128)
            for name, rows in (("A", M), ("B", N))
        ]
        launch = Launch("k", (1, 1, 1), (160, 1, 1), ("a", "b", "C"), 4 * 128 * DEPTH * 2)
        kernel = Kernel(source.replace(without, ""), (launch,), tensor_maps=tuple(maps))
        return kernel, arenas, a @ b.T

    return make


def test_a_pipelined_product_is_right_in_every_order_and_does_not_race(runner, product):
    kernel, arenas, expected = product()
    runner.check_races(kernel, arenas, {}, timeout_s=20.0)
    with runner.open(kernel, arenas, {}, timeout_s=20.0) as program:
        for order_seed in range(3):
            arenas["C"].fill(np.zeros((M, N), "float32"))
            program.run(order_seed=order_seed)
            np.testing.assert_array_equal(arenas["C"].value(), expected)


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ("wait<0>();", "race on shared memory"),
        ("fence();\n", "without a wgmma.fence"),
        (WAIT_FOR_FULL, "race on shared memory"),
        (WAIT_FOR_EMPTY, "deadlock"),
    ],
)
def test_a_missing_wait_or_fence_is_found(runner, product, without, reason):
    kernel, arenas, _ = product(without)
    with pytest.raises(KernelFault, match=reason):
        runner.check_races(kernel, arenas, {}, timeout_s=20.0)


def test_without_a_wait_there_is_no_result(runner, product):
    kernel, arenas, expected = product("wait<0>();")
    runner.run(kernel, arenas, {}, timeout_s=20.0)
    assert not np.isfinite(arenas["C"].value()).any()
    assert np.isfinite(expected).all()
