"""The graph search against other strategies, on the recorded space that is committed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import record_space
import search_strategies as bench
from t4 import RecordedSpace, read_t4

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.search import SearchParameters
from pytest_gpuenergy.tuning import card_resources

COMMITTED = Path(bench.__file__).parent / "spaces" / "simt-1024-h200-estimated.json.gz"


@pytest.fixture(scope="module")
def space() -> RecordedSpace:
    return RecordedSpace(read_t4(COMMITTED))


@pytest.fixture(scope="module")
def compared(space: RecordedSpace) -> bench.Comparison:
    return bench.compare(
        "simt", space, budgets=(20, 50), seeds=range(12), parameters=SearchParameters()
    )


@pytest.mark.slow
@pytest.mark.parametrize("other", ["random", "random expansion", "block sizes", bench.TREE])
def test_the_graph_search_is_no_worse_than_others(compared, other):
    graph, rest = (np.median(compared.found[name], axis=0) for name in (bench.GRAPH, other))
    assert (graph >= rest).all()


@pytest.mark.slow
def test_shares_grow_with_the_budget_and_end_at_the_optimum(compared):
    for found in compared.found.values():
        assert found.shape == (12, 2)
        assert (found[:, 0] <= found[:, 1]).all()
        assert (found > 0).all()
        assert (found <= 1).all()


def test_an_interval_holds_its_mean_and_shrinks_to_a_constant():
    mean, low, high = bench.interval([np.array([0.5, 0.7]), np.array([0.9, 0.9])])
    assert mean == pytest.approx(0.75)
    assert (low, high) == pytest.approx((0.7, 0.8))
    assert bench.interval([np.ones(5)]) == (1.0, 1.0, 1.0)


def test_a_tree_takes_a_state_again_on_another_path_but_never_returns():
    square = RecordedSpace([({"x": x, "y": y}, 1.0) for x in (0, 1) for y in (0, 1)])
    tree = bench.Unmerged(square)
    waiting, ends = [tree.root], []
    while waiting:
        state = waiting.pop()
        ends.append(tree.configuration_of(state))
        waiting += [action.child for action in tree.actions(state)]
    # Both ways round the square, each with three steps.
    assert sorted(ends) == ["x=0,y=0", "x=0,y=1", "x=0,y=1", *["x=1,y=0"] * 2, *["x=1,y=1"] * 2]


def test_the_command_prints_both_tables(tmp_path, capsys):
    results = [
        {
            "configuration": {"block": 2**x, "unroll": u},
            "times": {},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 1 + abs(3 - x) + u}],
        }
        for x in range(6)
        for u in (1, 2)
    ]
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"results": results}))
    words = [str(path), "--seeds", "2", "--budgets", "12,3", "--set", "PUCT_C=1"]
    assert bench.main(words) == 0
    printed = capsys.readouterr().out
    assert "| small | graph search | " in printed
    assert "1.000 (1.000 to 1.000)" in printed
    assert "| graph search less | 3 | 12 |" in printed


@pytest.mark.slow
def test_the_committed_space_has_the_configurations_that_its_script_writes(tmp_path, capsys):
    path = tmp_path / "space.json.gz"
    assert record_space.main([str(path)]) == 0
    written, committed = (
        [(one["configuration"], one["invalidity"]) for one in json.loads(text)["results"]]
        for text in map(gzip.decompress, (path.read_bytes(), COMMITTED.read_bytes()))
    )
    assert written == committed
    assert COMMITTED.stat().st_size < 200_000
    assert record_space.main([str(tmp_path / "none" / "space.json.gz")]) == 2
    assert "error: " in capsys.readouterr().err


def test_the_best_of_the_committed_space_is_a_kernel_of_the_template(space):
    best = min(space.good, key=lambda state: space.costs[state] or 0)
    configuration = {name: int(value) for name, value in space.configuration(best).items()}
    with EmulatedDevice() as device:
        card = card_resources(device)
    one = record_space.parameters(configuration, record_space.PRODUCT)
    assert one.resident(record_space.PRODUCT, card) > 0
    assert one.kernel(record_space.PRODUCT).launches[0].entry == "gemm"


@pytest.mark.slow
def test_predictions_help_the_more_the_better_they_are(space):
    found = bench.compare(
        "simt",
        space,
        budgets=(15,),
        seeds=range(12),
        parameters=SearchParameters(),
        strategies=(bench.GRAPH,),
        errors=(0.05,),
    ).found
    told, misled = (bench.prediction(0.05, of_others=others) for others in (False, True))
    assert found[told].mean() > found[bench.GRAPH].mean()
    assert found[told].mean() > found[misled].mean()
