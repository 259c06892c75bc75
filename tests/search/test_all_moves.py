"""What holds for every move, whatever the text."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from moved_kernels import CASES
from moved_triton import SPECS
from msgspec.structs import replace

from pytest_gpuenergy.search import MOVES, REGIONS, KernelSpec
from pytest_gpuenergy.support import UnavailableError

KERNELS = {**{name: case.spec for name, case in CASES.items()}, **SPECS}
NAMES = [
    "change_block_sizes",
    "enable_async_pipeline",
    "vectorize_global_loads",
    "switch_to_mma_or_wgmma",
    "pad_tail_and_mask",
    "cache_policy_cg",
    "avoid_atomics_reduce",
    "grouped_gemm_colmajor",
    "softmax_math_fusion",
]


def everything(spec: KernelSpec, source: str | None = None) -> list[tuple[str, str, str]]:
    """Move, description and state of all applications."""
    state = spec.baseline if source is None else replace(spec.baseline, source=source)
    return [
        (move.name, one.what, one.state.id)
        for move in MOVES
        for one in move.applications(state, spec)
    ]


def test_moves_have_a_fixed_order():
    assert [move.name for move in MOVES] == NAMES


@pytest.mark.parametrize("move", MOVES, ids=NAMES)
def test_a_move_relieves_known_regions(move):
    assert move.relieves
    assert move.relieves <= set(REGIONS)


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_most_moves_know_each_language(language):
    assert sum(language in move.languages for move in MOVES) >= 6


@pytest.mark.parametrize("name", KERNELS)
def test_applications_depend_on_the_state_alone(name):
    assert everything(KERNELS[name]) == everything(KERNELS[name])


@pytest.mark.parametrize("name", KERNELS)
def test_every_application_is_told_apart_and_leads_elsewhere(name):
    spec = KERNELS[name]
    found = everything(spec)
    assert len({(move, what) for move, what, _ in found}) == len(found)
    assert spec.baseline.id not in {state for *_, state in found}
    for move, of_move in ((one, [s for m, _, s in found if m == one]) for one in NAMES):
        assert len(set(of_move)) == len(of_move), move


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_replaced_stays_as_it_is_written(name):
    spec = CASES[name].spec
    comments = [line.partition("//")[2] for line in spec.source.splitlines() if "//" in line]
    for move in MOVES:
        for one in move.applications(spec.baseline, spec):
            assert all(f"//{comment}" in one.state.source for comment in comments), one.what


@pytest.mark.parametrize("entry", ["kernel", "kernel<float, 4>", "space::kernel"])
def test_the_entry_is_found_by_its_plain_name(entry):
    spec = replace(CASES["add"].spec, entry=entry)
    source = spec.source.replace('extern "C" __global__', "template <typename T, int N> __global__")
    assert everything(spec, f"namespace space {{\n{source}\n}}")


@given(st.text(max_size=200))
def test_any_text_is_left_alone(text):
    assert everything(CASES["add"].spec, text) == []
    assert everything(SPECS["add"], text) == []


@pytest.mark.slow
@given(st.sampled_from(sorted(KERNELS)), st.data())
def test_texts_with_a_part_missing_raise_nothing(name, data):
    spec = KERNELS[name]
    places = st.integers(0, len(spec.source))
    begin, end = sorted((data.draw(places), data.draw(places)))
    everything(spec, spec.source[:begin] + spec.source[end:])


@pytest.mark.slow
@given(st.sampled_from(sorted(KERNELS)), st.data())
def test_texts_with_words_exchanged_raise_nothing(name, data):
    spec = KERNELS[name]
    words = spec.source.split(" ")
    places = st.integers(0, len(words) - 1)
    for _ in range(3):
        one, two = data.draw(places), data.draw(places)
        words[one], words[two] = words[two], words[one]
    everything(spec, " ".join(words))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [pytest.param(100, marks=pytest.mark.thorough), 3000])
def test_deep_nesting_raises_nothing(depth):
    spec = CASES["add"].spec
    for source in (
        spec.source.replace("a[i]", f"{'(' * depth}a[i]{')' * depth}"),
        spec.source.replace("a[i]", "+".join(["a[i]"] * depth)),
        spec.source.replace("float s", f"{'{' * depth} {'}' * depth} float s"),
        spec.source.replace("int i =", f"int i = {' - '.join(['n'] * depth)} +"),
    ):
        everything(spec, source)
    triton = SPECS["add"]
    everything(triton, triton.source.replace("offs <", f"{'(' * depth}offs{')' * depth} <"))
    everything(triton, triton.source.replace("offs <", f"{' + '.join(['offs'] * depth)} <"))


def test_characters_of_several_bytes_do_not_move_edits():
    for spec in (CASES["softmax"].spec, SPECS["add"]):
        sign = "#" if spec.language == "triton" else "//"
        wide = f"{sign} größer als 0: ≥, 🙂\n{spec.source}"
        same = replace(spec, source=wide)
        for move in MOVES:
            plain = [one.state.source for one in move.applications(spec.baseline, spec)]
            moved = [one.state.source for one in move.applications(same.baseline, same)]
            for one, two in zip(plain, moved, strict=True):
                assert [line for line in two.splitlines() if "größer" not in line] == (
                    one.splitlines()
                )


def test_a_missing_parser_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_cuda", None)
    spec = CASES["add"].spec
    with pytest.raises(UnavailableError, match=r"install pytest-gpuenergy\[search\]\.$"):
        next(iter(MOVES[2].applications(spec.baseline, spec)))


def test_regions_are_in_the_order_of_their_list():
    assert all(one != two for one, two in pairwise(REGIONS))
