"""What several searches have gained together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kernel_specs import optimize, spec_with, write
from msgspec.structs import replace

from pytest_gpuenergy.record import METRICS, Interval, Metric
from pytest_gpuenergy.search import (
    KernelSpec,
    SearchIdentity,
    SearchNode,
    SearchState,
    Summary,
    VariantGain,
    read_spec,
    summarize,
    summary_lines,
)
from pytest_gpuenergy.search.running import search_trace

H200 = "NVIDIA H200"


def spec_called(tmp_path: Path, name: str = "scale", **fields: Any) -> KernelSpec:
    return read_spec(write(tmp_path, spec_with(name=name, **fields)))


def state_with(*gains: VariantGain, gpu: str = H200, finished: bool = True) -> SearchState:
    identity = SearchIdentity(
        spec="s",
        gpu=gpu,
        emulated=True,
        power_limit_w=700.0,
        objective=Metric.EDP,
        seed=0,
    )
    nodes = (
        SearchNode(id="s0", parent=None, outcome="correct", cost=4.0, time_ms=2.0),
        SearchNode(
            id="s1", parent="s0", move="a", what="1", outcome="correct", cost=2.0, time_ms=1.0
        ),
        SearchNode(
            id="s2", parent="s1", move="b", what="2|3", outcome="correct", cost=1.0, time_ms=1.0
        ),
        SearchNode(
            id="s3", parent="s0", move="c", what="", outcome="compile", cost=None, time_ms=None
        ),
    )
    return SearchState(identity=identity, builds=3, nodes=nodes, gains=gains, finished=finished)


def gain(name: str = "s2", ratio: float = 0.5, *, accepted: bool = True) -> VariantGain:
    return VariantGain(
        id=name,
        accepted=accepted,
        rounds=6,
        ratios=dict.fromkeys(METRICS, ratio),
        ratio_intervals=dict.fromkeys(METRICS, Interval(ratio - 0.1, ratio + 0.1)),
        baseline={Metric.TIME: 2.0, Metric.ENERGY: 8.0, Metric.EDP: 16.0},
        variant={Metric.TIME: 2.0 * ratio, Metric.ENERGY: 8.0 * ratio, Metric.EDP: 16.0},
    )


def summed(*found: tuple[KernelSpec, SearchState]) -> Summary:
    summary = summarize(found)
    assert summary is not None
    return summary


class TestAKernel:
    def test_that_is_better_has_its_ratios_and_all_moves_to_it(self, tmp_path):
        (one,) = summed((spec_called(tmp_path), state_with(gain()))).kernels
        assert one.best == "s2"
        assert one.moves == ("a 1", "b 2|3")
        assert one.ratios[Metric.ENERGY] == 0.5
        assert one.ratio_intervals[Metric.TIME] == Interval(0.4, 0.6)
        assert (one.builds, one.correct) == (3, 2)

    def test_that_is_not_certainly_better_counts_as_unchanged(self, tmp_path):
        state = state_with(gain("s1", 0.9, accepted=False))
        (one,) = summed((spec_called(tmp_path), state)).kernels
        assert one.best is None
        assert one.ratios == dict.fromkeys(METRICS, 1.0)
        assert one.ratio_intervals[Metric.EDP] == Interval(1.0, 1.0)
        assert one.baseline[Metric.ENERGY] == 8.0

    def test_has_the_distance_to_its_roofline_before_and_after(self, tmp_path):
        spec = spec_called(tmp_path, bytes_moved="480000 * N")
        (one,) = summed((spec, state_with(gain()))).kernels
        assert one.roofline_ms == pytest.approx(4000 * 480000 / 4.8e9, rel=0.01)
        assert one.roofline_share == pytest.approx((one.roofline_ms / 2, one.roofline_ms))

    def test_on_an_unknown_card_has_none(self, tmp_path):
        found = summed((spec_called(tmp_path), state_with(gain(), gpu="Other")))
        assert found.kernels[0].roofline_share is None

    def test_without_a_comparison_has_the_time_of_its_search(self, tmp_path):
        (one,) = summed((spec_called(tmp_path), state_with())).kernels
        assert one.baseline == {Metric.TIME: 2.0}


class TestAllKernels:
    def test_the_energy_cut_is_the_mean_over_all_those_unchanged_included(self, tmp_path):
        specs = [spec_called(tmp_path, name) for name in ("one", "two")]
        found = summed((specs[0], state_with(gain())), (specs[1], state_with()))
        assert found.mean_energy_cut == pytest.approx(0.25)
        assert found.mean_energy_cut_interval.low == pytest.approx(0.2)
        assert found.mean_energy_cut_interval.high == pytest.approx(0.3)
        assert found.median_speedup == pytest.approx(1.5)
        assert found.improved == 1
        line = summary_lines(found)[-1]
        assert line.startswith(
            "1 of 2 kernels improved: median speedup 1.50x, mean energy cut 25.0 % [20.0, 30.0]"
        )
        assert "from a model, not measured" in line

    def test_searches_that_were_interrupted_are_named(self, tmp_path):
        found = summed((spec_called(tmp_path), state_with(finished=False)))
        assert summary_lines(found)[-1] == "not finished, continue with --resume: scale"

    def test_none_without_a_baseline_counts(self, tmp_path):
        empty = SearchState(identity=state_with().identity)
        assert summarize([(spec_called(tmp_path), empty)]) is None

    @given(ratios=st.lists(st.floats(0.2, 0.95), min_size=1, max_size=5))
    def test_the_mean_lies_in_its_interval(self, ratios):
        spec = KernelSpec(**{**MINIMAL, "name": "scale"})
        found = summed(*((spec, state_with(gain(ratio=ratio))) for ratio in ratios))
        ends = found.mean_energy_cut_interval
        assert ends.low < found.mean_energy_cut < ends.high


def minimal() -> dict[str, Any]:
    from kernel_specs import SCALE

    from pytest_gpuenergy.support import convert

    spec = convert({**SCALE, "flops": 0}, KernelSpec)
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


MINIMAL = minimal()


@pytest.mark.slow
def test_a_folder_ends_with_a_table_and_files(tmp_path, capsys):
    folder = tmp_path / "specs"
    folder.mkdir()
    for name in ("one", "two"):
        write(folder, spec_with(name=name))
    out = tmp_path / "out"
    assert optimize(folder, out, "--no-llm", "--budget-builds", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("kernel  "))
    assert [line.split()[0] for line in lines[head + 1 : head + 3]] == ["one", "two"]
    assert " of 2 kernels improved: median speedup " in lines[head + 3]
    written = json.loads((out / "summary.json").read_text())
    assert [one["name"] for one in written["kernels"]] == ["one", "two"]
    assert "| one |" in (out / "summary.md").read_text()


@pytest.mark.slow
def test_one_kernel_needs_no_table(tmp_path, capsys):
    words = ("--no-llm", "--json", "--budget-builds", "0")
    assert optimize(write(tmp_path), tmp_path / "out", *words) == 0
    assert json.loads(capsys.readouterr().out)[0]["kernel"] == "scale"
    assert json.loads((tmp_path / "out/summary.json").read_text())["kernels"][0]["name"] == "scale"


def test_a_trace_names_what_is_assumed(tmp_path):
    state = state_with()
    *others, last = state.nodes
    slow = replace(last, outcome="correct", cost=8.0, time_ms=3.0, assumed=True)
    spec = spec_called(tmp_path)
    text = search_trace.trace(spec, replace(state, nodes=(*others, slow)))
    rows = [line for line in text.splitlines() if line.startswith("| s")]
    assert [row.count("(assumed)") for row in rows] == [0, 0, 0, 2]
    assert "power was not measured to the end" in text
    assert "assumed" not in search_trace.trace(spec, state).lower()
