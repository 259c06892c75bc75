"""``global_tactic_graph.json``: searches of one folder learn from one another."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kernel_specs import optimize, spec_with, state_of, write
from msgspec.structs import replace

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import (
    GLOBAL_TACTICS,
    SearchTactics,
    Tactic,
    initial_tactics,
    pool_tactics,
    summarize_observations,
    write_tactics,
)
from pytest_gpuenergy.support import InputError

GAINS = st.lists(st.floats(-5, 5), max_size=20)
ONE = SearchTactics(kernel="one", gpu="NVIDIA H200", emulated=True, objective=Metric.EDP)
OTHER = replace(ONE, kernel="other")
HELPED = (Tactic("cuda", "cache_policy_cg", "gmem", 3, 0.25, 0.1),)


def begin(outdir: Path, part: SearchTactics, told: list[str] | None = None) -> tuple[Tactic, ...]:
    """Return the tactics with which a search in a folder of its own begins."""
    folder = outdir / part.kernel
    folder.mkdir(parents=True, exist_ok=True)
    return initial_tactics(outdir, folder, part, [].append if told is None else told.append)


def end(outdir: Path, part: SearchTactics, tactics: tuple[Tactic, ...] = HELPED) -> None:
    write_tactics(outdir, part, tactics, [].append)


def test_the_first_search_knows_nothing(tmp_path):
    assert begin(tmp_path, ONE) == ()


def test_a_search_learns_from_the_others(tmp_path):
    end(tmp_path, ONE)
    assert begin(tmp_path, OTHER) == HELPED


def test_but_not_from_itself(tmp_path):
    end(tmp_path, ONE)
    assert begin(tmp_path, ONE) == ()


@pytest.mark.parametrize(
    "other",
    [
        replace(OTHER, gpu="NVIDIA A100-SXM4-80GB"),
        replace(OTHER, emulated=False),
        replace(OTHER, objective=Metric.TIME),
    ],
)
def test_nor_from_what_is_not_alike(tmp_path, other):
    end(tmp_path, ONE)
    assert begin(tmp_path, other) == ()
    end(tmp_path, other)
    assert len(json.loads((tmp_path / GLOBAL_TACTICS).read_text())["parts"]) == 2


def test_a_search_that_ends_again_does_not_count_twice(tmp_path):
    end(tmp_path, ONE)
    end(tmp_path, ONE)
    assert begin(tmp_path, OTHER) == HELPED


def test_a_search_that_is_continued_knows_what_it_began_with(tmp_path):
    assert begin(tmp_path, OTHER) == ()
    end(tmp_path, ONE)
    assert begin(tmp_path, OTHER) == ()


def test_of_several_searches_each_observation_counts(tmp_path):
    end(tmp_path, ONE, summarize_observations("cuda", [("m", "gmem", 0.1), ("m", "gmem", None)]))
    end(tmp_path, OTHER, summarize_observations("cuda", [("m", "gmem", 0.4), ("m", "gmem", 0.7)]))
    (found,) = begin(tmp_path, replace(ONE, kernel="third"))
    assert (found.count, found.failures) == (3, 1)
    assert found.mean == pytest.approx(0.4)
    assert found.spread == pytest.approx(math.sqrt(0.06))


@given(st.lists(GAINS, min_size=1, max_size=5))
def test_pooling_is_as_if_all_had_been_observed_together(parts):
    together = summarize_observations(
        "cuda", [("m", "sfu", gain) for gains in parts for gain in gains]
    )
    apart = pool_tactics(
        one
        for gains in parts
        for one in summarize_observations("cuda", [("m", "sfu", gain) for gain in gains])
    )
    assert len(apart) == len(together)
    for one, other in zip(apart, together, strict=True):
        assert one.count == other.count
        assert one.mean == pytest.approx(other.mean, abs=1e-9)
        assert one.spread == pytest.approx(other.spread, abs=1e-6)


@pytest.mark.parametrize(
    "content",
    [
        "nonsense",
        "[]",
        '{"schema_version": 2, "parts": []}',
        '{"schema_version": 1, "parts": [{}]}',
        '{"schema_version": 1, "parts": [], "more": 1}',
        json.dumps(
            {
                "schema_version": 1,
                "parts": [
                    {
                        "kernel": "k",
                        "gpu": "g",
                        "emulated": True,
                        "objective": "edp",
                        "tactics": [
                            {
                                "language": "cuda",
                                "move": "m",
                                "bottleneck": "gmem",
                                "count": -1,
                                "mean": 0.0,
                                "spread": 0.0,
                            }
                        ],
                    }
                ],
            }
        ),
    ],
)
def test_a_damaged_file_is_set_aside_in_one_sentence(tmp_path, content):
    (tmp_path / GLOBAL_TACTICS).write_text(content)
    told: list[str] = []
    assert begin(tmp_path, ONE, told) == ()
    assert len(told) == 1
    assert "cannot be used, because" in told[0]
    assert (tmp_path / "global_tactic_graph.damaged.json").read_text() == content
    end(tmp_path, ONE)
    assert begin(tmp_path, OTHER) == HELPED


def test_what_a_search_began_with_must_not_be_damaged(tmp_path):
    begin(tmp_path, ONE)
    (tmp_path / "one/tactics.json").write_text("{}")
    with pytest.raises(InputError, match="What the search began with"):
        begin(tmp_path, ONE)


@pytest.mark.slow
class TestSearches:
    def learned(self, out: Path) -> Any:
        return json.loads((out / GLOBAL_TACTICS).read_text())["parts"]

    def test_what_a_search_has_found_helps_the_next_one(self, tmp_path):
        out = tmp_path / "out"
        for name in ("one", "other"):
            words = ("--objective", "edp", "--budget-builds", "1")
            assert optimize(write(tmp_path, spec_with(name=name)), out, *words) == 0
        assert [part["kernel"] for part in self.learned(out)] == ["one", "other"]
        moves = {one["move"] for part in self.learned(out) for one in part["tactics"]}
        assert "change_block_sizes" in moves
        known = json.loads((out / "kernels/_other/tactics.json").read_text())
        assert known["parts"][0]["tactics"] == self.learned(out)[0]["tactics"]
        graphs = [state_of(out, name)["graph"]["nodes"] for name in ("one", "other")]
        gains = [next(iter(nodes.values()))["edges"][0]["gain"] for nodes in graphs]
        assert gains[0] != gains[1]

    def test_a_search_that_is_continued_changes_nothing(self, finished, tmp_path):
        before = (finished / GLOBAL_TACTICS).read_bytes(), state_of(finished)
        assert optimize(write(tmp_path), finished, "--objective", "edp", "--resume") == 0
        assert ((finished / GLOBAL_TACTICS).read_bytes(), state_of(finished)) == before
