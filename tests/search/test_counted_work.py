"""The work that is counted in a kernel's text."""

from __future__ import annotations

import math

import pytest
from counted import N, counted, cuda_spec, triton_spec
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.search import TensorSpec, count_work

COPY = "if (i < n) y[i] = x[i];"


def test_a_copy_moves_each_element_once():
    work = counted(cuda_spec(COPY))
    assert (work.blocks, work.threads) == (N // 128, 128)
    assert work.loads == 4
    assert work.sectors == 2 * 4 * 4
    assert work.l2_bytes == 2 * 128 * 4
    assert work.functions == work.atomics == work.barriers == work.wavefronts == 0


WIDE = "float4 v = reinterpret_cast<const float4*>(x)[i]; y[i] = v.x;"


@pytest.mark.parametrize(
    ("body", "sectors_of_a_warp"),
    [
        pytest.param("y[i] = x[i * 8 % n];", 32 + 4, id="strided"),
        pytest.param("y[i] = x[0];", 1 + 4, id="one element"),
        pytest.param("y[i] = x[threadIdx.x / 4];", 1 + 4, id="through a quotient"),
        pytest.param("y[i] = x[(int)x[i]];", 32 + 4 + 4, id="scattered by data"),
        pytest.param(WIDE, 16 + 4, id="wide"),
    ],
)
def test_a_warp_touches_the_sectors_of_its_addresses(body, sectors_of_a_warp):
    assert counted(cuda_spec(body)).sectors == sectors_of_a_warp * 4


@pytest.mark.parametrize(
    ("loop", "rounds"),
    [
        ("for (int k = 0; k < 10; ++k)", 10),
        ("for (int k = 0; k < n; k += 64)", N // 64),
        ("for (int k = 0; k <= 9 && k < n; ++k)", 10),
        ("for (int k = i * 4; k < i * 4 + 4 && k < 8 * n; ++k)", 4),
        ("for (int k = threadIdx.x; k < n; k += blockDim.x)", N / 128),
        ("for (int k = 64; k > 0; k /= 2)", 7),
        ("for (int k = 0; k < 8; ++k) for (int j = 0; j < 4; ++j)", 32),
    ],
)
def test_loops_are_passed_as_often_as_their_ends_say(loop, rounds):
    work = counted(cuda_spec(f"float s = 0; {loop} s += expf(x[k]); y[i] = s;"))
    assert work.functions == pytest.approx(rounds * 128, rel=0.01)
    assert not work.guessed


@pytest.mark.parametrize(
    "loop", ["while (x[i] < s)", "for (int k = 0; k < (int)x[i]; ++k)", "for (;;)"]
)
def test_loops_that_data_ends_are_a_guess(loop):
    assert counted(cuda_spec(f"float s = 0; {loop} s += 1; y[i] = s;")).guessed == {f"{loop} "}


def test_the_branch_that_is_rarely_taken_does_not_count():
    rare = "for (int k = 0; k < 99; ++k) y[i] += expf(x[k * 99 + i]);"
    work = counted(cuda_spec(f"if (i < n) {{ y[i] = x[i]; }} else {{ {rare} }}"))
    assert work.functions == 0
    assert work.l2_bytes == 2 * 128 * 4


def test_fast_functions_take_fewer_instructions():
    slow, fast = (counted(cuda_spec(f"y[i] = {name}(x[i]);")) for name in ("expf", "__expf"))
    assert slow.functions == fast.functions == 128
    assert slow.instructions > fast.instructions


def test_divisions_of_integers_take_no_special_function():
    assert counted(cuda_spec("y[i] = x[i / 3];")).functions == 0
    assert counted(cuda_spec("y[i] = x[i] / 3;")).functions == 128


def test_a_multiply_add_is_one_instruction():
    fused = counted(cuda_spec("y[i] = x[i] * 3.0f + 1.0f;"))
    alone = counted(cuda_spec("y[i] = x[i] * 3.0f;"))
    assert fused.instructions == alone.instructions


def test_bank_conflicts_take_wavefronts():
    before = "#define W 32\n"
    body = "__shared__ float s[W][33]; s[threadIdx.x % 32][threadIdx.x / 32] = x[i]; y[i] = x[i];"
    free = counted(cuda_spec(body, before=before))
    clash = counted(cuda_spec(body.replace("33", "32"), before=before))
    assert (free.wavefronts, clash.wavefronts) == (4, 4 * 32)
    assert free.shared_bytes == 32 * 33 * 4


def test_updates_meet_at_the_elements_of_their_tensor():
    tensors = (TensorSpec("x", ("N",)), TensorSpec("y", (64,), role="output", init="zeros"))
    work = counted(cuda_spec("atomicAdd(&y[(int)x[i]], 1.0f);", tensors=tensors))
    assert (work.atomics, work.places) == (128, 64)
    assert work.loads == 4


def test_what_a_block_reads_again_comes_from_its_l1():
    body = "float s = 0; for (int k = 0; k < 64; ++k) s += x[blockIdx.x * 64 + k]; y[i] = s;"
    work = counted(cuda_spec(body))
    assert work.l2_bytes == 64 * 4 + 128 * 4
    assert work.loads == 64 * 4


def test_barriers_and_arrays_of_a_thread_are_counted():
    loop = "for (int k = 0; k < 3; ++k) { own[k] = x[k]; __syncthreads(); }"
    work = counted(cuda_spec(f"float own[6]; {loop} y[i] = own[0];"))
    assert (work.barriers, work.private_words) == (3, 6)


def test_tensor_cores_are_counted_by_their_calls():
    body = "for (int k = 0; k < 5; ++k) nvcuda::wmma::mma_sync(c, a, b, c); y[i] = x[i];"
    assert counted(cuda_spec(body)).tensor_flops == 5 * 8192 * 4


def test_a_text_that_is_not_understood_has_no_work():
    spec = cuda_spec("goto end; end: y[i] = x[i];")
    assert count_work(spec.baseline, spec) is None


ODD_CUDA = [
    f"y[i] = x[i * {10**400}];",
    f"float s = 0; for (int k = 0; k < n; k += {10**400}) s += x[k]; y[i] = s;",
    "y[i] = x[i % 0];",
    "y[i / 0] = x[0];",
    "float own[1 << 30]; y[i] = own[0];",
    "y = y + 1; *y = *x;",
    "for (int k = 1 / 0; k < n; ++k) y[i] = x[k];",
]
ODD_TRITON = [
    "tl.store(y, tl.dot())",
    f"tl.store(y + {10**400}, 1.0)",
    f"for k in range(0, {10**400}):\n    tl.store(y + k, 1.0)",
    f"tl.store(y, {'-' * 3000}1)",
    "for k in range(0, n, 0):\n    tl.store(y + k, 1.0)",
    "tl.store()",
    "at = at + 1\ntl.store(y + at, 1.0)",
]


@pytest.mark.parametrize(
    ("spec_of", "body"),
    [(cuda_spec, body) for body in ODD_CUDA] + [(triton_spec, body) for body in ODD_TRITON],
)
def test_what_no_kernel_has_does_no_harm(spec_of, body):
    spec = spec_of(body)
    found = count_work(spec.baseline, spec)
    assert found is None or found.instructions >= 0


def test_a_block_that_no_card_has_is_not_counted():
    spec = cuda_spec(COPY, block=1 << 30)
    assert count_work(spec.baseline, spec) is None


EXPRESSIONS = st.recursive(
    st.sampled_from(["i", "n", "threadIdx.x", "blockIdx.x", "3", "0", "x[i]", "k"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/%&<>"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, st.sampled_from([1, 32, 100, 1024]))
def test_any_expression_can_be_counted(start, bound, index, block):
    body = f"for (int k = {start}; k < {bound}; k += 2) y[(int)({index})] = x[(int)({index})];"
    spec = cuda_spec(body, block=block)
    found = count_work(spec.baseline, spec)
    assert found is None or all(
        0 <= value < math.inf for value in vars(found).values() if not isinstance(value, frozenset)
    )


def test_what_data_begins_is_the_same_for_all_threads():
    body = "int at = (int)x[0]; for (int k = at; k < n; ++k) y[i] = x[k];"
    assert counted(cuda_spec(body)).loads > 0


LOADS = """
float sum = 0;
for (int j = 0; j < n; j++) BODY
y[i] = sum;
"""


@pytest.mark.parametrize(
    ("body", "rounds"),
    [
        ("sum += x[j];", N / 4),
        ("sum += x[j] * x[n - 1 - j];", N / 4),
        ("{ sum += x[j]; __syncthreads(); }", N),
        ("{ if (j % 3) sum += x[j]; else sum += x[0]; }", N),
        ("for (int k = 0; k < 4; k++) sum += x[j + k];", N / 2),
    ],
)
def test_loads_are_made_ahead_where_nothing_is_in_the_way(body, rounds):
    assert counted(cuda_spec(LOADS.replace("BODY", body))).rounds == pytest.approx(rounds)


def test_waiting_is_that_of_the_thread_that_has_most_to_do():
    body = "for (int j = threadIdx.x; j < 32; j += 128) { y[j] = x[j] / 3.0f; }"
    one, all_of_them = counted(cuda_spec(body)), counted(cuda_spec(body.replace("32", "128")))
    assert one.serial == pytest.approx(all_of_them.serial)
    assert one.rounds == all_of_them.rounds
    assert one.instructions < all_of_them.instructions


def test_casts_to_plain_types_are_loads():
    body = "unsigned two = *reinterpret_cast<const unsigned*>(&x[i]); y[i] = two;"
    assert counted(cuda_spec(body)).loads == 4


def test_loads_past_the_l1_are_made_again_each_time():
    body = "for (int j = 0; j < 64; j++) y[i] += __ldg(&x[j]);"
    plain, past = counted(cuda_spec(body)), counted(cuda_spec(body.replace("__ldg", "__ldcg")))
    assert past.l2_bytes - plain.l2_bytes == pytest.approx(64 * 4 * 32 - 64 * 4)


def test_given_data_says_how_long_loops_are():
    ends = TensorSpec("x", (5,), "int32", data=[0, 10, 10, 50, 100])
    body = "int end = LOAD; for (int j = x[blockIdx.x]; j < end; j++) y[i] = j / 3.0f;"
    for load in ("x[blockIdx.x + 1]", "__ldg(&x[blockIdx.x + 1])"):
        text = body.replace("LOAD", load).replace("int j = x[blockIdx.x];", "int j = first;")
        spec = cuda_spec(f"int first = x[blockIdx.x]; {text}")
        known = replace(spec, tensors=(ends, *spec.tensors[1:]))
        assert not counted(known).guessed
        assert counted(spec).guessed


TRITON_COPY = """
i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)
"""
LOOP = """
total = tl.zeros((BLOCK,), dtype=tl.float32)
for first in range(0, n, BLOCK):
    i = first + tl.arange(0, BLOCK)
    total += tl.exp(tl.load(x + i))
tl.store(y + tl.program_id(0), tl.sum(total, axis=0))
"""
PRODUCT = """
r = tl.arange(0, SIZE)
total = tl.zeros((SIZE, SIZE), dtype=tl.float32)
for first in range(0, 64, SIZE):
    left = tl.load(x + r[:, None] * 64 + first + r[None, :])
    right = tl.load(y + r[:, None] * 64 + r[None, :])
    total += tl.dot(left, tl.trans(right))
tl.store(y + r[:, None] * 64 + r[None, :], total.to(tl.float32))
"""


def test_a_triton_copy_moves_each_element_once():
    work = counted(triton_spec(TRITON_COPY))
    assert (work.blocks, work.threads) == (N // 256, 128)
    assert work.l2_bytes == 2 * 256 * 4
    assert work.sectors == 2 * 256 * 4 / 32
    assert work.functions == work.tensor_flops == 0


def test_loops_multiply_blocks_of_elements():
    work = counted(triton_spec(LOOP))
    assert work.functions == N
    assert work.l2_bytes == N * 4 + 4
    assert work.barriers == 1


def test_products_of_blocks_go_to_tensor_cores():
    work = counted(triton_spec(PRODUCT, constants={"SIZE": 16}))
    assert work.tensor_flops == 4 * 2 * 16**3
    assert work.wavefronts > 0
    assert work.shared_bytes > 0


def test_more_stages_wait_less():
    spec = triton_spec(PRODUCT, constants={"SIZE": 16})
    one = counted(spec).rounds
    assert counted(replace(spec, launch=replace(spec.launch, num_stages=5))).rounds < one


def test_stages_of_a_loop_count_and_those_of_the_launch_where_there_is_no_product_do_not():
    found = [
        counted(triton_spec(LOOP.replace("range(0, n, BLOCK)", f"tl.range(0, n, BLOCK{stages})")))
        for stages in ("", ", num_stages=3", ", num_stages=5")
    ]
    assert found[0].rounds == 2 * found[1].rounds == 4 * found[2].rounds


def test_atomic_updates_are_counted_by_element():
    body = "i = tl.arange(0, BLOCK)\ntl.atomic_add(y + i, tl.load(x + i) / 3.0)"
    work = counted(triton_spec(body))
    assert (work.atomics, work.places) == (256, N)
    assert work.functions == 256


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        ("tl.where(i > 3, i, -i)", 256),
        ("tl.sum(i[:, None] + i[None, :], axis=1)", 256),
        ("tl.max(i[:, None] + i[None, :], 0)", 256),
        ("(i[None, :] * 2).to(tl.int32)", 256),
        ("tl.full((4, 8), 1, tl.int32)", 32),
        ("tl.sum(i, axis=0)", 1),
        ("WIDE + tl.arange(0, WIDE)", 64),
        ("n and i", 256),
        ("[n][0]", 1),
    ],
)
def test_shapes_follow_from_the_text(value, elements):
    spec = triton_spec(f"i = tl.arange(0, BLOCK)\nat = {value}\ntl.store(y + at, 1.0)")
    source = spec.source.replace("\n\n\n@", "\n\nWIDE = tl.constexpr(64)\n\n\n@")
    assert counted(replace(spec, source=source)).l2_bytes == elements * 4


def test_triton_loops_that_data_ends_are_a_guess():
    body = "end = tl.load(x)\nfor first in range(0, end):\n    tl.store(y + first, 1.0)"
    assert counted(triton_spec(body)).guessed == {"first in range(0, end)"}
