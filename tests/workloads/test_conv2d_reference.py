"""Conv2d: sizes, reference, FLOPs, and what it says of itself."""

from __future__ import annotations

import itertools
import time
from dataclasses import fields

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.workloads import CASES, Conv2d, find_workload
from pytest_gpuenergy.workloads import conv2d as module

SIZES = (1, 8, 8, 4, 3, 3, 3, 1, 1)
NAMES = ("N", "H", "W", "CO", "CI", "KH", "KW", "strides", "padding")


def direct(
    data: npt.NDArray[np.float64], weight: npt.NDArray[np.float64], strides: int, padding: int
) -> npt.NDArray[np.float64]:
    """The definition, tap by tap."""
    n, ci, h, w = data.shape
    co, _, kh, kw = weight.shape
    oh, ow = (h + 2 * padding - kh) // strides + 1, (w + 2 * padding - kw) // strides + 1
    out = np.zeros((n, co, oh, ow))
    for b, o, y, x in itertools.product(range(n), range(co), range(oh), range(ow)):
        for c, dy, dx in itertools.product(range(ci), range(kh), range(kw)):
            row, column = y * strides + dy - padding, x * strides + dx - padding
            if 0 <= row < h and 0 <= column < w:
                out[b, o, y, x] += data[b, c, row, column] * weight[o, c, dy, dx]
    return out


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    h, w = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    kh, kw = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    padding, strides = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    assume(h + 2 * padding >= kh and w + 2 * padding >= kw)
    n, co, ci = (draw(st.integers(1, 3)) for _ in range(3))
    return Conv2d.of("any", n, h, w, co, ci, kh, kw, strides, padding)


@settings(deadline=None, max_examples=60)
@given(convolutions(), st.integers(0, 2**32))
def test_reference_is_the_definition(workload: Conv2d, seed: int) -> None:
    inputs = workload.make_inputs(seed)
    s = workload.shape
    wanted = direct(
        inputs["data"].astype(np.float64), inputs["weight"].astype(np.float64), s.strides, s.padding
    )
    got = workload.reference(inputs)["output"]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(convolutions(), st.integers(1, 4096))
def test_blocks_of_rows_do_not_change_the_reference(workload: Conv2d, scratch_bytes: int) -> None:
    inputs = workload.make_inputs(0)
    whole = workload.reference(inputs)["output"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SCRATCH_BYTES", scratch_bytes)
        parts = workload.reference(inputs)["output"]
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


@given(convolutions())
def test_output_shape_holds_every_placement_of_the_window(workload: Conv2d) -> None:
    s = workload.shape
    placements = range(0, s.H + 2 * s.padding - s.KH + 1, s.strides)
    assert len(placements) == s.OH
    assert workload.outputs[0].shape == (s.N, s.CO, s.OH, s.OW)


def test_flops_count_a_multiplication_and_an_addition_per_tap() -> None:
    assert Conv2d.of("x", 2, 5, 4, 3, 6, 2, 1, 1, 0).flops == 2 * (2 * 3 * 4 * 4) * (6 * 2 * 1)


def test_flops_of_case1() -> None:
    assert CASES["case1"].flops == 2_727_346_176


def test_bytes_moved_are_all_tensors_once() -> None:
    workload = Conv2d.of("x", *SIZES)
    assert workload.bytes_moved == 4 * (3 * 64 + 4 * 3 * 9 + 4 * 64)


@pytest.mark.parametrize("place", range(9), ids=NAMES)
@pytest.mark.parametrize("value", [-1, 2.0, "3", None, True], ids=repr)
def test_a_size_that_is_no_count_is_refused(place: int, value: object) -> None:
    sizes: list[object] = list(SIZES)
    sizes[place] = value
    with pytest.raises(InputError, match=rf"conv2d needs {NAMES[place]} to be an integer of at"):
        Conv2d.of("x", *sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", range(8), ids=NAMES[:8])
def test_only_padding_may_be_zero(place: int) -> None:
    sizes = list(SIZES)
    sizes[place] = 0
    with pytest.raises(InputError, match=rf"{NAMES[place]} .* of at least 1, not 0"):
        Conv2d.of("x", *sizes)


@pytest.mark.parametrize(("kh", "kw"), [(5, 3), (3, 5)])
def test_a_window_larger_than_the_padded_input_is_refused(kh: int, kw: int) -> None:
    with pytest.raises(InputError, match=rf"a {kh}x{kw} window does not fit .* 4x4"):
        Conv2d.of("x", 1, 2, 2, 1, 1, kh, kw, 1, 1)


def test_nine_numbers_are_needed() -> None:
    with pytest.raises(InputError, match=r"nine numbers .* not 8"):
        Conv2d.of("x", *SIZES[:8])


def test_label_names_every_size() -> None:
    label = Conv2d.of("x", *SIZES).shape.label
    assert label == "N_1_H_8_W_8_CO_4_CI_3_KH_3_KW_3_strides_1_padding_1"


def test_inputs_follow_from_the_seed() -> None:
    first, again = (Conv2d.of("x", *SIZES).make_inputs(7) for _ in range(2))
    for name, value in first.items():
        assert value.tobytes() == again[name].tobytes()


def test_inputs_of_another_seed_differ_everywhere() -> None:
    workload = Conv2d.of("x", *SIZES)
    for name, value in workload.make_inputs(0).items():
        assert (value != workload.make_inputs(1)[name]).all()


def test_inputs_are_not_zero_and_look_normal() -> None:
    inputs = CASES["case7"].make_inputs(0)
    for value in inputs.values():
        assert np.count_nonzero(value) == value.size
        assert abs(value.mean()) < 0.02
        assert value.std() == pytest.approx(1, abs=0.02)


def test_inputs_of_one_workload_are_independent() -> None:
    inputs = Conv2d.of("x", 1, 6, 6, 4, 4, 6, 6, 1, 0).make_inputs(0)
    assert not np.intersect1d(inputs["data"], inputs["weight"]).size


def test_inputs_do_not_change_between_releases() -> None:
    data = Conv2d.of("x", *SIZES).make_inputs(0)["data"]
    # NumPy keeps the streams of SeedSequence and PCG64 for good; recorded results rest on that.
    np.testing.assert_array_equal(
        data.ravel()[:2],
        np.random.default_rng(np.random.SeedSequence(0).spawn(1)[0])
        .standard_normal(2)
        .astype(np.float32),
    )


def test_digest_tells_shapes_apart_and_names_not() -> None:
    digest = Conv2d.of("x", *SIZES).digest
    assert digest == Conv2d.of("other", *SIZES).digest
    assert len({digest} | {_grown(place).digest for place in range(9)}) == 10


def _grown(place: int) -> Conv2d:
    sizes = list(SIZES)
    sizes[place] += 1
    return Conv2d.of("x", *sizes)


def test_parameters_hold_the_nine_sizes() -> None:
    workload = Conv2d.of("x", *SIZES)
    assert [workload.parameters[field.name] for field in fields(workload.shape)] == list(SIZES)


def test_references_of_all_cases_take_seconds() -> None:
    begin_s = time.process_time()
    for workload in CASES.values():
        output = workload.reference(workload.make_inputs(0))["output"]
        assert output.shape == workload.outputs[0].shape
        # Sums of CI KH KW products of standard normal values.
        s = workload.shape
        assert 0.8 < output.std() / np.sqrt(s.CI * s.KH * s.KW) < 1.1
    assert time.process_time() - begin_s < 10


def test_shipped_workloads_are_found_by_name() -> None:
    assert all(find_workload(name) is CASES[name] for name in CASES)
    assert list(CASES) == [f"case{k}" for k in range(1, 8)]


def test_an_unknown_workload_lists_the_choices() -> None:
    with pytest.raises(InputError, match=r"no workload 'case8': choose one of case1, .* case7"):
        find_workload("case8")
