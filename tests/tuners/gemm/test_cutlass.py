"""Configurations of CUTLASS: which are tried, what they are called, what is compiled."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.kernels import Headers
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners import (
    CONTENDERS,
    Alignments,
    Cutlass3,
    configuration_named,
    configurations,
    cutlass_candidates,
    cutlass_program,
    find_headers,
    has_builders,
)
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import FLOAT8_MODES, LAYOUTS, MODES, Gemm

KIB = 1024
HOPPER = CardResources(90, 132, 128, 2048, 228 * KIB, 227 * KIB)
AMPERE = replace(HOPPER, capability=80, multiprocessors=108)
TURING = replace(HOPPER, capability=75, multiprocessors=40)
BARE = Headers("CUTLASS 4.1.0", "0" * 64, "/missing")
WIDE_MODES = [mode for mode in MODES if mode not in FLOAT8_MODES]
GRID = [(mode, layout) for mode in WIDE_MODES for layout in LAYOUTS]


def checkout(folder: Path, version: str = "4.2.0") -> Path:
    """A folder that has as much of CUTLASS as is looked at."""
    include = folder / "include"
    builders = include / "cutlass" / "gemm" / "collective" / "builders"
    builders.mkdir(parents=True, exist_ok=True)
    (builders / "sm90_gmma_builder.inl").write_text("")
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    lines = [f"#define CUTLASS_{part} {number}" for part, number in numbers]
    (include / "cutlass" / "version.h").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Headers:
    return find_headers(checkout(tmp_path_factory.mktemp("cutlass")))


@pytest.mark.parametrize(("mode", "layout"), GRID)
def test_names_stand_for_their_configurations(complete, mode, layout):
    for sizes in ((512, 256, 640), (511, 2 * 255, 641)):
        gemm = Gemm("g", *sizes, layout, mode)
        tried = configurations(gemm, 90, complete)
        in_library = [one for one in tried if isinstance(one, Cutlass3) or not one.stream_k]
        found = [configuration_named(one.name(gemm, 90), gemm) for one in in_library]
        names = [one.name(gemm, 90) for one in in_library]
        assert [one.name(gemm, 90) for one in found] == names
        if sizes[0] == 512:
            assert found == in_library


@pytest.mark.parametrize(
    ("name", "mode", "layout"),
    [
        ("cutlass_simt_sgemm_128x128_8x2_nn_align1", "float32", "nn"),
        ("cutlass_tensorop_s1688gemm_128x64_16x4_nt_align4", "3xtf32", "nt"),
        ("cutlass_tensorop_s1688tf32gemm_256x64_16x4_nn_align4", "tf32", "nn"),
        ("cutlass_tensorop_f16_s16816gemm_f16_128x128_64x4_nt_align8", "float16", "nt"),
        (
            "cutlass3x_sm90_tensorop_s64x256x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_nnn"
            "_align8_warpspecialized_cooperative_epi_tma",
            "bfloat16",
            "nn",
        ),
        (
            "cutlass3x_sm90_tensorop_gemm_tf32_tf32_f32_f32_f32_64x128x32_1x2x1_0_ntn_align4"
            "_stream_k_warpspecialized_epi_nosmem",
            "tf32",
            "nt",
        ),
        ("cutlass_tensorop_bf16_s16816gemm_bf16_128x128_64x4_tn_align8", "bfloat16", "tn"),
        (
            "cutlass3x_sm90_tensorop_gemm_f16_f16_f32_void_f16_128x128x64_2x1x1_0_ttn_align8"
            "_warpspecialized_pingpong_epi_tma",
            "float16",
            "tt",
        ),
        (
            "cutlass3x_sm90_tensorop_gemm_f32_f32_f32_void_f32_128x256x32_2x1x1_0_ttn_align4"
            "_warpspecialized_cooperative",
            "tf32",
            "tt",
        ),
    ],
)
def test_a_name_of_the_library_can_be_built(complete, name, mode, layout):
    gemm = Gemm("g", 512, 256, 640, layout, mode)
    program = cutlass_program(gemm, configuration_named(name, gemm), 90, complete)
    m, n, k = re.findall(r"constexpr int kTile. = (\d+);", program.source)
    assert f"_{m}x{n}_{k}x" in name or f"_{m}x{n}x{k}_" in name
    for other in [*GRID]:
        if other != (mode, layout):
            with pytest.raises(UnavailableError, match="cannot be built here for g: it is not"):
                configuration_named(name, Gemm("g", 512, 256, 640, other[1], other[0]))


def test_a_transpose_is_stored_where_operands_are_exchanged(complete):
    found = {
        (mode, layout)
        for mode, layout in GRID
        for one in cutlass_candidates(Gemm("g", 512, 256, 640, layout, mode), HOPPER, complete)
        if "EpilogueTransposed" in one.source
    }
    assert found == {("tf32", "tt")}


@given(
    st.one_of(st.text(max_size=30), st.from_regex(r"cutlass(3x_sm90)?_[a-z0-9_x]+", fullmatch=True))
)
def test_no_other_text_is_taken_for_a_name(text):
    with pytest.raises(UnavailableError):
        configuration_named(text, Gemm("g", 8, 8, 8))


@given(st.tuples(*[st.integers(1, 100)] * 5), st.sampled_from(WIDE_MODES), st.sampled_from(LAYOUTS))
def test_accesses_are_as_wide_as_sizes_allow(sizes, mode, layout):
    m, n, k, more_a, more_b = sizes
    bare = Gemm("g", m, n, k, layout, mode)
    gemm = replace(bare, lda=bare.lda + more_a, ldb=bare.ldb + more_b, ldc=n + more_b)
    found = Alignments.of(gemm)
    for alignment, lengths in (
        (found.a, (gemm.row_of_a, gemm.lda)),
        (found.b, (gemm.row_of_b, gemm.ldb)),
        (found.c, (n, gemm.ldc)),
    ):
        assert alignment * gemm.element_bytes in (2, 4, 8, 16)
        assert all(length % alignment == 0 for length in lengths)
        twice = 2 * alignment
        assert twice * gemm.element_bytes > 16 or any(length % twice for length in lengths)


@pytest.mark.parametrize("card", [HOPPER, AMPERE, TURING])
def test_one_text_serves_all_sizes_of_an_alignment(complete, card):
    compiled = [
        [program.compiled for program in cutlass_candidates(gemm, card, complete)]
        for gemm in (Gemm("g", 64, 64, 64), Gemm("g", 128, 256, 64))
    ]
    assert all(one in compiled[1] for one in compiled[0])


@pytest.mark.parametrize(("mode", "layout"), GRID)
def test_candidates_differ_and_split_only_deep_float32_products(complete, mode, layout):
    gemm = Gemm("g", 128, 128, 4096, layout, mode)
    found = cutlass_candidates(gemm, HOPPER, complete)
    assert len({one.digest for one in found}) == len({one.label for one in found}) == len(found)
    splits = {one.numbers[-1] for one in found}
    assert len(splits) == 1 if gemm.element_bytes == 2 else max(splits) > 8
    shallow = cutlass_candidates(replace(gemm, K=16), HOPPER, complete)
    assert {one.numbers[-1] for one in shallow} == {1}


def test_long_sums_in_3xtf32_are_also_tried_in_short_parts():
    gemm = Gemm("g", 8192, 8192, 8192, "nn", "3xtf32")
    assert {one.numbers[-1] for one in cutlass_candidates(gemm, AMPERE, BARE)} == {1, 4, 16}
    float32 = replace(gemm, mode="float32")
    assert {one.numbers[-1] for one in cutlass_candidates(float32, AMPERE, BARE)} == {1}


@pytest.mark.parametrize(
    ("change", "card", "known"),
    [
        (lambda gemm: gemm, AMPERE, True),
        (lambda gemm: gemm, HOPPER, False),
        (lambda gemm: replace(gemm, lda=gemm.lda + 1), HOPPER, True),
        (lambda gemm: replace(gemm, mode="float32"), HOPPER, True),
        (lambda gemm: replace(gemm, mode="3xtf32"), HOPPER, True),
    ],
)
def test_kernels_of_3x_need_hopper_vectors_and_builders(complete, change, card, known):
    gemm = Gemm("g", 512, 512, 512, "nn", "tf32")
    assert any(isinstance(one, Cutlass3) for one in configurations(gemm, 90, complete))
    headers = complete if known else BARE
    tried = configurations(change(gemm), card.capability, headers)
    assert not any(isinstance(one, Cutlass3) for one in tried)


def test_a_configuration_without_its_builders_is_told(complete):
    gemm = Gemm("g", 512, 512, 512, "nn", "tf32")
    modern = next(one for one in configurations(gemm, 90, complete) if isinstance(one, Cutlass3))
    with pytest.raises(UnavailableError, match=r"need a GPU of sm_90 .*nvidia-cutlass"):
        cutlass_program(gemm, modern, 90, BARE)


@pytest.mark.parametrize("mode", ["tf32", "3xtf32", "float16", "bfloat16"])
def test_an_old_gpu_has_no_tensor_cores_for_it(mode):
    with pytest.raises(UnavailableError, match=f"mode {mode} takes a GPU of sm_80 or later"):
        cutlass_candidates(Gemm("g", 8, 8, 8, "nn", mode), TURING, BARE)


def test_an_old_gpu_copies_without_a_pipeline():
    for program in cutlass_candidates(Gemm("g", 8, 8, 8), TURING, BARE):
        assert "kStages = 2;" in program.source
        assert "ArchTag = cutlass::arch::Sm50;" in program.source


def test_headers_are_found_in_a_checkout_or_its_folder(tmp_path):
    whole = find_headers(checkout(tmp_path))
    assert whole == find_headers(tmp_path / "include")
    assert (whole.name, whole.folder) == ("CUTLASS 4.2.0", str(tmp_path / "include"))
    assert has_builders(whole)


def test_a_checkout_is_known_by_its_content(tmp_path):
    one, same, other = (find_headers(checkout(tmp_path / name)) for name in ("a", "b", "c"))
    checkout(tmp_path / "d")
    (tmp_path / "d" / "include" / "cutlass" / "gemm" / "changed.h").write_text("")
    assert one.sha256 == same.sha256 == other.sha256
    assert one.sha256 != find_headers(tmp_path / "d").sha256


@pytest.mark.parametrize(
    ("version", "words"),
    [("2.11.0", r"has CUTLASS 2\.11\.0, but 3\.0 or later"), (None, "has no headers of CUTLASS")],
)
def test_a_wrong_path_is_told(tmp_path, version, words):
    if version:
        checkout(tmp_path, version)
    with pytest.raises(InputError, match=words) as error:
        find_headers(tmp_path)
    assert not isinstance(error.value, UnavailableError)


def test_without_headers_it_is_told_where_to_get_them(monkeypatch):
    monkeypatch.setattr("pytest_gpuenergy.tuners.gemm.cutlass_kernels.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="pip install --no-deps nvidia-cutlass"):
        find_headers(None)


@pytest.mark.parametrize("more", [{"bias": True}, {"B": 2}, {"groups": (60, 4)}])
@pytest.mark.parametrize("contender", ["cutlass", "cutlass_profiler"])
def test_products_with_an_end_or_several_at_once_are_refused(tmp_path, contender, more):
    gpu: Any = SimpleNamespace(emulated=False)
    setup: Any = SimpleNamespace(gpu=gpu, cutlass_profiler=tmp_path)
    gemm = Gemm("mine", 64, 64, 64, **more)
    with pytest.raises(UnavailableError, match="CUTLASS does not compute mine, since the config"):
        CONTENDERS[contender](gemm, setup)
