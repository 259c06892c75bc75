"""Joules per token of a schedule, from the accounts of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.replay import (
    Account,
    Batching,
    Request,
    Step,
    batched,
    best_setpoints,
    read_schedule,
    serving_of,
)

PREFILL, DECODE = Step("prefill", 2, 100), Step("decode", 4, 128)
POSITIVE = st.floats(1e-3, 1e6)


def account(cap: str, energy_mj: float, half_width: float = 0.0, time_ms: float = 1.0) -> Account:
    """An account at the level ``graph`` that nothing else of is used."""
    rest: dict[str, Any] = dict.fromkeys(Account.__struct_fields__)
    figures = {"time_ms": time_ms, "energy_mj": energy_mj, "energy_mj_half_width": half_width}
    predicted = {"predicted_mj": energy_mj}
    return Account(**{**rest, "cap": cap, "level": "graph", **figures, **predicted})


def listed(tmp_path: Path, prefills: int, decodes: int):
    path = tmp_path / "steps.csv"
    path.write_text(f"step,batch,tokens,count\nprefill,2,100,{prefills}\ndecode,4,128,{decodes}\n")
    return read_schedule(path, Batching())


def test_energy_is_divided_by_the_tokens_of_each_phase(tmp_path):
    accounts = {PREFILL: [account("c", 4000.0)], DECODE: [account("c", 800.0)]}
    _, (found,), _ = serving_of(listed(tmp_path, 3, 10), accounts, ["c"])
    assert found.prefill.joules_per_token == pytest.approx(3 * 4 / (3 * 2 * 100))
    assert found.decode.joules_per_token == pytest.approx(10 * 0.8 / (10 * 4))
    assert found.total.joules_per_token == pytest.approx((12 + 8) / (3 * 2 + 10 * 4))
    assert found.joules_per_request == pytest.approx((12 + 8) / (3 * 2))


def test_the_edp_per_token_is_energy_per_token_by_time_per_token(tmp_path):
    accounts = {
        PREFILL: [account("c", 4000.0, time_ms=20)],
        DECODE: [account("c", 800.0, time_ms=5)],
    }
    _, (found,), _ = serving_of(listed(tmp_path, 3, 10), accounts, ["c"])
    assert found.edp_per_token_mj_ms == pytest.approx(20_000 / 46 * 110 / 46)


@given(steps=st.integers(1, 10_000), energy_mj=POSITIVE, relative=st.floats(0, 0.5))
def test_more_equal_steps_do_not_narrow_the_interval(tmp_path_factory, steps, energy_mj, relative):
    accounts = {
        PREFILL: [account("c", energy_mj, energy_mj * relative)],
        DECODE: [account("c", energy_mj, energy_mj * relative)],
    }
    schedule = listed(tmp_path_factory.getbasetemp(), steps, steps)
    _, (found,), _ = serving_of(schedule, accounts, ["c"])
    assert found.total.energy_j_half_width == pytest.approx(relative * found.total.energy_j)


def test_without_figures_of_one_size_there_is_no_sum_but_a_reason(tmp_path):
    accounts = {PREFILL: [account("c", 1.0)]}
    figures, sums, missing = serving_of(listed(tmp_path, 1, 1), accounts, ["c"])
    assert [found.step for found in figures] == [PREFILL]
    assert not sums
    assert missing == {
        "graph, c": "no sum, for want of decode 4 x 128",
        "eager, c": "no sum, for want of decode 4 x 128 and 1 other size",
    }


def test_the_steady_state_is_that_of_the_full_batch():
    """Of four requests, two at a time: ramps up and down run with one and two requests."""
    schedule = batched([Request(0, 10, 3)] * 6, Batching(max_batch=2, bucket_tokens=10))
    accounts = {step: [account("c", 1000.0)] for step in schedule.served}
    _, (found,), _ = serving_of(schedule, accounts, ["c"])
    # After two prefills: two steps of decoding, of two tokens each, then two prefills.
    assert (found.steady.steps, found.steady.tokens) == (4, 6)
    assert found.steady.joules_per_token == pytest.approx(4 / 6)


def sums_of(tmp_path: Path, **energies_mj: tuple[float, float]):
    accounts = {
        step: [account(cap, *figures) for cap, figures in energies_mj.items()]
        for step in (PREFILL, DECODE)
    }
    return serving_of(listed(tmp_path, 1, 1), accounts, list(energies_mj))[1]


@pytest.mark.parametrize(("half_width", "better"), [(0.0, "low"), (4.9, "low"), (5.1, "high")])
def test_another_setpoint_is_better_if_the_intervals_do_not_overlap(tmp_path, half_width, better):
    sums = sums_of(tmp_path, low=(90.0, half_width), high=(100.0, half_width))
    (best,) = best_setpoints(sums, "high")
    assert (best.energy, best.reference) == (better, "high")


def test_one_setpoint_is_not_the_best_of_any(tmp_path):
    assert not list(best_setpoints(sums_of(tmp_path, only=(90.0, 1.0)), "only"))


def test_less_energy_in_more_time_can_have_more_edp(tmp_path):
    accounts = {
        step: [account("low", 90.0, 0.1, time_ms=2.0), account("high", 100.0, 0.1, time_ms=1.0)]
        for step in (PREFILL, DECODE)
    }
    _, sums, _ = serving_of(listed(tmp_path, 1, 1), accounts, ["low", "high"])
    (best,) = best_setpoints(sums, "high")
    assert (best.energy, best.edp) == ("low", "high")
