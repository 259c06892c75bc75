"""Pipelines of <cuda/pipeline>."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

BEFORE = """
#include <cooperative_groups.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
"""
# Each reads x in parts of 64 and adds up what is at 63 - t in each of the four.
OF_ONE = """__shared__ float s[2][64]; float sum = 0;
auto pipe = cuda::make_pipeline();
auto load = [&](int k) {
  pipe.producer_acquire();
  cuda::memcpy_async(&s[k % 2][t], &x[64 * k + t], cuda::aligned_size_t<4>(4), pipe);
  pipe.producer_commit();
};
load(0);
for (int k = 0; k < 4; ++k) {
  __syncthreads();
  if (k < 3) load(k + 1);
  WAIT
  __syncthreads();
  sum += s[k % 2][63 - t];
  pipe.consumer_release();
}
y[t] = sum;"""
SHARED = """__shared__ float s[2][64]; float sum = 0;
#pragma nv_diag_suppress static_var_with_dynamic_init
__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
auto block = cg::this_thread_block();
"""
UNIFIED = f"""{SHARED}auto pipe = cuda::make_pipeline(block, &state);
for (int k = 0, next = 0; k < 4; ++k) {{
  for (; next < 4 && next < k + 2; ++next) {{
    ACQUIRE
    cuda::memcpy_async(block, s[next % 2], x + 64 * next, sizeof(float) * 64, pipe);
    pipe.producer_commit();
  }}
  WAIT
  sum += s[k % 2][63 - t];
  RELEASE
}}
y[t] = sum;"""
PARTED = f"""{SHARED}auto pipe = cuda::make_pipeline(block, &state, ROLE);
if (t < 32) {{
  for (int k = 0; k < 4; ++k) {{
    ACQUIRE
    for (int i = t; i < 64; i += 32)
      cuda::memcpy_async(&s[k % 2][i], &x[64 * k + i], sizeof(float), pipe);
    pipe.producer_commit();
  }}
}} else {{
  float other = 0;
  for (int k = 0; k < 4; ++k) {{
    WAIT
    sum += s[k % 2][63 - t];
    other += s[k % 2][95 - t];
    RELEASE
  }}
  y[t] = sum; y[t - 32] = other;
}}
pipe.quit();"""
ROLES = "t < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer"


def _filled(text, **changed):
    usual = {
        "ACQUIRE": "pipe.producer_acquire();",
        "WAIT": "pipe.consumer_wait();",
        "RELEASE": "pipe.consumer_release();",
        "ROLE": ROLES,
    }
    for name, statement in {**usual, **changed}.items():
        text = text.replace(name, statement)
    return text


PRIOR = "if (k < 3) cuda::pipeline_consumer_wait_prior<1>(pipe);"
PRIOR += " else cuda::pipeline_consumer_wait_prior<0>(pipe);"
RIGHT = {
    "of one thread": _filled(OF_ONE),
    "but the latest": _filled(OF_ONE, WAIT=PRIOR),
    "unified": _filled(UNIFIED),
    "by roles": _filled(PARTED),
    "by a number of producers": _filled(PARTED, ROLE="32"),
    "waiting for a time": _filled(
        PARTED, WAIT="while (!pipe.consumer_wait_for(cuda::std::chrono::nanoseconds(5)));"
    ),
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_pipelines_bring_copies_in_time(run_orders, check_races, body):
    for result in run_orders(body, before=BEFORE):
        np.testing.assert_array_equal(result["y"][:64], np.full(64, 4))
    assert check_races(body, before=BEFORE).launches[0].blocks_run == 1


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (OF_ONE, {"WAIT": ""}),
        (OF_ONE, {"WAIT": "cuda::pipeline_consumer_wait_prior<1>(pipe);"}),
    ],
)
def test_a_copy_that_the_thread_does_not_wait_for_is_not_there(run_orders, text, changed):
    for result in run_orders(_filled(text, **changed), before=BEFORE):
        assert not np.array_equal(result["y"][:64], np.full(64, 4))


@pytest.mark.parametrize("text", [UNIFIED, PARTED])
@pytest.mark.parametrize("missing", ["WAIT", "ACQUIRE"])
def test_a_stage_that_is_not_waited_for_is_found(fault_of, text, missing):
    fault = fault_of(_filled(text, **{missing: ""}), before=BEFORE)
    assert any(words in str(fault) for words in ("race on shared memory", "expects", "deadlock"))


@pytest.mark.parametrize("text", [UNIFIED, PARTED])
def test_a_stage_that_is_not_released_is_a_deadlock(run_orders, text):
    with pytest.raises(KernelFault, match=r"deadlock: .* waits at a cuda::barrier"):
        run_orders(_filled(text, RELEASE=""), before=BEFORE)
