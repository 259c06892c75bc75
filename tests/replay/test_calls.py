"""The calls of operators that a model made, grouped into the units of a replay."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.replay import (
    CallForm,
    TraceLaunch,
    read_calls,
    unevenly_called,
    unique_calls,
    write_calls,
)
from pytest_gpuenergy.support import InputError

MATRIX = {"shape": [8, 8], "dtype": "float16", "strides": [8, 1]}
FORM = CallForm("aten.linear.default", [MATRIX, MATRIX], ("layer.0.weight",))


def launch(call: int, **changes: object) -> TraceLaunch:
    plain = TraceLaunch(
        "gemm", "kernel", float(call), 2.0, phase="prefill", step=0, layer=0, call=call
    )
    return replace(plain, **changes)


def test_calls_of_one_form_with_the_weights_of_several_layers_are_replayed_in_turn():
    forms = [replace(FORM, parameters=(f"layer.{number % 3}.weight",)) for number in range(6)]
    (one,) = unique_calls([launch(number) for number in range(6)], forms)
    assert (one.calls, one.turns, one.total_us, one.call_us) == (6, (0, 1, 2), 12.0, 2.0)


def test_other_strides_make_another_call():
    turned = replace(FORM, arguments=[{**MATRIX, "strides": [1, 8]}, MATRIX])
    assert len(unique_calls([launch(0), launch(1)], [FORM, turned])) == 2


def test_calls_that_differ_in_a_real_number_are_one_and_keep_the_id_of_the_first():
    def scaled(number: float) -> CallForm:
        return CallForm("aten.mul.Tensor", [MATRIX, number, {"dims": [2, number]}])

    launched = [launch(0), launch(1), launch(2, name="fill")]
    first, other = unique_calls(launched, [scaled(0.2), scaled(0.36), scaled(0.36)])
    assert (first.calls, first.arguments) == (2, scaled(0.2).arguments)
    assert other.calls == 1
    assert first.id == unique_calls(launched[:1], [scaled(0.2)])[0].id
    whole = CallForm("aten.mul.Tensor", [MATRIX, 2, {"dims": [2, 2]}])
    assert len(unique_calls(launched[:2], [scaled(0.2), whole])) == 2


def test_other_kernels_make_another_call():
    found = unique_calls([launch(0), launch(1, name="splitk")], [FORM, FORM])
    assert {one.launches[0].name for one in found} == {"gemm", "splitk"}


def test_a_call_has_all_that_it_launched_in_order():
    (one,) = unique_calls([launch(0), launch(0, name="reduce", begin_us=5.0)], [FORM])
    assert [form.name for form in one.launches] == ["gemm", "reduce"]


def test_launches_outside_any_call_count_by_themselves():
    outside = replace(launch(0), call=None)
    found = unique_calls([outside, launch(0), replace(outside, begin_us=9.0)], [FORM])
    by_operator = {one.operator: one for one in found}
    assert (by_operator["none"].calls, by_operator["none"].steps) == (2, {0: 2})
    assert (by_operator["none"].turns, by_operator[FORM.operator].turns) == ((), (0,))


def test_operators_of_the_host_outside_any_call_belong_to_those_that_call_them():
    assert unique_calls([replace(launch(0), call=None, work="operator")], []) == []


def test_calls_count_by_step_in_layers_and_outside():
    launches = [launch(0), launch(1, layer=None), launch(2, phase="prefill")]
    (one,) = unique_calls(launches, [FORM] * 3)
    assert (one.steps, one.steps_in_layers) == ({0: 3}, {0: 2})


def test_calls_outside_of_layers_count_by_module():
    in_module = [launch(0, layer=None, module=2), launch(1, layer=None, module=2, phase="prefill")]
    in_both = launch(2, module=1)  # a layer calls the module
    (one,) = unique_calls([*in_module, in_both], [FORM] * 3)
    assert (one.steps, one.steps_in_layers) == ({0: 3}, {0: 1})
    assert one.steps_in_modules == {2: {0: 2}}


def test_later_runs_count_for_the_mean_time_and_not_for_steps():
    launches = [launch(0, run=0), launch(1, run=1, duration_us=4.0), launch(2, run=2)]
    (one,) = unique_calls(launches, [FORM] * 3)
    assert (one.calls, one.steps, one.steps_in_layers) == (3, {0: 1}, {0: 1})
    assert one.call_us == pytest.approx(8.0 / 3)
    assert unevenly_called([one], 3) == 0
    assert unevenly_called([one], 2) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=12))
def test_every_call_is_in_one_unique_call_with_its_time(drawn):
    forms = [replace(FORM, parameters=(f"layer.{one}.weight",)) for one, _, _ in drawn]
    launches = [
        launch(number, step=step, name="gemm" if plain else "splitk")
        for number, (_, step, plain) in enumerate(drawn)
    ]
    found = unique_calls(launches, forms)
    assert sum(one.calls for one in found) == len(drawn)
    assert sum(one.total_us for one in found) == 2.0 * len(drawn)
    assert all(sum(one.steps.values()) == one.calls for one in found)
    assert all(1 <= len(one.turns) <= min(one.calls, 3) for one in found)


def test_what_is_written_is_read(tmp_path):
    calls = unique_calls([launch(0), launch(1, step=1)], [FORM, FORM])
    write_calls(calls, tmp_path)
    assert read_calls(tmp_path) == calls


def test_a_folder_without_calls_names_the_command_that_writes_them(tmp_path):
    with pytest.raises(InputError, match=r"has no operator_calls\.jsonl: .*gpuenergy profile"):
        read_calls(tmp_path)


@pytest.mark.parametrize("garbage", [b'{"id": 3}', b"\xff", b"[" * 10_000, b"nonsense"])
def test_a_damaged_line_is_named(tmp_path, garbage):
    write_calls(unique_calls([launch(0)], [FORM]), tmp_path)
    with (tmp_path / "operator_calls.jsonl").open("ab") as file:
        file.write(garbage)
    with pytest.raises(InputError, match=r"Line 2 of .* is not a call"):
        read_calls(tmp_path)


def test_an_empty_file_is_refused(tmp_path):
    write_calls([], tmp_path)
    with pytest.raises(InputError, match="has no calls"):
        read_calls(tmp_path)
