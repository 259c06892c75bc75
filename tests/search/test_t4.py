"""Recorded search spaces, from T4 result files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.search import RecordedSpace, configuration_id, read_t4
from pytest_gpuenergy.support import InputError


def result(configuration: dict[str, Any], time: Any = 1.0, **others: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-11-25",
        "configuration": configuration,
        "times": {"compilation": 3.0},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "time", "value": time, "unit": "ms"}],
        "objectives": ["time"],
        **others,
    }


def write(path: Path, results: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"schema_version": "1.0.0", "metadata": {}, "results": results}))
    return path


def space(**options: Any) -> RecordedSpace:
    sizes = [
        (block, unroll) for block in (32, 128, 64) for unroll in (1, 2) if block * unroll < 256
    ]
    costs = {(128, 1): 2.0, (64, 2): None}
    return RecordedSpace(
        [({"block": b, "unroll": u}, costs.get((b, u), 4.0)) for b, u in sizes], **options
    )


def test_times_and_failures_are_read(tmp_path):
    failed = result({"x": 3}, "RuntimeFailedConfig", invalidity="runtime", correctness=0)
    path = write(tmp_path / "t4.json", [result({"x": 1}, 2.5), result({"x": 2}, 3), failed])
    assert read_t4(path) == [({"x": 1}, 2.5), ({"x": 2}, 3.0), ({"x": 3}, None)]


def test_a_compressed_file_is_read(tmp_path):
    plain = write(tmp_path / "t4.json", [result({"x": "fast", "y": True})])
    path = tmp_path / "t4.json.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_t4(path) == [({"x": "fast", "y": True}, 1.0)]


def test_the_cost_is_the_objective_or_the_mean_of_the_run_times(tmp_path):
    power = [{"name": "time", "value": 1.0}, {"name": "energy", "value": 7.0}]
    path = write(
        tmp_path / "t4.json",
        [
            result({"x": 1}, measurements=power, objectives=["energy"]),
            result({"x": 2}, measurements=[], times={"runtimes": [1.0, 2.0]}),
            result({"x": 3}, objectives=[]),
        ],
    )
    assert [cost for _, cost in read_t4(path)] == [7.0, 1.5, 1.0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not complete JSON"),
        ("[]", "the file is a list instead of an object"),
        ("{}", "results"),
        ('{"results": [{"configuration": {}}]}', "invalidity"),
        (json.dumps({"results": [result({"x": [1]})]}), "configuration"),
        (json.dumps({"results": [result({"x": 1}, -2)]}), "measurement -2"),
        (json.dumps({"results": [result({"x": 1}, "slow")]}), "measurement 'slow'"),
        (json.dumps({"results": [result({"x": 1}, float("nan"))]}), "not complete JSON"),
        (json.dumps({"results": [result({"x": 1}, invalidity="odd")]}), "invalidity"),
        (json.dumps({"results": [result({"x": 1}, objectives=["edp"])]}), "has no 'edp'"),
    ],
)
def test_garbage_is_one_sentence(tmp_path, content, said):
    path = tmp_path / "t4.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_t4(path)
    assert said in str(caught.value)
    assert str(caught.value).endswith(": name another file.")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("t4") / "t4.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_t4(path)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_t4(tmp_path / "none.json")


def test_actions_set_one_parameter_to_any_other_value():
    labels = [action.label for action in space().actions("block=32,unroll=1")]
    assert labels == ["block=64", "block=128", "unroll=2"]


def test_actions_to_adjacent_values_skip_what_is_not_there():
    near = space(neighbours="adjacent")
    children = [action.child for action in near.actions("block=64,unroll=1")]
    assert children == ["block=32,unroll=1", "block=128,unroll=1", "block=64,unroll=2"]
    gap = RecordedSpace([({"x": x}, 1.0) for x in (1, 2, 5)], neighbours="adjacent")
    assert [action.child for action in gap.actions("x=2")] == ["x=1", "x=5"]


def test_words_are_ordered_after_numbers():
    mixed = RecordedSpace([({"x": x}, 1.0) for x in ("b", "a", 2)])
    assert [action.child for action in mixed.actions("x=a")] == ["x=2", "x=b"]


def test_neighbours_are_mutual():
    for kind in ("any", "adjacent"):
        found = space(neighbours=kind)
        for state in found.states:
            for action in found.actions(state):
                assert state in {back.child for back in found.actions(action.child)}


def test_a_space_knows_its_best_and_its_good_states():
    found = space()
    assert found.optimum == 2.0
    assert "block=64,unroll=2" in found.states
    assert "block=64,unroll=2" not in found.good
    assert found.root == "block=32,unroll=1"
    assert found.with_root("block=64,unroll=1").root == "block=64,unroll=1"
    assert found.with_values(unroll=2) == ["block=32,unroll=2", "block=64,unroll=2"]
    assert found.configuration("block=64,unroll=2") == {"block": 64, "unroll": 2}
    assert configuration_id({"b": 1, "a": True}) == "a=True,b=1"


@pytest.mark.parametrize("root", ["block=64,unroll=2", "block=1,unroll=1"])
def test_a_search_begins_at_a_state_that_succeeded(root):
    with pytest.raises(InputError, match="no configuration of the recorded space that succeeded"):
        space(root=root)
    with pytest.raises(InputError, match="no configuration of the recorded space that succeeded"):
        space().with_root(root)


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([], "no configuration that succeeded"),
        ([({"x": 1}, None)], "no configuration that succeeded"),
        ([({"x": 1}, 1.0), ({"x": 1}, 2.0)], "lists a configuration twice"),
        ([({"x": 1}, 1.0), ({"y": 1}, 2.0)], "differ in their parameters"),
    ],
)
def test_what_is_no_space_is_one_sentence(results, said):
    with pytest.raises(InputError, match=said):
        RecordedSpace(results)
