"""Which operator launched what ran on the GPU."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest
from hypothesis import given, strategies as st
from profiler_traces import ADDMM, GEMM, events, lasting, launch, layer, operator

from pytest_gpuenergy.replay import Event, host_operators, launches


def only(written: list[dict[str, Any]]) -> Any:
    (found,) = launches(events(written))
    return found


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch():
    found = only(layer())
    assert found.operator.name == "aten::addmm"
    assert found.operator.shapes == ADDMM["Input Dims"]
    assert found.operator.strides == ADDMM["Input Strides"]
    assert found.dispatched == "aten::linear"


def test_a_kernel_has_its_launch_plan():
    found = only(layer())
    assert (found.grid, found.block) == ((4, 2, 1), (128, 1, 1))
    assert (found.shared_memory_bytes, found.registers) == (49152, 96)
    assert (found.begin_us, found.duration_us) == (40.0, 5.0)


def test_an_operator_that_has_ended_launches_nothing():
    assert only([operator("aten::add", 0.0, 5.0), *launch("add", 6.0, 20.0, 1)]).operator is None


def test_an_operator_of_another_thread_launches_nothing():
    other = operator("aten::add", 0.0, 50.0) | {"tid": 2}
    assert only([other, *launch("add", 6.0, 20.0, 1)]).operator is None


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("step[EXTEND bs=2 toks=4096]", "prefill"),
        ("step[DECODE bs=64]", "decode"),
        ("step[MIXED bs=64]", None),
        ("execute_context_2(4096)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_64(64)", "decode"),
        ("execute_context_1(512)_generation_63(63)", None),
        ("execute_7_context_3(sq128sk256)_generation_0(sq0)", "prefill"),
    ],
)
def test_steps_of_servers_tell_the_phase(name, phase):
    around = lasting("user_annotation", name, 0.0, 60.0)
    assert only([around, *layer(ts=1.0)]).phase == phase


def test_without_a_call_the_external_id_tells_the_operator():
    kernel = lasting("kernel", "add", 20.0, 5.0, **{"External id": 9, "correlation": 4})
    found = only([operator("aten::add", 0.0, 5.0, **{"External id": 9}), kernel])
    assert found.operator.name == "aten::add"


def test_what_a_graph_launches_belongs_to_no_operator_around_it():
    around = operator("CompiledFunction", 1.0, 50.0, **ADDMM, **{"External id": 9})
    graph = lasting("cuda_runtime", "cudaGraphLaunch", 5.0, 2.0, correlation=4)
    kernel = lasting("kernel", "add", 20.0, 5.0, **{"External id": 9, "correlation": 4})
    found = only([lasting("user_annotation", "decode", 0.0, 60.0), around, graph, kernel])
    assert (found.operator, found.dispatched, found.phase) == (None, None, "decode")


def test_the_words_of_older_profilers_are_understood():
    older = [
        operator("aten::add", 0.0, 30.0) | {"cat": "Operator"},
        lasting("Runtime", "cudaLaunchKernel", 5.0, 2.0, correlation="7"),
        lasting("Kernel", "add", 20.0, 5.0, correlation=7),
        lasting("Memcpy", "Memcpy DtoH (Device -> Pageable)", 40.0, 5.0, bytes=64),
    ]
    kernel, copy = launches(events(older))
    assert (kernel.work, kernel.operator.name) == ("kernel", "aten::add")
    assert (copy.work, copy.bytes) == ("copy", 64)


@pytest.mark.parametrize("name", ["PythonDispatchMode", "PythonSubclass"])
def test_what_finds_an_operator_is_none_itself(name):
    written = [operator(name, 0.0, 60.0), *layer(ts=1.0), *launch("own", 50.0, 70.0, 2)]
    found, alone = launches(events(written))
    assert (found.operator.name, found.dispatched) == ("aten::addmm", "aten::linear")
    assert alone.operator is None
    assert name not in {one.name for one in host_operators(events(written))}


def test_annotations_tell_phase_and_layer():
    written = [
        lasting("user_annotation", "prefill", 0.0, 100.0),
        lasting("user_annotation", "layer 3", 1.0, 50.0),
        *layer(ts=2.0),
    ]
    found = only(written)
    assert (found.phase, found.layer) == ("prefill", 3)


def test_an_annotation_tells_the_module_outside_of_the_layers():
    found = only([lasting("user_annotation", "module 2", 1.0, 50.0), *layer(ts=2.0)])
    assert (found.module, found.layer) == (2, None)


@pytest.mark.parametrize("name", ["player 3", "layers", "ProfilerStep#3"])
def test_other_annotations_tell_no_layer(name):
    assert only([lasting("user_annotation", name, 0.0, 90.0), *layer(ts=1.0)]).layer is None


def test_what_no_annotation_tells_is_unknown():
    found = only([lasting("user_annotation", "ProfilerStep#3", 0.0, 100.0), *layer(ts=2.0)])
    assert (found.phase, found.layer) == (None, None)


@pytest.mark.parametrize("value", [None, "4x2x1", [4, 2], [4, 2, None], [True, 1, 1]])
def test_a_launch_plan_in_another_form_is_unknown(value):
    assert only(launch("add", 0.0, 5.0, 1, grid=value)).grid is None


@st.composite
def nested(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str]]:
    """Operators within operators, each of which may launch; and the launching ones in order."""
    written: list[dict[str, Any]] = []
    expected: list[str] = []

    def fill(begin: int, end: int, depth: int) -> None:
        at = begin + 1
        while at + 2 < end and len(written) < 60:
            stop = draw(st.integers(at + 1, end - 1))
            kind = draw(st.sampled_from(("launch", "operator", "pause")))
            if kind == "launch" and depth:
                number = len(expected) + 1
                expected.append(name_of[-1])
                written.extend(launch("k", float(at), 10_000.0 + number, number, dur=0.5))
            elif kind == "operator":
                name_of.append(f"op{len(written)}")
                written.append(operator(name_of[-1], float(at), float(stop - at)))
                fill(at, stop, depth + 1)
                name_of.pop()
            at = stop + 1

    name_of: list[str] = []
    fill(0, draw(st.integers(4, 200)), 0)
    return written, expected


@given(nested())
def test_each_launch_finds_its_operator_however_they_are_nested(case):
    written, expected = case
    found = launches(events(written))
    assert [one.operator and one.operator.name for one in found] == expected


def test_on_the_host_each_operator_counts_without_those_that_it_calls():
    written = [operator("aten::linear", 0.0, 30.0), operator("aten::addmm", 5.0, 20.0, **ADDMM)]
    outer, inner = host_operators(events(written))
    assert (outer.name, outer.duration_us) == ("aten::linear", 10.0)
    assert (inner.name, inner.duration_us, inner.work) == ("aten::addmm", 20.0, "operator")
    assert inner.dispatched == "aten::linear"


def test_two_launches_of_one_operator_are_both_its():
    written = [*layer(), *launch(GEMM, 12.0, 60.0, 2)]
    assert [one.operator.name for one in launches(events(written)) if one.operator] == [
        "aten::addmm"
    ] * 2


def test_an_annotation_tells_the_run():
    found = only([lasting("user_annotation", "run 2", 0.0, 60.0), *layer(ts=5.0)])
    assert found.run == 2


SPANS = st.lists(
    st.tuples(
        st.sampled_from(("cpu_op", "layer 1", "layer 2", "decode 3", "prefill", "run 4")),
        st.integers(0, 30),
        st.integers(1, 30),
    ),
    max_size=12,
)


@given(SPANS, st.integers(0, 60))
def test_what_overlaps_without_nesting_counts_until_it_ends(spans, moment):
    written = [
        lasting(*((what, f"op{n}") if what == "cpu_op" else ("user_annotation", what)), ts, dur)
        for n, (what, ts, dur) in enumerate(spans)
    ]
    at = moment + 0.5
    one = only([*written, *launch("k", at, 100.0, 1)])
    around = [e for e in events(written) if e.ts <= at < e.end]
    operators = [e.name for e in around if e.category == "operator"]
    named = [e.name for e in around if e.category == "annotation"]
    assert one.dispatched == (operators[0] if operators else None)
    assert (one.operator and one.operator.name) == (operators[-1] if operators else None)
    layers = [int(name[-1]) for name in named if name.startswith("layer")]
    assert one.layer == (layers[-1] if layers else None)
    phases = [word for word in ("prefill", "decode") if any(word in name for name in named)]
    assert one.phase == (phases[0] if phases else None)


COUNT = 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("category", "shrink_us"),
    [
        pytest.param("cpu_op", 0.0, marks=pytest.mark.thorough),
        ("user_annotation", 0.0),
        ("cpu_op", 4.0),
    ],
)
def test_many_events_that_overlap_or_nest_take_time_in_proportion(category, shrink_us):
    around = [
        Event(
            ph="X",
            cat=category,
            name=f"layer {n}",
            ts=2.0 * n,
            dur=(2.0 * shrink_us or 1.0) * COUNT - shrink_us * n,
            tid=1,
        )
        for n in range(COUNT)
    ]
    calls = [
        Event(ph="X", cat=cat, name="k", ts=2.0 * n + 1, dur=0.5, tid=tid, args={"correlation": n})
        for n in range(COUNT)
        for cat, tid in (("cuda_runtime", 1), ("kernel", 7))
    ]
    begin_s = process_time()
    found = launches(sorted([*around, *calls], key=lambda one: (one.ts, -one.dur)))
    assert process_time() - begin_s < 10  # it takes 0.7 s, and took minutes
    assert len(found) == COUNT
    if shrink_us:  # each is within all that began before it
        assert [one.operator.name for one in found if one.operator] == [e.name for e in around]
        assert {one.dispatched for one in found} == {"layer 0"}
