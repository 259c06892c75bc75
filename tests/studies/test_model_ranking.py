"""How the model's ranking is compared with what was measured."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator import COEFFICIENTS, DEFAULT_PROFILE, Coefficients, Traffic
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.tuning import Measured, RecordFile, dump_records, file_name

pytest.importorskip("scipy")
import model_ranking
import ranking

pytestmark = pytest.mark.slow

FIGURE = st.floats(1e-3, 1e3)
PAIRS = st.lists(st.tuples(FIGURE, FIGURE), min_size=2, max_size=40)
DISTINCT = st.lists(st.integers(1, 10**6).map(float), min_size=2, max_size=40, unique=True)


@given(DISTINCT)
def test_a_model_that_is_right_agrees(measured):
    found = ranking.agreement(measured, measured)
    assert found.kernels == len(measured)
    assert (found.spearman, found.kendall) == (pytest.approx(1), pytest.approx(1))
    assert (found.ratio, found.spread) == (pytest.approx(1), pytest.approx(1))


@given(DISTINCT)
def test_a_model_that_is_upside_down_disagrees(measured):
    found = ranking.agreement([1 / value for value in measured], measured)
    assert (found.spearman, found.kendall) == (pytest.approx(-1), pytest.approx(-1))


def test_the_regret_is_that_of_the_models_best():
    assert ranking.regret([1.0, 2.0, 3.0], [12.0, 15.0, 10.0], 1) == pytest.approx(1.2)


def test_only_pairs_that_differ_clearly_and_not_by_much_are_close():
    measured = [1.0, 1.01, 1.5, 10.0]
    assert ranking.close_pairs(measured, measured) == 1
    # 1.5 comes before both of its neighbours; 10 is far from all of them.
    assert ranking.close_pairs([2.0, 3.0, 1.0, 0.1], measured) == 0
    assert ranking.close_pairs([2.0, 3.0, 2.5, 0.1], measured) == 0.5
    assert ranking.close_pairs([1.0, 2.0], [1.0, 10.0]) is None


def invented(case: str, rank: int, truth: Coefficients) -> model_ranking.Sample:
    """A kernel whose "measured" figures are those of a model with the coefficients ``truth``."""
    draw = random.Random(f"{case} {rank}")
    loads, accesses, sectors = draw.uniform(10, 1e4), draw.uniform(1e2, 1e5), draw.uniform(4, 32)
    traffic = Traffic(
        barriers=draw.uniform(0, 100),
        load_intervals=draw.uniform(1, 50),
        global_loads=loads,
        branched_loads=loads * draw.choice([0, 0.3, 0.9]),
        global_sectors=loads * sectors,
        l2_sectors=loads * 2,
        shared_accesses=accesses,
        shared_wavefronts=accesses * draw.uniform(1, 8),
        private_words=draw.choice([8, 64, 128, 512]),
    )
    launch = Launch("k", (draw.randrange(1, 2000), 1, 1), (draw.randrange(32, 512), 1, 1), ())
    work = Work(10**9, 10**7)
    kernel = Kernel("k", (launch,))
    sample = model_ranking.Sample(
        case, case, rank, kernel, work, (traffic,), DEFAULT_PROFILE, 1.0, 1.0
    )
    time_ms, power_w = sample.modelled(truth)
    return replace(sample, time_ms=time_ms, power_w=power_w)


@pytest.fixture(scope="module")
def invented_samples() -> list[model_ranking.Sample]:
    truth = replace(COEFFICIENTS, instructions_per_global=20.0, latency_cycles=500.0)
    return [invented(case, rank, truth) for case in ("a", "b", "c") for rank in range(12)]


def test_a_fit_finds_coefficients_within_their_bounds(invented_samples):
    fitted = model_ranking.fit(invented_samples)
    for name, (_, low, high) in (model_ranking.TIME_BOUNDS | model_ranking.POWER_BOUNDS).items():
        assert low <= getattr(fitted, name) <= high
    assert fitted.instructions_per_global == pytest.approx(20, rel=0.1)
    assert fitted.latency_cycles == pytest.approx(500, rel=0.1)
    assert fitted == model_ranking.fit(invented_samples)


def test_a_case_that_is_held_out_is_met_when_the_model_is_right(invented_samples):
    modelled = model_ranking.held_out(invented_samples)
    rows = model_ranking.rows_of(invented_samples, modelled)
    assert [row.case for row in rows] == ["a", "b", "c", "all"]
    assert all(row.time.spearman > 0.98 and row.time.spread < 1.1 for row in rows)


@pytest.fixture
def records(record_file: RecordFile, tmp_path: Path) -> Path:
    """Two kernels of case7, with figures that are invented."""
    file = replace(record_file, gpu="NVIDIA H200", records=record_file.records[:2])
    invented = {rank: Measured(0.1 * rank, 300.0 - rank, 30.0, 700.0) for rank in file.ranks}
    folder = tmp_path / "records"
    dump_records(file.with_measured(invented), folder / file_name(file.workload))
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["model_ranking.py", *arguments])
    code: int = model_ranking.main()
    return code


@pytest.mark.tvm
def test_the_command_compares_kernels(records, tmp_path, monkeypatch, capsys):
    path = tmp_path / "ranking.json"
    assert run(monkeypatch, "--records", str(records), "--json", str(path)) == 0
    assert "| case7 | 2 |" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert result["gpu"] == "NVIDIA H200"
    (row,) = result["cases"]
    assert row["case"] == "case7"
    times = [kernel["modelled"][0] for kernel in result["kernels"]]
    assert row["time"]["ratio"] == pytest.approx(math.sqrt(times[0] / 0.1 * times[1] / 0.2))
    assert all(time > 0 for time in times)
