"""What moves know about the values of integer expressions, seen by the checks that they remove."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from move_checks import results, spec_of
from moved_triton import add_of
from msgspec.structs import replace

KERNEL = """
#define HALF (SIZE / 2)
constexpr int SIZE = 0x40;
__global__ void kernel(const float* x, float* y, int n, int step) {{
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  int changing = threadIdx.x;
  changing += n;
  for (int i = 0; i < n; i += step) {{
    for (int j = lane; j < 32; j += 32) {{
      if ({}) y[threadIdx.x] = x[threadIdx.x];
    }}
  }}
}}
"""

ALWAYS = [
    "threadIdx.x < 64",
    "threadIdx.x <= 63u",
    "64 > threadIdx.x",
    "63 >= (int)threadIdx.x",
    "threadIdx.x < SIZE",
    "lane < HALF",
    "lane + 32 * warp < blockDim.x",
    "(threadIdx.x >> 5) < 2",
    "(threadIdx.x % 32) + 1 <= 32",
    "(lane << 1) < 63",
    "static_cast<int>(threadIdx.x) < n",
    "int(blockIdx.x) < gridDim.x",
    "i < n",
    "i + lane < n",
    "i / step < n / step",
    "j < 32",
    "+lane < 32",
    "n - i >= 32",
    "n - lane > 0",
    "warp * 32 + lane < n && lane < 32",
    "blockIdx.y < 1",
    "lane / (lane + 1) < 32",
]

NOT_ALWAYS = [
    "threadIdx.x < 63",
    "threadIdx.x < SIZE / HALF",
    "changing < 1000",
    "lane - 1 < 31",
    "lane << 1 < 62",
    "i + lane < n - 1",
    "i + step < n",
    "x[lane] < 3",
    "threadIdx.x < unknown",
    "lane ^ 1 < 1000",
    "lane == 3",
    "lane < 40 || lane > 3",
    "n - i > 32",
    "(threadIdx.x & 30) < 31",
    "lane / (lane - 1) < 100",
    "0.5f < 1.0f",
    "helper(lane) < 100",
    "-lane < 100",
]


def sources(condition: str) -> tuple[str, list[str]]:
    """The text with a condition, and those that moves on guards make of it."""
    source = KERNEL.format(condition)
    spec = spec_of(
        source,
        ("x[64]", ">y[64]"),
        scalars=("n", "step"),
        grid=(2,),
        sizes=({"N": 64, "STEP": 32}, {"N": 96, "STEP": 32}),
    )
    return source, [one.state.source for one in results("pad_tail_and_mask", spec)]


EXPRESSIONS = st.recursive(
    st.one_of(st.integers(0, 20).map(str), st.sampled_from(["n", "step", "threadIdx.x"])),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.sampled_from(["<", "<=", ">", ">="]), EXPRESSIONS)
def test_a_condition_that_goes_is_the_same_for_all_threads_and_sizes(left, sign, right):
    condition = f"{left} {sign} {right}"
    _, changed = sources(condition)
    code = compile(condition.replace("threadIdx.x", "thread"), "condition", "eval")
    for text in changed:
        holds = "y[threadIdx.x] = x[threadIdx.x];" in text
        for n in (64, 96):
            for thread in range(64):
                assert eval(code, {"n": n, "step": 32, "thread": thread}) is holds


@pytest.mark.parametrize("condition", ALWAYS)
def test_a_condition_that_always_holds_is_recognized(condition):
    source, (changed,) = sources(condition)
    assert changed == source.replace(f"if ({condition}) ", "")


@pytest.mark.parametrize("condition", NOT_ALWAYS)
def test_a_condition_that_may_fail_is_left_alone(condition):
    _, changed = sources(condition)
    assert changed == []


MASKS = [
    "offs < n",
    "n > offs",
    "offs <= n - 1",
    "n - 1 >= offs",
    "(offs < n) & (offs >= 0)",
    "offs < n and offs < n + 1",
    "(offs < n)[:]",
    "offs.to(tl.int32) < n",
    "offs % BLOCK < BLOCK",
    "offs // BLOCK < tl.num_programs(0)",
    "offs // BLOCK < tl.cdiv(n, BLOCK)",
    "tl.multiple_of(offs, 16) < n",
    "-offs + n > 0",
]

OTHER_MASKS = [
    "offs < n - 1",
    "offs != n",
    "(offs < n) | (offs < 3)",
    "offs < other",
    "None",
    "offs * 0.5 < n",
    "offs % other < BLOCK",
    "tl.program_id(axis) < 3",
    "not_there",
    "offs < n < 1000",
    "x > 0",
]


def unmasked(*changes: tuple[str, str]) -> list[str]:
    """What the move makes of masked additions whose text is changed."""
    spec = add_of(128, 640)
    source = spec.source
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    state = replace(spec.baseline, source=source)
    return [one.state.source for one in results("pad_tail_and_mask", spec, state)]


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_always_holds_is_recognized(mask):
    (text,) = unmasked(("mask = offs < n", f"mask = {mask}"))
    assert "tl.store(out_ptr + offs, x + y)" in text


@pytest.mark.parametrize("mask", OTHER_MASKS)
def test_a_mask_that_may_fail_is_left_alone(mask):
    assert not unmasked(("mask = offs < n", f"mask = {mask}"), ("mask=(offs < n)", "mask=mask"))


@pytest.mark.parametrize(
    ("old", "new"),
    [("x_ptr + offs, mask=mask", "*[x_ptr + offs, mask]"), ("mask=mask)  # one", "**more)  # one")],
)
def test_a_load_whose_arguments_are_hidden_is_left_alone(old, new):
    (text,) = unmasked((old, new))
    assert new in text


def test_a_mask_within_a_masked_store_stays_when_that_of_the_store_goes():
    (text,) = unmasked(("x + y, mask=mask", "tl.load(x_ptr, mask=mask), mask=mask"))
    assert "tl.store(out_ptr + offs, tl.load(x_ptr, mask=mask))" in text
