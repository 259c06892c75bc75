"""What the page shows of a gate: verdicts, the worst first, and figures over runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.gate import GateSettings, page_verdicts, trend_values
from pytest_gpuenergy.record import Interval, Measurement, Metric, Window

Make = Callable[..., Any]
EDP = GateSettings({Metric.EDP: 0.05}, enforced=True)


def sure(m: Measurement) -> Measurement:
    """``m`` with narrow intervals from many trials."""
    edp, time, energy = m.edp_mj_ms or 0.0, m.time_ms or 0.0, m.energy_mj or 0.0
    window = Window(0.3, energy * 1e-3 * 600, 600.0, time * 1e-3 * 600)
    return replace(
        m,
        time_ms_ci95=Interval(time * 0.998, time * 1.002),
        energy_mj_ci95=Interval(energy * 0.998, energy * 1.002),
        edp_mj_ms_ci95=Interval(edp * 0.998, edp * 1.002),
        trials=(window,) * 8,
    )


def test_the_worst_verdict_comes_first(report: Make, measured: Make) -> None:
    energies = {1: 100.0, 2: 150.0, 3: 60.0, 4: 200.0}
    base = report(*(sure(measured(k)) for k in energies), run_id="base")
    new = report(*(sure(measured(k, energy_mj=e)) for k, e in energies.items()), run_id="new")
    found = page_verdicts(base, new, EDP)
    assert [(one["label"], one["verdict"]) for one in found["judgements"]] == [
        ("case1-k04-450W", "WORSE"),
        ("case1-k02-450W", "WORSE"),
        ("case1-k03-450W", "BETTER"),
        ("case1-k01-450W", "SAME"),
    ]
    assert found["judgements"][0]["change"] == pytest.approx(1.0)
    low, high = found["judgements"][0]["interval"]
    assert low < 1.0 < high
    assert found["judgements"][0]["fails"]
    assert (found["passed"], found["why"]) == (False, None)
    assert found["summary"].startswith("2 WORSE, 1 BETTER, 1 SAME")
    json.dumps(found, allow_nan=False)


def test_what_has_no_counterpart_is_named(report: Make, measured: Make, failed: Make) -> None:
    base = report(sure(measured(1)), sure(measured(2)), sure(measured(3)))
    found = page_verdicts(base, report(sure(measured(1)), failed(2), measured(4)), EDP)
    assert [(one["what"], one["label"]) for one in found["unmatched"]] == [
        ("no longer measured", "case1-k02-450W"),
        ("missing from the baseline", "case1-k04-450W"),
        ("missing from the new run", "case1-k03-450W"),
    ]


def test_runs_that_cannot_be_compared_have_a_reason_instead(report: Make, measured: Make) -> None:
    base = report(measured(1), gpu_name="NVIDIA A100-SXM4-80GB")
    found = page_verdicts(base, report(measured(1)), EDP)
    assert found["judgements"] == []
    assert "Compare with a baseline from the same GPU" in found["why"]


def test_a_trend_has_each_run_with_its_interval(report: Make, measured: Make) -> None:
    runs = [
        report(
            sure(measured(1, energy_mj=100.0 + n)),
            run_id=f"r{n}",
            started=f"2026-01-0{n + 1}T00:00:00+00:00",
        )
        for n in (2, 0, 1)
    ]
    (one,) = trend_values(runs)
    assert (one["workload"], one["kernel"], one["cap"]) == ("case1", "k01", "450W")
    assert [run for run, _ in one["runs"]] == ["r0", "r1", "r2"]
    assert one["metrics"]["energy"]["values"] == [100.0, 101.0, 102.0]
    assert one["metrics"]["energy"]["low"][0] == pytest.approx(99.8)
    json.dumps(one, allow_nan=False)


def test_a_change_of_level_is_named_with_its_run(report: Make, measured: Make) -> None:
    levels = [100.0, 100.2, 99.9, 100.1, 100.0, 120.0, 120.2, 119.9, 120.1, 120.0]
    runs = [
        report(
            sure(measured(1, energy_mj=level)),
            run_id=f"r{n}",
            started=f"2026-01-{n + 1:02d}T00:00:00+00:00",
        )
        for n, level in enumerate(levels)
    ]
    (one,) = trend_values(runs)
    (change,) = one["metrics"]["energy"]["changes"]
    assert change["run"] == "r5"
    assert change["relative"] == pytest.approx(0.2, abs=0.01)
    assert one["metrics"]["time"]["changes"] == []


def test_one_run_is_no_trend(report: Make, measured: Make) -> None:
    assert trend_values([report(measured(1))]) == []


def test_boards_have_trends_of_their_own(report: Make, measured: Make) -> None:
    runs = [
        report(measured(1), run_id=f"r{n}", started=f"2026-01-0{n + 1}", gpu_uuid=f"GPU-{n % 2}")
        for n in range(4)
    ]
    assert [one["gpu_uuid"] for one in trend_values(runs)] == ["GPU-0", "GPU-1"]
