"""cuda/atomic: references and objects, orders of memory and scopes."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow

INCLUDE = "#include <cuda/atomic>\n// A comment, before a variable ->\n"
DECLARED = {
    "reference": (
        "__device__ int flags[8];",
        "cuda::atomic_ref<int, cuda::thread_scope_SCOPE> mine(flags[b]), other(flags[7 - b]);",
    ),
    "object": (
        "__device__ cuda::atomic<int, cuda::thread_scope_SCOPE> flags[8];",
        "auto &mine = flags[b], &other = flags[7 - b];",
    ),
}
EXCHANGE = """
  y[i] = i;
  __syncthreads();
  if (t == 0) {
    mine.store(1, cuda::memory_order_RELEASE);
    while (other.load(cuda::std::memory_order_acquire) == 0) {}
    other.store(0, cuda::memory_order_relaxed);
  }
  __syncthreads();
  n[i] = y[64 * (7 - b) + t];"""


def _exchange(declared: str, release: str, scope: str = "device") -> tuple[str, str]:
    before, inside = DECLARED[declared]
    body = (inside + EXCHANGE).replace("RELEASE", release).replace("SCOPE", scope)
    return body, INCLUDE + before.replace("SCOPE", scope)


@pytest.mark.parametrize("declared", DECLARED)
def test_what_is_released_is_acquired(check_races, run_orders, declared):
    body, before = _exchange(declared, "release")
    assert check_races(body, grid=8, before=before).launches[0].blocks_run == 8
    for result in run_orders(body, grid=8, before=before):
        expected = np.arange(512).reshape(8, 64)[::-1].ravel()
        np.testing.assert_array_equal(result["n"][:512], expected)


@pytest.mark.parametrize(("release", "scope"), [("relaxed", "device"), ("release", "block")])
def test_a_relaxed_store_and_the_scope_of_a_block_order_no_blocks(fault_of, release, scope):
    body, before = _exchange("reference", release, scope)
    assert "nothing orders blocks" in str(fault_of(body, grid=8, before=before))


FUNCTIONS = """
  __shared__ cuda::atomic<int, cuda::thread_scope_block> a;
  __shared__ float largest;
  if (!t) { a = 0; largest = -1; }
  __syncthreads();
  a += t; a++; --a; a.fetch_sub(t); a.fetch_add(2, cuda::memory_order_relaxed);
  a.fetch_or(0); a ^= 0; a &= -1;
  cuda::atomic_ref<float> top(largest);
  for (float old = top.load(); old < t && !top.compare_exchange_weak(old, (float)t);) {}
  cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_block);
  __syncthreads();
  if (t == 40) a.wait(128); else if (t == 3) { a.store(7); a.notify_all(); }
  __syncthreads();
  if (!t) { int old = 7; n[0] = a.compare_exchange_strong(old, 9) + 10 * a; n[1] = largest;
            n[2] = a.fetch_max(5) + a.fetch_min(4) + a.exchange(1) + a; }"""


def test_every_function_does_what_it_says(check_races, run_orders):
    check_races(FUNCTIONS, before=INCLUDE)
    for result in run_orders(FUNCTIONS, before=INCLUDE):
        assert result["n"][:3].tolist() == [91, 63, 9 + 9 + 4 + 1]


def test_headers_of_cuda_std_are_those_of_the_host(run):
    source = """
    #include <cuda/std/algorithm>
    #include <cuda/std/array>
    #include <cuda/std/functional>
    #include <cuda/std/numeric>
    #include <cuda/std/optional>
    #include <cuda/std/tuple>
    #include <cuda/std/variant>
    __global__ void k(const float* x, float* y) {
      cuda::std::array<float, 2> a{x[0], x[1]};
      auto [first, second] = cuda::std::make_tuple(a[0], cuda::std::max(a[1], 5.0f));
      cuda::std::optional<float> third = cuda::std::plus<float>()(first, second);
      y[0] = *third + cuda::std::accumulate(a.begin(), a.end(), 0.0f);
    }"""
    x = np.array([1, 2], np.float32)
    assert run(source, {"x": x}, {"y": (1, "float32")})["y"][0] == 9
