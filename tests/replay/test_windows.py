"""Windows of a model's layers: which calls are measured together."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from pytest_gpuenergy.replay import UniqueCall, choose_windows


def call(name: str, call_us: float = 10.0) -> UniqueCall:
    return UniqueCall(name, "aten.mm.default", [], None, (), 1, call_us, {0: 1}, {0: 1}, (0,))


SHORT = 16


@given(st.integers(2, 90), st.integers(1, 5))
def test_the_calls_of_a_layer_are_divided_evenly_among_few_windows(length, layers):
    form = [str(number) for number in range(length)]
    ids = [{0: name} for _ in range(layers) for name in form]
    spans = [[(layer * length, (layer + 1) * length)] for layer in range(layers)]
    calls = {name: call(name) for name in form}
    found = choose_windows(ids, spans, calls, [0], longest=SHORT)
    lengths = [len(window.calls) for window in found]
    assert max(lengths) <= SHORT
    assert max(lengths) - min(lengths) <= 1
    assert sorted(name for window in found for name in window.calls) == sorted(form)
    for window in found:
        for layer, numbers in enumerate(window.numbers):
            assert [number - layer * length for number in numbers] == list(map(int, window.calls))


def test_whole_layers_of_each_form_are_windows():
    ids = [{0: name} for name in "abcabcaccacc"]
    spans = [[(3 * layer, 3 * layer + 3)] for layer in range(4)]
    found = choose_windows(ids, spans, {name: call(name) for name in "abc"}, [0])
    assert [("".join(one.calls), one.key) for one in found] == [
        ("abc", "step0-layer0"),
        ("acc", "step0-layer1"),
    ]
    assert found[1].numbers == [[6, 7, 8], [9, 10, 11]]


def test_a_layer_that_loops_over_tokens_is_divided():
    form = [str(number % 7) for number in range(600)]
    ids = [{0: name} for name in form * 2]
    calls = {name: call(name) for name in form}
    found = choose_windows(ids, [[(0, 600)], [(600, 1200)]], calls, [0])
    assert [(len(one.calls), one.key) for one in found] == [
        (300, "step0-window0"),
        (300, "step0-window1"),
    ]


def test_what_another_run_makes_in_the_same_order_is_in_no_other_window():
    calls = {name: call(name) for name in "abcdefg"}
    spans = [[(0, 7)], [(7, 14)]]
    known = choose_windows([{0: name} for name in "cdgcdg"], [[(0, 3)], [(3, 6)]], calls, [0])
    run = [{0: name} for name in "abcdgef" * 2]
    found = choose_windows(run, spans, calls, [0], known, from_host=True)
    assert [window.calls for window in found] == [("a", "b"), ("e", "f")]
    assert found[1].numbers == [[5, 6], [12, 13]]
    assert found[1].key == "step0-host-window1"
    elsewhere = [replace(window, step=1) for window in known]
    (whole,) = choose_windows(run, spans, calls, [0], elsewhere)
    assert len(whole.calls) == 7


def test_what_could_not_be_replayed_as_a_whole_is_divided():
    """Calls that a known window has are in no other one, and keys are not used twice."""
    ids = [{0: name} for name in "abcabcaccacc"]
    spans = [[(3 * layer, 3 * layer + 3)] for layer in range(4)]
    calls = {name: call(name) for name in "abc"}
    known = choose_windows(ids, spans, calls, [0])[:1]
    found = choose_windows(ids, spans, calls, [0], known, longest=2)
    assert ["".join(one.calls) for one in found] == ["cc"]
    known.append(replace(known[0], calls=("c", "b"), is_layer=False))
    again = choose_windows(ids, spans, calls, [0], known, longest=2)
    assert [one.key for one in again] == ["step0-window1"]


def test_calls_that_launch_nothing_and_those_between_layers_are_left_out():
    ids = [{0: "a"}, {}, {0: "b"}, {0: "between"}, {0: "a"}, {}, {0: "b"}]
    calls = {"a": call("a"), "b": call("b")}
    (window,) = choose_windows(ids, [[(0, 3)], [(4, 7)]], calls, [0])
    assert (window.calls, window.numbers) == (("a", "b"), [[0, 2], [4, 6]])


def test_a_layer_unlike_all_others_has_a_window_too():
    ids = [{0: name} for name in "abababcc"]
    spans = [[(2 * layer, 2 * layer + 2)] for layer in range(4)]
    found = choose_windows(ids, spans, {name: call(name) for name in "abc"}, [0])
    assert [("".join(one.calls), len(one.numbers)) for one in found] == [("ab", 3), ("cc", 1)]


def test_a_call_that_cannot_be_replayed_divides_a_layer():
    ids = [{0: name} for name in "abxcdxe" * 2]
    calls = {name: call(name) for name in "abcde"}
    found = choose_windows(ids, [[(0, 7)], [(7, 14)]], calls, [0])
    assert [("".join(one.calls), one.is_layer) for one in found] == [("ab", False), ("cd", False)]


def test_each_step_has_windows_of_its_own():
    ids = [{0: "a"}, {0: "b"}] * 2 + [{1: "c"}, {1: "d"}] * 2
    spans = [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    found = choose_windows(ids, spans, {name: call(name) for name in "abcd"}, [0, 1])
    assert [(window.step, "".join(window.calls)) for window in found] == [(0, "ab"), (1, "cd")]


def test_of_many_windows_those_with_most_gpu_time_remain():
    form = [str(number) for number in range(16 * 8)]
    ids = [{0: name} for _ in range(2) for name in form]
    calls = {name: call(name, 1.0 + (int(name) // 16 > 1)) for name in form}
    found = choose_windows(ids, [[(0, 128)], [(128, 256)]], calls, [0], longest=SHORT)
    assert len(found) == 6
    assert all(int(window.calls[0]) >= 32 for window in found)
    assert choose_windows(ids, [[(0, 128)], [(128, 256)]], calls, [0], found) == []
