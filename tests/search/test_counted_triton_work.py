"""What is counted in the text of a Triton function."""

from __future__ import annotations

import pytest
from counted import N, counted, triton_spec

from pytest_gpuenergy.search import work_of

COPY = """
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


def test_a_copy_moves_each_element_once() -> None:
    work = counted(triton_spec(COPY))
    assert (work.blocks, work.threads) == (N // 256, 128)
    assert work.l2_bytes == 2 * 256 * 4
    assert work.sectors == 2 * 256 * 4 / 32
    assert work.functions == work.tensor_flops == 0


def test_loops_multiply_blocks_of_elements() -> None:
    work = counted(triton_spec(LOOP))
    assert work.functions == N
    assert work.l2_bytes == N * 4 + 4
    assert work.barriers == 1


def test_products_of_blocks_go_to_tensor_cores() -> None:
    work = counted(triton_spec(PRODUCT, constants={"SIZE": 16}))
    assert work.tensor_flops == 4 * 2 * 16**3
    assert work.wavefronts > 0
    assert work.shared_bytes > 0


def test_more_stages_wait_less() -> None:
    spec = triton_spec(PRODUCT, constants={"SIZE": 16})
    one = counted(spec).rounds
    launch = {"launch": type(spec.launch)(spec.launch.grid, constants={"SIZE": 16}, num_stages=5)}
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    assert counted(type(spec)(**{**fields, **launch})).rounds < one


def test_stages_of_a_loop_count_and_those_of_the_launch_where_there_is_no_product_do_not() -> None:
    found = [
        counted(triton_spec(LOOP.replace("range(0, n, BLOCK)", f"tl.range(0, n, BLOCK{stages})")))
        for stages in ("", ", num_stages=3", ", num_stages=5")
    ]
    assert found[0].rounds == 2 * found[1].rounds == 4 * found[2].rounds


def test_atomic_updates_are_counted_by_element() -> None:
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
def test_shapes_follow_from_the_text(value: str, elements: int) -> None:
    spec = triton_spec(f"i = tl.arange(0, BLOCK)\nat = {value}\ntl.store(y + at, 1.0)")
    source = spec.source.replace("\n\n\n@", "\n\nWIDE = tl.constexpr(64)\n\n\n@")
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    work = counted(type(spec)(**{**fields, "source": source}))
    assert work.l2_bytes == elements * 4


def test_loops_that_data_ends_are_a_guess() -> None:
    body = "end = tl.load(x)\nfor first in range(0, end):\n    tl.store(y + first, 1.0)"
    assert counted(triton_spec(body)).guessed == {"first in range(0, end)"}


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(y, tl.dot())",
        f"tl.store(y + {10**400}, 1.0)",
        f"for k in range(0, {10**400}):\n    tl.store(y + k, 1.0)",
        f"tl.store(y, {'-' * 3000}1)",
        "for k in range(0, n, 0):\n    tl.store(y + k, 1.0)",
        "tl.store()",
        "at = at + 1\ntl.store(y + at, 1.0)",
    ],
)
def test_what_no_kernel_has_does_no_harm(body: str) -> None:
    spec = triton_spec(body)
    found = work_of(spec.baseline, spec)
    assert found is None or found.instructions >= 0
