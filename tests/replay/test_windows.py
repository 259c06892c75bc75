"""Windows of a model's layers: which calls are measured together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from replayed_calls import measurement

from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.record import WorkloadInfo
from pytest_gpuenergy.replay import (
    CallWindow,
    ReplayPlan,
    UniqueCall,
    choose_windows,
    windows_to_measure,
)


def call(name: str, call_us: float = 10.0) -> UniqueCall:
    return UniqueCall(name, "aten.mm.default", [], None, (), 1, call_us, {0: 1}, {0: 1}, (0,))


@given(st.integers(2, 90), st.integers(2, 5))
def test_the_calls_of_a_layer_are_divided_evenly_among_few_windows(length, layers):
    form = [str(number) for number in range(length)]
    ids = [{0: name} for _ in range(layers) for name in form]
    spans = [[(layer * length, (layer + 1) * length)] for layer in range(layers)]
    calls = {name: call(name) for name in form}
    found = parts(choose_windows(ids, spans, calls, [0]))
    lengths = [len(window.calls) for window in found]
    assert max(lengths) <= 16
    assert max(lengths) - min(lengths) <= 1
    assert sorted(name for window in found for name in window.calls) == sorted(form)
    for window in found:
        for layer, numbers in enumerate(window.numbers):
            assert [number - layer * length for number in numbers] == list(map(int, window.calls))


def parts(windows: list[CallWindow]) -> list[CallWindow]:
    """Without whole layers."""
    return [window for window in windows if not window.is_layer]


def test_whole_layers_of_each_form_are_windows_too():
    ids = [{0: name} for name in "abcabcaccacc"]
    spans = [[(3 * layer, 3 * layer + 3)] for layer in range(4)]
    found = choose_windows(ids, spans, {name: call(name) for name in "abc"}, [0])
    layers = [window for window in found if window.is_layer]
    assert [("".join(one.calls), one.key) for one in layers] == [
        ("abc", "step0-layer0"),
        ("acc", "step0-layer1"),
    ]
    assert layers[1].numbers == [[6, 7, 8], [9, 10, 11]]


def test_a_layer_that_loops_over_tokens_is_no_window():
    form = [str(number % 7) for number in range(600)]
    ids = [{0: name} for name in form * 2]
    calls = {name: call(name) for name in form}
    found = choose_windows(ids, [[(0, 600)], [(600, 1200)]], calls, [0])
    assert parts(found) == found


def test_what_another_run_makes_in_the_same_order_is_in_no_other_window():
    calls = {name: call(name) for name in "abcdefg"}
    spans = [[(0, 7)], [(7, 14)]]
    known = choose_windows([{0: name} for name in "cdgcdg"], [[(0, 3)], [(3, 6)]], calls, [0])
    found = parts(choose_windows([{0: name} for name in "abcdgef" * 2], spans, calls, [0], known))
    assert [window.calls for window in found] == [("a", "b"), ("e", "f")]
    assert found[1].numbers == [[5, 6], [12, 13]]
    elsewhere = [replace(window, step=1) for window in known]
    (whole,) = parts(
        choose_windows([{0: name} for name in "abcdgef" * 2], spans, calls, [0], elsewhere)
    )
    assert len(whole.calls) == 7


def test_calls_that_launch_nothing_and_those_between_layers_are_left_out():
    ids = [{0: "a"}, {}, {0: "b"}, {0: "between"}, {0: "a"}, {}, {0: "b"}]
    calls = {"a": call("a"), "b": call("b")}
    (window,) = parts(choose_windows(ids, [[(0, 3)], [(4, 7)]], calls, [0]))
    assert (window.calls, window.numbers) == (("a", "b"), [[0, 2], [4, 6]])


def test_a_layer_unlike_all_others_has_no_window():
    ids = [{0: name} for name in "abababcc"]
    spans = [[(2 * layer, 2 * layer + 2)] for layer in range(4)]
    (window,) = parts(choose_windows(ids, spans, {name: call(name) for name in "abc"}, [0]))
    assert (window.calls, len(window.numbers)) == (("a", "b"), 3)


def test_a_call_that_cannot_be_replayed_leaves_its_window_out():
    ids = [{0: name} for name in "abab"]
    assert choose_windows(ids, [[(0, 2)], [(2, 4)]], {"a": call("a")}, [0]) == []


def test_each_step_has_windows_of_its_own():
    ids = [{0: "a"}, {0: "b"}] * 2 + [{1: "c"}, {1: "d"}] * 2
    spans = [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    found = parts(choose_windows(ids, spans, {name: call(name) for name in "abcd"}, [0, 1]))
    assert [(window.step, "".join(window.calls)) for window in found] == [(0, "ab"), (1, "cd")]


def test_of_many_windows_those_with_most_gpu_time_remain():
    form = [str(number) for number in range(16 * 8)]
    ids = [{0: name} for _ in range(2) for name in form]
    calls = {name: call(name, 1.0 + (int(name) // 16 > 1)) for name in form}
    found = parts(choose_windows(ids, [[(0, 128)], [(128, 256)]], calls, [0]))
    assert len(found) == 6
    assert all(int(window.calls[0]) >= 32 for window in found)


def window(key: str, **more: int) -> Replayable:
    parameters: dict[str, int | str] = {"step": int(key[4]), "calls": "a b", **more}
    repeat: Any = nullcontext
    return Replayable(key, "graph", WorkloadInfo("model", parameters, 0, 0), repeat)


@pytest.mark.parametrize(
    ("limited", "measured"),
    [
        ((False, False), ["step0-window0", "step0-window0-restores"]),
        ((True, True), ["step0-layer0"]),
        ((True, False), ["step0-window0", "step0-window0-restores", "step0-layer0"]),
        ((None, True), ["step0-layer0"]),
        ((None, None), ["step0-window0", "step0-window0-restores"]),
    ],
)
def test_whole_layers_are_measured_where_the_power_limit_slows_the_step(limited, measured):
    """The graph and its layers are slowed down or not, or were not measured."""
    restores = replace(window("step0-window0-restores"), workload=WorkloadInfo("model", {}, 0, 0))
    windows = [window("step0-window0"), restores, window("step0-layer0", layer=1)]
    windows += [window("step1-window0")]  # none of its layers is like another
    windows += [window("step0-host-window0", host=1)]
    plan = ReplayPlan((), (), {}, lambda *_: None, None, windows=windows)
    wholes = {
        f"step{step}-{level}": measurement(1.0, 1.0, cap_binding=binding)
        for step in (0, 1)
        for level, binding in zip(("graph", "layers"), limited, strict=True)
        if binding is not None
    }
    found = [item.key for item in windows_to_measure(plan, wholes)]
    assert found == [*measured, "step1-window0", "step0-host-window0"]
