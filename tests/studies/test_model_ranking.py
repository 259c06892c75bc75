"""How the model's ranking is compared with what was measured."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator import COEFFICIENTS, DEFAULT_PROFILE, Coefficients, Traffic
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import search_ms
from pytest_gpuenergy.tuning import Measured, RecordFile, dump_records, file_name

pytest.importorskip("scipy")
import model_ranking
import ranking

pytestmark = pytest.mark.slow

FIGURE = st.floats(1e-3, 1e3)
PAIRS = st.lists(st.tuples(FIGURE, FIGURE), min_size=2, max_size=40)
DISTINCT = st.lists(st.integers(1, 10**6).map(float), min_size=2, max_size=40, unique=True)


@given(DISTINCT)
def test_a_model_that_is_right_agrees(measured: list[float]) -> None:
    found = ranking.agreement(measured, measured)
    assert found.kernels == len(measured)
    assert (found.spearman, found.kendall) == (pytest.approx(1), pytest.approx(1))
    assert (found.ratio, found.spread) == (pytest.approx(1), pytest.approx(1))


@given(DISTINCT, st.floats(0.1, 10))
def test_the_scale_of_a_model_does_not_change_its_ranking(
    measured: list[float], scale: float
) -> None:
    found = ranking.agreement([scale * value for value in measured], measured)
    assert found.spearman == pytest.approx(1)
    assert found.ratio == pytest.approx(scale)
    assert found.spread == pytest.approx(1)


@given(DISTINCT)
def test_a_model_that_is_upside_down_disagrees(measured: list[float]) -> None:
    found = ranking.agreement([1 / value for value in measured], measured)
    assert (found.spearman, found.kendall) == (pytest.approx(-1), pytest.approx(-1))


@given(PAIRS)
def test_correlations_and_ratios_are_bounded(pairs: list[tuple[float, float]]) -> None:
    found = ranking.agreement(*zip(*pairs, strict=True))
    for correlation in (found.spearman, found.kendall):
        assert correlation is None or -1 - 1e-9 <= correlation <= 1 + 1e-9
    ratios = [a / b for a, b in pairs]
    assert min(ratios) * (1 - 1e-9) <= found.ratio <= max(ratios) * (1 + 1e-9)
    assert 1 <= found.spread <= max(ratios) / min(ratios) * (1 + 1e-9)


def test_the_spread_is_a_factor() -> None:
    assert ranking.agreement([2.0, 1.0], [1.0, 2.0]).spread == pytest.approx(2)


def test_without_variation_there_is_no_correlation() -> None:
    found = ranking.agreement([3.0, 3.0], [1.0, 2.0])
    assert (found.spearman, found.kendall) == (None, None)


@pytest.mark.parametrize("figures", [([1.0], [1.0]), ([1.0, 2.0], [1.0, 0.0])])
def test_a_correlation_needs_positive_figures(figures: tuple[list[float], list[float]]) -> None:
    with pytest.raises(InputError, match="two or more kernels with positive figures"):
        ranking.agreement(*figures)


@given(PAIRS, st.integers(1, 40))
def test_the_regret_falls_to_one(pairs: list[tuple[float, float]], top: int) -> None:
    modelled, measured = zip(*pairs, strict=True)
    regret = ranking.regret(modelled, measured, top)
    assert regret >= ranking.regret(modelled, measured, top + 1) >= 1
    assert ranking.regret(modelled, measured, len(pairs)) == 1


def test_the_regret_is_that_of_the_models_best() -> None:
    assert ranking.regret([1.0, 2.0, 3.0], [12.0, 15.0, 10.0], 1) == pytest.approx(1.2)


@given(PAIRS)
def test_close_pairs_are_a_share(pairs: list[tuple[float, float]]) -> None:
    share = ranking.close_pairs(*zip(*pairs, strict=True))
    assert share is None or 0 <= share <= 1


def test_only_pairs_that_differ_clearly_and_not_by_much_are_close() -> None:
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


def test_a_fit_finds_coefficients_within_their_bounds(
    invented_samples: list[model_ranking.Sample],
) -> None:
    fitted = model_ranking.fit(invented_samples)
    for name, (_, low, high) in (model_ranking.TIME_BOUNDS | model_ranking.POWER_BOUNDS).items():
        assert low <= getattr(fitted, name) <= high
    assert fitted.instructions_per_global == pytest.approx(20, rel=0.1)
    assert fitted.latency_cycles == pytest.approx(500, rel=0.1)
    assert fitted == model_ranking.fit(invented_samples)


def test_a_case_that_is_held_out_is_met_when_the_model_is_right(
    invented_samples: list[model_ranking.Sample],
) -> None:
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
def test_the_command_compares_kernels(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
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


@pytest.mark.tvm
def test_a_kernel_that_was_not_measured_has_the_time_of_its_search(
    records: Path,
    record_file: RecordFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    file = replace(record_file, gpu="NVIDIA H200", records=record_file.records[:2])
    searched = tmp_path / "searched"
    dump_records(file, searched / file_name(file.workload))
    path = tmp_path / "ranking.json"
    folders = [str(records), str(searched)]
    assert run(monkeypatch, "--records", *folders, "--json", str(path)) == 0
    assert "2 kernels were not measured" in capsys.readouterr().out
    result = json.loads(path.read_text())
    rows = {row["case"]: row for row in result["cases"]}
    assert list(rows) == ["case7 of records", "case7 of searched", "all"]
    assert rows["case7 of searched"]["power"] is None
    assert rows["all"]["power"]["kernels"] == 2
    measured = [kernel["measured"] for kernel in result["kernels"]]
    times = [search_ms(file, rank) for rank in file.ranks]
    assert measured == [[0.1, 299.0], [0.2, 298.0], *[[pytest.approx(t), None] for t in times]]


def test_a_power_that_was_not_measured_is_not_fitted(
    invented_samples: list[model_ranking.Sample],
) -> None:
    less = [replace(s, power_w=None) if s.case == "a" else s for s in invented_samples]
    fitted, known = model_ranking.fit(less), model_ranking.fit(invented_samples)
    assert all(getattr(fitted, name) == getattr(known, name) for name in model_ranking.TIME_BOUNDS)
    nothing = model_ranking.fit([replace(s, power_w=None) for s in invented_samples])
    assert all(
        getattr(nothing, name) == getattr(COEFFICIENTS, name) for name in model_ranking.POWER_BOUNDS
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--cases", "case5"], "has records of case7"), (["--fit"], "A fit needs two cases")],
)
@pytest.mark.tvm
def test_what_cannot_be_compared_is_told(
    records: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    arguments: list[str],
    message: str,
) -> None:
    assert run(monkeypatch, "--records", str(records), *arguments) == 2
    assert message in capsys.readouterr().err
