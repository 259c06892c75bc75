"""What orders the lanes of a warp, and what does not."""

import pytest

pytestmark = pytest.mark.slow

SHARED = "__shared__ float s[64]; s[t] = 0; __syncthreads();"
"""So that all is initialized."""


@pytest.mark.parametrize(
    "between",
    [
        "",
        "__shfl_sync(~0u, t, 0);",
        "__shfl_xor_sync(~0u, t, 1);",
        "__ballot_sync(~0u, t & 1);",
        "__any_sync(~0u, 1);",
        "__activemask();",
        "__threadfence_block();",
        "__syncwarp(1u << t % 32);",
    ],
)
def test_only_syncwarp_orders_the_memory_of_lanes(fault_of, between):
    fault = fault_of(f"{SHARED} s[t] = x[t]; {between} y[t] = s[t ^ 1];")
    assert fault.outcome == "correctness"
    assert "race on shared memory" in str(fault)


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 1];",
        "s[t] = x[t]; __syncwarp(3u << (t % 32 & ~1)); y[t] = s[t ^ 1];",
        "s[t] = x[t]; __syncwarp(t & 16 ? 0xffff0000u : 0xffffu); y[t] = s[t ^ 9];",
        "s[t] = x[t]; __syncwarp(); float v = s[t ^ 1]; __syncwarp(); s[t ^ 1] = v + t;",
        "for (int d = 16; d; d /= 2) { if (t % 32 < d) s[t] += s[t + d]; __syncwarp(); }",
        "if (t < 16) { s[t] = t; __syncwarp(0xffff); y[t] = s[15 - t]; }",
        "s[t] = t; __shfl_sync(~0u, t, 0); __syncwarp(); y[t] = s[t ^ 3];",
        # One lane may learn of another's writes from a third.
        "if (t == 0) s[0] = 1; if (t < 2) __syncwarp(3); if (t == 1 || t == 2) __syncwarp(6);"
        " if (t == 2) y[0] = s[0];",
    ],
)
def test_syncwarp_orders_the_lanes_of_its_mask(check_races, body):
    assert check_races(f"{SHARED} {body}").launches[0].blocks_run == 1


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = x[t]; __syncwarp(t & 16 ? 0xffff0000u : 0xffffu); y[t] = s[t ^ 16];",
        "s[t] = x[t]; __syncwarp(3u << (t % 32 & ~1)); y[t] = s[t ^ 2];",
        "if (t < 16) { s[t] = t; __syncwarp(0xffff); } else if (t < 32) y[t] = s[t - 16];",
        "if (t == 0) s[0] = 1; if (t == 1 || t == 2) __syncwarp(6); if (t < 2) __syncwarp(3);"
        " if (t == 2) y[0] = s[0];",
        "for (int d = 16; d; d /= 2) { if (t % 32 < d) s[t] += s[t + d]; }",
        "s[t] = t; for (int d = 32; d; d /= 2) { if (t < d) s[t] += s[t + d]; __syncwarp(); }",
        "s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 1]; s[t] = 2;",
        "s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 32];",
    ],
)
def test_syncwarp_orders_no_others(fault_of, body):
    fault = fault_of(f"{SHARED} {body}")
    assert fault.outcome == "correctness"
    assert "race on shared memory" in str(fault)


def test_tensors_are_ordered_by_lane_too(check_races, fault_of):
    body = "y[t] = t; {} if (t % 2) y[t ^ 1] += 1;"
    assert check_races(body.format("__syncwarp();")).launches[0].blocks_run == 1
    assert "race on global memory" in str(fault_of(body.format("__shfl_sync(~0u, t, 0);")))
