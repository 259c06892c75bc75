"""Records that are programs: refused with the place, before TVM sees them. Needs no TVM."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_records import HOSTILE, LAMBDA, WORDS, changed, strings
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.tuners import check_record, load_database, load_records

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "bench/records/nvidia-h200"
CASE7 = next(SHIPPED.glob("case7_conv2d_*.json"))
in_a_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@functools.cache
def document() -> Any:
    return json.loads(CASE7.read_text())


def rank_1_with(place: tuple[Any, ...], text: str) -> Any:
    """The record file whose first record has ``text`` at ``place``."""
    return changed(document(), ("records", 0, "record", *place), lambda _: text)


@functools.cache
def places() -> list[tuple[Any, ...]]:
    """Those in the first record's trace and target; of maps of indices the whole text."""
    content = document()["records"][0]["record"]
    return [place for place in strings(content) if place[0] in (0, 2)]


def first(kind: str) -> int:
    trace = document()["records"][0]["record"][0][0]
    return next(number for number, (name, *_) in enumerate(trace) if name == kind)


@pytest.mark.parametrize(
    "path",
    sorted(set(SHIPPED.glob("*_conv2d_*.json")) - set(SHIPPED.glob("*.template.json"))),
    ids=lambda path: path.name[:8],
)
def test_every_bundled_record_is_let_through(path):
    assert len(load_records(path).records) == 25


@pytest.mark.slow
@in_a_folder
@given(data=st.data())
def test_a_changed_string_is_refused_with_its_place(tmp_path, data):
    place = data.draw(st.sampled_from(places()))
    hostile = data.draw(st.sampled_from(HOSTILE) | st.text(min_size=1).map(lambda t: f"({t}"))
    at = data.draw(st.integers(0, 3))

    def insert(text: str) -> str:
        return text[: at * len(text) // 3] + hostile + text[at * len(text) // 3 :]

    path = tmp_path / "records.json"
    bad = changed(document(), ("records", 0, "record", *place), insert)
    path.write_text(json.dumps(bad))
    try:
        load_records(path)
    except InputError as error:
        message = str(error)
        assert message.startswith(f"The record file {path} cannot be used, because ")
        assert place[0] == 2 or f"instruction {place[2]} of the trace" in message
        assert message.isprintable()
    else:  # blocks, and parts of targets, have names; TVM then finds none of that name
        instruction = document()["records"][0]["record"][0][0][place[2]] if place[0] == 0 else []
        assert place[0] == 2 or instruction[0] == "GetSBlock"
        assert hostile in WORDS


@pytest.mark.parametrize(
    ("kind", "part", "values", "told"),
    [
        ("Bind", 2, [LAMBDA], "(Bind) has the attribute 'threadIdx.x + "),
        ("Bind", 2, ["cthread.x"], "instead of a thread axis (blockIdx.x, "),
        ("CacheRead", 2, [0, "shared int x; //"], "instead of a storage scope (global, shared, "),
        ("SetScope", 2, [0, "wmma.matrix_a"], "instead of a storage scope"),
        ("Annotate", 2, ["pragma_import_c"], "instead of an annotation (meta_schedule."),
        ("Annotate", 1, ["b0", '"int main() {}"'], "instead of a number"),
        ("Annotate", 1, ["b0", {"a": 1}], "instead of a number"),
        ("Annotate", 2, [], "has 0 attributes instead of 1"),
        ("Split", 1, ["l1", "l2"], "instead of a factor"),
        ("Split", 1, ["l1", 1 << 40], "instead of a factor"),
        ("Fuse", 1, [["l1"]], "instead of a loop"),
        ("GetSBlock", 2, ["root()", "main"], "instead of a name"),
        ("GetSBlock", 3, ["b0; int x"], "the output 'b0; int x' instead of a variable"),
        ("TransformBlockLayout", 2, ['{"type": "ffi.Function"}'], "instead of a map of indices"),
        ("TransformLayout", 2, [0, 0, "0", 0], "instead of null"),
        ("SamplePerfectTile", 2, [2, True], "instead of a size"),
        ("SampleCategorical", 2, [[1], [2.0]], "instead of a list of probabilities"),
    ],
)
def test_an_attribute_of_another_type_is_refused(tmp_path, kind, part, values, told):
    number = first(kind)
    path = tmp_path / "records.json"
    bad = changed(document(), ("records", 0, "record", 0, 0, number, part), lambda _: values)
    path.write_text(json.dumps(bad))
    with pytest.raises(
        InputError, match=rf"in records\[0\] instruction {number} of the trace"
    ) as error:
        load_records(path)
    assert told in str(error.value)


@pytest.mark.parametrize("kind", ["Tensorize", "UnsafeSetDType", "AnnotateBufferAccess", 7, None])
def test_an_instruction_of_another_kind_is_refused(kind):
    record = document()["records"][0]["record"]
    with pytest.raises(FormError, match="instruction 3 of the trace is of the kind"):
        check_record(changed(record, (0, 0, 3, 0), lambda _: kind))


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ([0, 1], r"instruction 0 of the trace \(GetSBlock\) has the decision 1 instead of none"),
        ([10**6, 1], "decides instruction 1000000 of"),
        ([-1, 1], "decides instruction -1 of"),
        (["0", 1], "a decision of the trace is"),
        ([0], "a decision of the trace is"),
        (None, "a decision of the trace is"),
    ],
)
def test_an_impossible_decision_is_refused(decision, told):
    record = document()["records"][0]["record"]
    with pytest.raises(FormError, match=told):
        check_record(changed(record, (0, 1, 0), lambda _: decision))


@pytest.mark.parametrize("value", ["1", [1, "1"], [1.5], [[1]], {"1": 1}, True, [True]])
def test_a_decision_of_another_type_is_refused(value):
    record = document()["records"][0]["record"]
    with pytest.raises(FormError, match=r"has the decision .* instead of a"):
        check_record(changed(record, (0, 1, 0, 1), lambda _: value))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "llvm"}, "the target has 'llvm' as 'kind'"),
        ({"kind": LAMBDA}, "the target has 'threadIdx.x + "),
        ({"arch": "sm_90 -I/etc"}, "the target has 'sm_90 -I/etc' as 'arch'"),
        ({"libs": ["cublas"]}, "the target has 'libs'"),
        ({"host": {"kind": "llvm", "mattr": ["+sse"]}}, "the target's host has 'mattr'"),
        ({"host": "llvm -jit"}, "the target's host is 'llvm -jit'"),
        ({"host": {"kind": "hexagon"}}, "the target's host has 'hexagon' as 'kind'"),
        ({"max_num_threads": "1024"}, "the target has '1024' as 'max_num_threads'"),
        ({"max_num_threads": 10**12}, "the target has 1000000000000 as 'max_num_threads'"),
        ({"keys": [LAMBDA]}, "as 'keys'"),
    ],
)
def test_a_target_with_anything_else_is_refused(change, told):
    record = document()["records"][0]["record"]
    with pytest.raises(FormError) as error:
        check_record([*record[:2], {**record[2], **change}, record[3]])
    assert told in str(error.value)


@pytest.mark.parametrize("target", ["llvm", "cuda -keys=x", '{"kind": "cuda"}', "nvidia/../x", 1])
def test_a_target_of_another_form_is_refused(target):
    record = document()["records"][0]["record"]
    with pytest.raises(FormError, match="the target is"):
        check_record([*record[:2], target, record[3]])


@pytest.mark.parametrize("target", ["cuda", "nvidia/nvidia-h100", {"kind": "cuda"}])
def test_a_target_of_tvms_own_is_let_through(target):
    record = document()["records"][0]["record"]
    assert check_record([*record[:2], target, record[3]])[2] == target


def test_the_files_own_target_is_checked_too(tmp_path):
    path = tmp_path / "records.json"
    path.write_text(json.dumps({**document(), "target": {"kind": "cuda", "mcpu": LAMBDA}}))
    with pytest.raises(InputError, match="because the target has 'mcpu'"):
        load_records(path)


def oversized() -> Iterator[tuple[str, Any]]:
    record = document()["records"][0]["record"]
    instruction = record[0][0][0]
    loops = first("GetLoops")
    axes = first("TransformBlockLayout")
    text = record[0][0][axes][2][0]
    yield "10000 instructions", changed(record, (0, 0), lambda _: [instruction] * 10_000)
    yield "decisions", changed(record, (0, 1), lambda _: [[0, 1]] * 10_000)
    yield "as its outputs", changed(record, (0, 0, loops, 3), lambda _: ["l1"] * 1000)
    yield "as its inputs", changed(record, (0, 0, loops, 1), lambda _: ["b1"] * 10**6)
    yield "map of indices", changed(record, (0, 0, axes, 2, 0), lambda _: text + " " * (1 << 20))
    yield "map of indices", changed(record, (0, 0, axes, 2, 0), lambda _: "[" * 100_000)
    yield "map of indices", changed(record, (0, 0, axes, 2, 0), lambda _: doubled(text))


def doubled(text: str) -> str:
    """A map that adds an axis to itself 60 times, each time what was there before."""
    graph = json.loads(text)
    nodes = graph["nodes"]
    final = next(node for node in nodes if node["type"] == "tirx.IndexMap")["data"]
    array = nodes[final["final_indices"]]
    root, number = nodes.pop(), len(nodes) - 1
    last = array["data"][0]
    nodes.remove(array)
    for _ in range(60):
        number = len(nodes)
        nodes.append({"type": "prim.Add", "data": {"span": 0, "ty": 1, "a": last, "b": last}})
        last = number
    array["data"][0] = last
    nodes += [array, root]
    root["data"]["final_indices"] = len(nodes) - 2
    graph["root_index"] = len(nodes) - 1
    return json.dumps(graph)


@pytest.mark.parametrize("number", range(7))
def test_what_is_too_large_is_refused(number):
    told, record = list(oversized())[number]
    with pytest.raises(FormError, match=told) as error:
        check_record(record)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("action", ["list", "show", "export"])
def test_commands_tell_the_file_and_the_place(tmp_path, capsys, action):
    number = first("Bind")
    path = tmp_path / CASE7.name
    path.write_text(json.dumps(rank_1_with((0, 0, number, 2, 0), LAMBDA)))
    more = {"list": (), "show": ("case7", "1"), "export": ("--out", str(tmp_path / "out"))}[action]
    assert main(["kernels", action, *more, "--records", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert (
        rf"The record file {path} cannot be used, because in records[0] instruction {number}" in err
    )
    assert not (tmp_path / "out").exists()


def test_a_database_of_other_searches_can_be_sampled(database, tmp_path, capsys):
    content = json.loads(database.records[0].text)
    content[0][0].append(["Parallel", ["l1"], [], []])
    (tmp_path / "llvm.json").write_text(json.dumps([0, [content[0], [1e-3], "llvm", content[3]]]))
    assert main(["kernels", "sample", str(tmp_path / "llvm.json")]) == 0
    assert "1.00" in capsys.readouterr().out


def test_a_line_of_a_database_that_is_too_long_is_refused(tmp_path):
    path = tmp_path / "records.json"
    path.write_text("[0, [" + "[" * 5_000_000 + "\n")
    with pytest.raises(InputError, match=r"Line 1 of the database .* longer than 4 MiB"):
        load_database(path)
