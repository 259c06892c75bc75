"""Unique kernels from a file without a trace: ours, or that of another tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from profiler_traces import ADDMM, GEMM, STRANGE_VALUES, lasting, launch, layer, operator, write

from pytest_gpuenergy.replay import (
    UniqueKernel,
    extract_kernels,
    read_list,
    understood,
    write_extraction,
)
from pytest_gpuenergy.support import InputError

OLDER = "bloom_unique_kernels_compute.jsonl"
COPY = lasting("gpu_memcpy", "Memcpy HtoD", 500.0, 5.0, bytes=64)
VALUES: dict[str, Any] = {
    "name": GEMM,
    "total_us": 12.5,
    "operator": "aten::addmm",
    "shapes": [[64], [8, 32], [32, 64], [], []],
    "dtypes": ["c10::Half", "c10::Half", "c10::Half", "Scalar", "Scalar"],
    "strides": [[1], [32, 1], [1, 32], [], []],
    "scalars": ["", "", "", "1", "1"],
    "grid": [4, 2, 1],
    "block": [128, 1, 1],
    "shared_memory_bytes": 49152,
    "registers": 96,
    "calls": 24,
    "phase": "prefill",
    "layers": [3],
}
NAMES = dict(understood())
OTHERS = [(field, name) for field in VALUES for name in NAMES[field]]


def listed(folder: Path, *lines: dict[str, Any]) -> tuple[list[UniqueKernel], list[str]]:
    path = folder / OLDER
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_list(path)


def only(folder: Path, line: dict[str, Any]) -> Any:
    (found,), notes = listed(folder, line)
    assert notes == []
    return found


@pytest.fixture
def plain(tmp_path: Path) -> Any:
    return only(tmp_path, VALUES)


def test_every_field_is_read(plain):
    assert (plain.name, plain.total_us, plain.calls) == (GEMM, 12.5, 24)
    assert (plain.phase, plain.layers, plain.work) == ("prefill", (3,), "kernel")
    assert (plain.grid, plain.block) == ((4, 2, 1), (128, 1, 1))
    assert (plain.shared_memory_bytes, plain.registers) == (49152, 96)
    assert plain.operator.name == "aten::addmm"
    assert plain.operator.shapes == ADDMM["Input Dims"]
    assert plain.operator.scalars == ADDMM["Concrete Inputs"]


@pytest.mark.parametrize(("field", "name"), OTHERS)
def test_a_field_is_known_by_other_names(tmp_path, plain, field, name):
    unit_us = {"_ms": 1e3, "_ns": 1e-3}.get(name[-3:], 1.0)
    line: dict[str, Any] = {key: value for key, value in VALUES.items() if key != field}
    value = VALUES[field] / unit_us if field == "total_us" else VALUES[field]
    for spelled in (name, name.replace("_", " ").title(), name.title().replace("_", "")):
        found = only(tmp_path, {**line, spelled: value})
        assert found.total_us == pytest.approx(plain.total_us)
        assert found == plain or field == "total_us"
        assert found.id == plain.id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("grid", "[4, 2, 1]"),
        ("grid", "(4,2,1)"),
        ("grid", "4x2x1"),
        ("grid", {"x": 4, "y": 2, "z": 1}),
        ("grid", ["4", "2", 1.0]),
        ("shared_memory", "49152"),
        ("registers", 96.0),
        ("shapes", "[[64], [8, 32], [32, 64], [], []]"),
        ("shapes", "((64,), (8, 32), (32, 64), (), ())"),
        ("dtypes", "['c10::Half', 'c10::Half', 'c10::Half', 'Scalar', 'Scalar']"),
        ("layer", 3),
        ("layer", "layer 3"),
        ("layer", ["3"]),
        ("phase", "Prefill phase"),
        ("total_us", "12.5"),
    ],
)
def test_a_value_may_be_written_otherwise(tmp_path, plain, field, value):
    aliases = next(names for names in NAMES.values() if field in names)
    line = {key: one for key, one in VALUES.items() if key not in aliases}
    assert only(tmp_path, {**line, field: value}) == plain


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, plain):
    path = tmp_path / OLDER
    path.write_text(json.dumps(VALUES), encoding="utf-8-sig")
    assert read_list(path) == ([plain], [])


def test_what_a_line_does_not_tell_is_none(tmp_path):
    found = only(tmp_path, {"name": "add", "total_us": 3})
    assert (found.operator, found.phase, found.grid, found.block) == (None, None, None, None)
    assert (found.shared_memory_bytes, found.registers, found.calls) == (None, None, None)
    assert found.layers == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("grid", [4, 2]),
        ("grid", "large"),
        ("grid", [4, -2, 1]),
        ("block", [1, 1, None]),
        ("registers", 96.5),
        ("registers", True),
        ("calls", -1),
        ("calls", 1e300),
        ("shapes", "[[64"),
        ("dtypes", 7),
        ("phase", "training"),
        ("layers", ["first"]),
        ("operator", 3),
        ("operator", ""),
        ("work", "dance"),
    ],
)
def test_a_value_that_is_not_understood_is_left_out_and_told(tmp_path, field, value):
    line = {"name": "add", "total_us": 3}
    (found,), notes = listed(tmp_path, line, {**line, field: value})
    assert notes == [f"{field} is not understood in 1 line, such as line 2, and left out there"]
    assert found.total_us == 6.0


@pytest.mark.parametrize("word", [b"nan", b"-inf", b"1e999"])
def test_a_number_that_json_does_not_have_costs_only_itself(tmp_path, word):
    path = tmp_path / OLDER
    path.write_bytes(b'{"name": "add", "total_us": 5, "registers": ' + word + b"}")
    ((found,), _) = read_list(path)
    assert (found.total_us, found.registers) == (5.0, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"total_us": 1}', "Line 1 of .* no name; name, kernel_name, kernel are understood"),
        (b'\n{"name": " ", "total_us": 1}', "Line 2 of .* no name"),
        (b'{"name": "add"}', "no time of all calls; total_us, .*duration_us,.* are understood"),
        (b'{"name": "add", "total_us": -1}', "no time"),
        (b'{"name": "add", "total_us": true}', "no time"),
        (b'{"name": "add", "total_us": "nan"}', "no time"),
        (b'{"name": "add", "total_us": 1e18}', "no time"),
        (b'{"name": "add", "total_us": "' + b"9" * 5000 + b'"}', "no time"),
        (b'{"name": "add", "total_us": NaN}', "no time"),
        (b'{"name": "add", "total_us": 1e999}', "no time"),
        (b"[1]", "it is a list instead of an object"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b'{"name": "add", "total_us": 1', "not complete JSON"),
        (b'{"a":' * 100_000, "Line 1 of"),
        (b"\n \n", "has no kernels"),
    ],
)
def test_what_is_no_list_gets_one_sentence(tmp_path, content, said):
    path = tmp_path / OLDER
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as refused:
        read_list(path)
    assert "\n" not in str(refused.value)


def test_arguments_without_an_operator_are_left_out_and_told(tmp_path):
    line = {key: value for key, value in VALUES.items() if key != "operator"}
    (found,), notes = listed(tmp_path, line)
    assert found.operator is None
    assert notes[0].startswith("operator is not understood in 1 line")


def test_lines_that_share_everything_count_once(tmp_path):
    (found,), _ = listed(tmp_path, VALUES, {**VALUES, "layers": 5})
    assert (found.calls, found.total_us) == (48, 25.0)
    assert found.layers == (3, 5)


def test_the_sum_of_known_and_unknown_calls_is_unknown(tmp_path):
    without = {key: value for key, value in VALUES.items() if key != "calls"}
    (found,), _ = listed(tmp_path, VALUES, without)
    assert found.calls is None


def test_copies_and_sets_are_known_by_their_names(tmp_path):
    lines = [{"name": name, "total_us": 1} for name in ("Memcpy HtoD", "Memset (Device)", "add")]
    found, _ = listed(tmp_path, *lines)
    assert {one.work for one in found} == {"copy", "set", "kernel"}


launch_plans = st.fixed_dictionaries(
    {
        "grid": st.lists(st.integers(1, 9), min_size=3, max_size=3),
        "shared memory": st.integers(0, 9),
    }
)


@given(
    plans=st.lists(st.tuples(launch_plans, st.booleans(), st.integers(1, 50)), max_size=8),
    phases=st.booleans(),
)
def test_our_own_file_without_a_trace_says_what_the_trace_said(tmp_path_factory, plans, phases):
    written = [COPY, *launch("lonely", 600.0, 610.0, 999)]
    for number, (plan, product, dur) in enumerate(plans, 1):
        at = 1000.0 * number
        if phases:
            written.append(lasting("user_annotation", f"decode {number}", at - 1, 99.0))
            written.append(lasting("user_annotation", f"layer {number}", at - 1, 99.0))
        if product:
            written += layer(at, number, dur=float(dur), **plan)
        else:
            add = operator("aten::add", at, 20.0, **{"Input Dims": [[8, 2**70]]})
            written += [add, *launch("add", at + 1, at + 30, number, dur=float(dur), **plan)]
    folder = tmp_path_factory.mktemp("run")
    before = extract_kernels(write(folder / "trace.json", written))
    write_extraction(before, folder)
    (folder / "trace.json").unlink()
    after = extract_kernels(folder)
    assert list(after.kernels) == list(before.kernels)
    assert list(after.signatures) == list(before.signatures)
    assert after.time_coverage == pytest.approx(before.time_coverage)
    assert after.call_coverage == pytest.approx(before.call_coverage)
    assert (after.launches, after.busy_us, after.span_us) == ((), None, None)


@given(name=st.sampled_from([name for _, name in OTHERS]), value=STRANGE_VALUES)
def test_a_line_with_a_strange_value_is_read_or_refused(tmp_path_factory, name, value):
    folder = tmp_path_factory.mktemp("odd")
    (folder / OLDER).write_text(json.dumps({**VALUES, name: value}))
    try:
        found = extract_kernels(folder)
    except InputError:
        return
    write_extraction(found, folder)
    assert len(found.kernels) == 1


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_other_content_is_refused(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    (folder / OLDER).write_bytes(content)
    with pytest.raises(InputError):
        extract_kernels(folder)
