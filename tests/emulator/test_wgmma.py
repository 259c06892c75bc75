"""``wgmma``: where its operands lie, what it computes and when, also in a whole Hopper kernel."""

from __future__ import annotations

import numpy as np
import pytest
import wgmma_kernels as texts
from hypothesis import HealthCheck, given, settings, strategies as st
from outcomes import raises
from points import MORE

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch, TensorMap
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Scalar, Tensor, rounded_to

pytestmark = pytest.mark.slow
BYTES = 49152
B_AT = 16384
SOURCE = """{common}{products}
__global__ void __launch_bounds__(128) k(const uint32_t* x, const float* c, float* y,
    int a_leading, int a_stride, int a_swizzle, int b_leading, int b_stride, int b_swizzle,
    int form, int accumulate) {{
  extern __shared__ __align__(1024) uint32_t s[];
  for (int i = threadIdx.x; i < {bytes} / 4; i += 128) s[i] = x[i];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float d[{count}];
  for (int k = 0; k < {count}; ++k) d[k] = c[threadIdx.x * {count} + k];
  uint64_t a = descriptor(shared_address(s), a_leading, a_stride, a_swizzle);
  uint64_t b = descriptor(shared_address(s) + {b_at}, b_leading, b_stride, b_swizzle);
  fence();
  {calls}
  commit();
  wait<0>();
  store<{columns}>(d, y);
}}"""
FORMS = [(1, 1, 0, 0), (1, 1, 1, 0), (1, -1, 0, 1), (-1, 1, 1, 1)]


def _source(columns, kind):
    forms = FORMS if kind in texts.TURNED else FORMS[:1]
    products = "".join(
        texts.product(f"p{k}", columns, kind, flags=flags) for k, flags in enumerate(forms)
    )
    calls = " ".join(f"if (form == {k}) p{k}(d, a, b, accumulate);" for k in range(len(forms)))
    return SOURCE.format(common=texts.COMMON, products=products, bytes=BYTES, b_at=B_AT,
                         count=columns // 2, columns=columns, calls=calls)  # fmt: skip


def _held(matrix):
    """Return the elements of a result that each thread holds, in the order of its registers."""
    thread, k = np.meshgrid(np.arange(128), np.arange(matrix.shape[1] // 2), indexing="ij")
    row = thread // 32 * 16 + thread % 32 // 4 + k // 2 % 2 * 8
    return matrix[row, k // 4 * 8 + thread % 4 * 2 + k % 2]


@settings(max_examples=6, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@pytest.mark.parametrize(
    ("columns", "kind"),
    [(8, "bf16"), (256, "bf16"), MORE(72, "f16"), (40, "tf32"), (48, "e4m3"), MORE(16, "e5m2")],
)
@given(data=st.data())
def test_products_of_matrices_in_shared_memory(run, columns, kind, data):
    form = data.draw(st.integers(0, 3 if kind in texts.TURNED else 0))
    a_scale, b_scale, *transposed = FORMS[form]
    accumulate = data.draw(st.booleans())
    swizzles = data.draw(st.tuples(*[st.sampled_from(sorted(texts.SWIZZLES))] * 2))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    depth, itemsize = texts.DEPTHS[kind], texts.BYTES[kind]
    image = rng.integers(0, 2**32, BYTES // 4, np.uint32).view(f"<u{itemsize}")
    scalars, operands = [], []
    for name, rows, start, swizzle, turned in zip("ab", (64, columns), (0, B_AT), swizzles,
                                                  transposed, strict=True):  # fmt: skip
        gap = data.draw(st.integers(0, 1)) if rows == 64 else 0
        lay, size = texts.layout(swizzle, rows, depth, itemsize, transposed=bool(turned), gap=gap)
        assert size <= (B_AT if name == "a" else BYTES - B_AT)
        matrix = rng.integers(-4, 5, (rows, depth)).astype("<f4")
        at = texts.offsets(lay, rows, depth, itemsize, start)
        image[at // itemsize] = texts.encoded(matrix, kind)
        operands.append(matrix)
        sizes = (lay.leading, lay.stride, texts.SWIZZLES[swizzle])
        scalars += [Scalar(f"{name}{k}", "int32", one) for k, one in enumerate(sizes)]
    scalars += [Scalar("form", "int32", form), Scalar("accumulate", "int32", int(accumulate))]
    c = rng.integers(-99, 100, (64, columns)).astype("<f4")
    inputs = {"x": image.view("<u4"), "c": np.ascontiguousarray(_held(c))}
    y = run(_source(columns, kind), inputs, {"y": (64 * columns, "float32")}, block=128,
            shared_bytes=BYTES, scalars=scalars,
            arguments=("x", "c", "y", *(one.name for one in scalars)))["y"]  # fmt: skip
    expected = a_scale * b_scale * operands[0] @ operands[1].T + accumulate * c
    np.testing.assert_array_equal(y.reshape(64, columns), expected)


def _summed(run, first, terms, c):
    """Add 32 products of 8-bit numbers, all `terms` but one that is `first`, to a sum of `c`."""
    a = np.full((64, 32), terms)
    a[:, 0] = first
    image = np.zeros(BYTES, np.uint8)
    scalars = []
    for name, matrix, start in (("a", a, 0), ("b", np.ones((8, 32)), B_AT)):
        lay, _ = texts.layout(32, len(matrix), 32, 1, transposed=False)
        image[texts.offsets(lay, *matrix.shape, 1, start)] = texts.encoded(matrix, "e4m3")
        sizes = (lay.leading, lay.stride, texts.SWIZZLES[32])
        scalars += [Scalar(f"{name}{k}", "int32", one) for k, one in enumerate(sizes)]
    scalars += [Scalar("form", "int32", 0), Scalar("accumulate", "int32", 1)]
    inputs = {"x": image.view("<u4"), "c": _held(np.full((64, 8), c, "<f4")).copy()}
    y = run(_source(8, "e4m3"), inputs, {"y": (512, "float32")}, block=128, shared_bytes=BYTES,
            scalars=scalars,
            arguments=("x", "c", "y", *(one.name for one in scalars)))["y"]  # fmt: skip
    assert len(set(y)) == 1
    return float(y[0])


def test_sums_of_8_bit_products_keep_13_bits_below_their_largest_term(run):
    assert _summed(run, first=1, terms=0, c=2.0**13) == 2**13 + 1
    assert _summed(run, first=1, terms=0, c=2.0**14) == 2**14  # cut off
    assert _summed(run, first=-1, terms=0, c=2.0**14) == 2**14
    assert _summed(run, first=1.5, terms=1.5, c=2.0**13) == 2**13 + 32  # each of them


def test_a_comes_from_registers(run):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, shape).astype("<f4") for shape in ((64, 16), (16, 16)))
    thread, k = np.meshgrid(np.arange(128), np.arange(8), indexing="ij")
    row = thread // 32 * 16 + thread % 32 // 4 + k // 2 % 2 * 8
    held = a[row, k // 4 * 8 + thread % 4 * 2 + k % 2]
    lay, size = texts.layout(32, 16, 16, 2, transposed=True)
    image = np.zeros(size // 2, "<u2")
    image[texts.offsets(lay, 16, 16, 2) // 2] = texts.encoded(b, "f16")
    product = texts.product("multiply", 16, "f16", a="registers", flags=(1, 1, 0, 1))
    source = f"""{texts.COMMON}{product}
    __global__ void k(const uint32_t* x, const uint32_t* a, float* y) {{
      __shared__ __align__(1024) uint32_t s[{size // 4}];
      for (int i = threadIdx.x; i < {size // 4}; i += 128) s[i] = x[i];
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncthreads();
      float d[8];
      fence();
      uint64_t b = descriptor(shared_address(s), {lay.leading}, {lay.stride}, 3);
      multiply(d, a + 4 * threadIdx.x, b, 0);
      commit();
      wait<0>();
      store<16>(d, y);
    }}"""
    inputs = {"x": image.view("<u4"), "a": texts.encoded(held, "f16").view("<u4")}
    y = run(source, inputs, {"y": (1024, "float32")}, block=128)["y"]
    np.testing.assert_array_equal(y.reshape(64, 16), a @ b.T)


SMALL = (
    texts.COMMON
    + texts.product("multiply", 8, "f16")
    + texts.product("wider", 16, "f16").replace("float (&d)[8]", "float* d")
)
BEGIN = """
  __shared__ __align__(128) uint32_t s[1024];
  for (int i = t; i < 1024; i += blockDim.x) s[i] = 0x3c003c00;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float d[8] = {};
  uint64_t in_a = descriptor(shared_address(s), 1024, 128, 0);
  uint64_t in_b = descriptor(shared_address(s), 128, 256, 0);
"""
PRODUCT = "fence(); multiply((float (&)[4])d, in_a, in_b, 1); commit();"


def test_groups_are_waited_for_one_after_another(right, small_kernel):
    body = f"""{BEGIN} float e[4] = {{}};
      {PRODUCT} multiply(e, in_a, in_b, 1); multiply(e, in_a, in_b, 1); commit();
      wait<1>(); y[t] = d[0]; y[t + 128] = e[0]; wait<0>(); y[t + 256] = e[0];"""
    right(*small_kernel(body, before=SMALL, block=128), "y", np.repeat([16, np.nan, 32], 128))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("multiply((float (&)[4])d, in_a, in_b, 1);", "without a wgmma.fence"),
        (f"{PRODUCT} d[1] += 1; wait<0>();", "changes an accumulator"),
        (f"{PRODUCT} wider(d, in_a, in_b, 1);", "for 16 columns .* that are in use for 8"),
        (PRODUCT.replace("in_a,", "descriptor(1 << 17, 1024, 128, 0),"), "outside shared memory"),
        (PRODUCT.replace("in_a,", "descriptor(shared_address(s + 512), 1024, 1024, 0),"),
         "with wgmma.mma_async"),
        (f"s[5] = 0; __syncthreads(); {PRODUCT} wait<0>();", "did not call fence.proxy.async"),
        (f"{PRODUCT} if (t == 3) s[0] = 1; wait<0>();", "race on shared memory"),
    ],
)  # fmt: skip
def test_wrong_use_of_a_product_is_found(wrong, body, reason):
    wrong(reason, BEGIN + body, before=SMALL, block=128)


@pytest.mark.parametrize(
    ("body", "block", "reason"),
    [
        (f"if (t < 96) {{ {PRODUCT} }}", 128, "other threads of its warpgroup never call"),
        ("if (t < 64) { fence(); } else { commit(); }", 128, "divergence: .* wgmma.commit_group"),
        (
            "fence(); if (t < 96) multiply((float (&)[4])d, in_a, in_b, 1); commit();",
            128,
            "divergence: 96 of the 128 threads .* wgmma.mma_async in line",
        ),
        ("fence();", 96, "four warps of a warpgroup: its block has 96 threads"),
        (PRODUCT.replace("in_a, in_b", "in_a + t, in_b"), 128, "with different descriptors"),
    ],
)
def test_warps_that_part_are_a_fault(run_orders, body, block, reason):
    with raises("runtime", reason):
        run_orders(BEGIN + body, before=SMALL, block=block)


M, N, K, DEPTH = 128, 128, 256, 64
WAIT_FOR_FULL = "wait_parity(&full[i], k / stages & 1);"
WAIT_FOR_EMPTY = "wait_parity(&empty[i], (k / stages & 1) ^ 1);"
SPECIALIZED = (
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
    """Make product(without): the kernel without a statement, its arenas and the right C."""
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-3, 4, (rows, K)).astype(np.float64) for rows in (M, N))

    def make(without=""):
        source = SPECIALIZED.replace("WAIT_FOR_FULL", WAIT_FOR_FULL)
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


def test_a_pipelined_product_is_right_in_every_order_and_does_not_race(right, product):
    kernel, arenas, expected = product()
    right(kernel, arenas, "C", expected)


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ("wait<0>();", "race on shared memory"),
        ("fence();\n", "without a wgmma.fence"),
        MORE(WAIT_FOR_FULL, "race on shared memory"),
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
