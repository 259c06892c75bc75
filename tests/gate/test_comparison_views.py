"""Views of a comparison: annotations, and the verdicts on the page."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from gate_simulation import Session, drawn_measurement
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.gate import (
    GateSettings,
    annotate,
    annotate_all,
    compare,
    page_verdicts,
    trend_values,
)
from pytest_gpuenergy.record import Interval, Measurement, Metric, RunInfo, Window
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.support import printable_text

RunMaker = Callable[..., RunInfo]
FAIL = GateSettings.parse(["edp:5%"])


def measurement(label: str = "k01", edp: float = 1.0) -> Measurement:
    return drawn_measurement(np.random.default_rng(0))(label, Session(0.0, 0.0), edp)


@pytest.fixture
def told(run_info: RunMaker) -> Callable[..., list[str]]:
    """The annotations of a comparison of two lists of measurements."""

    def make(
        base: list[Measurement], new: list[Measurement], settings: GateSettings = FAIL
    ) -> list[str]:
        sides = (Report(run_info(), tuple(side)) for side in (base, new))
        return list(annotate(compare(*sides, settings)))

    return make


def test_what_fails_is_an_error(told):
    (line,) = told([measurement()], [measurement(edp=1.2)])
    assert line.startswith("::error title=simulated-k01-current::EDP (emulated) +")
    assert line.endswith("limit 5 %25: WORSE")


def test_what_is_worse_and_does_not_fail_is_a_warning(told):
    (line,) = told(
        [measurement()], [measurement(edp=1.2)], dataclasses.replace(FAIL, enforced=False)
    )
    assert line.startswith("::warning title=simulated-k01-current::EDP (emulated) +")


def test_a_kernel_that_is_wrong_now_is_an_error(told):
    figures = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
    wrong = replace(
        measurement(), outcome="correctness", error="It\nis wrong.", **dict.fromkeys(figures)
    )
    assert told([measurement()], [wrong]) == ["::error title=simulated-k01-current::It%0Ais wrong."]


def test_what_cannot_be_decided_is_one_notice(told):
    flagged = [replace(measurement(f"k{n:02d}"), validity=("host_gaps",)) for n in range(3)]
    assert told(flagged, flagged) == [
        "::notice title=gate::3 of 3 verdicts are AMBIGUOUS: flagged in the baseline: host_gaps; "
        "flagged now: host_gaps"
    ]


def test_when_strict_what_cannot_be_decided_or_is_new_is_an_error(told):
    flagged = replace(measurement(), validity=("host_gaps",))
    first, second = told(
        [flagged], [flagged, measurement("k02")], dataclasses.replace(FAIL, strict=True)
    )
    assert re.match(r"::error title=simulated-k01-current::.* AMBIGUOUS ", first)
    assert second == "::error title=simulated-k02-current::not in the baseline"


def test_nothing_is_said_of_what_is_the_same_or_better(told):
    base = [measurement("k01"), measurement("k02")]
    assert told(base, [measurement("k01"), measurement("k02", edp=0.5)]) == []


def test_no_more_are_told_than_github_keeps(told):
    base = [measurement(f"k{n:02d}") for n in range(15)]
    lines = told(base, [measurement(f"k{n:02d}", edp=2.0) for n in range(15)])
    assert len(lines) == 10  # as many as GitHub keeps
    assert lines[-1] == "::error title=gate::6 more in the job's summary"


@given(st.text(), st.text())
def test_names_are_read_back_as_they_can_be_printed(title, message):
    (line,) = annotate_all("error", [(title, message)])
    # As the runner parses it: up to the next "::", properties separated by commas, then the data.
    found = re.fullmatch(r"::error title=([^:,\r\n]*)::([^\r\n]*)", line)
    assert found is not None
    codes = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
    read = [re.sub("%[0-9A-F]{2}", lambda code: codes[code[0]], text) for text in found.groups()]
    assert read == [printable_text(title), printable_text(message)]


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


def test_the_worst_verdict_comes_first(report, measured):
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


def test_what_has_no_counterpart_is_named(report, measured, failed):
    base = report(sure(measured(1)), sure(measured(2)), sure(measured(3)))
    found = page_verdicts(base, report(sure(measured(1)), failed(2), measured(4)), EDP)
    assert [(one["what"], one["label"]) for one in found["unmatched"]] == [
        ("no longer measured", "case1-k02-450W"),
        ("missing from the baseline", "case1-k04-450W"),
        ("missing from the new run", "case1-k03-450W"),
    ]


def test_runs_that_cannot_be_compared_have_a_reason_instead(report, measured):
    base = report(measured(1), gpu_name="NVIDIA A100-SXM4-80GB")
    found = page_verdicts(base, report(measured(1)), EDP)
    assert found["judgements"] == []
    assert "Compare with a baseline from the same GPU" in found["why"]


def test_a_trend_has_each_run_with_its_interval(report, measured):
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


def test_a_change_of_level_is_named_with_its_run(report, measured):
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


def test_one_run_is_no_trend(report, measured):
    assert trend_values([report(measured(1))]) == []


def test_boards_have_trends_of_their_own(report, measured):
    runs = [
        report(measured(1), run_id=f"r{n}", started=f"2026-01-0{n + 1}", gpu_uuid=f"GPU-{n % 2}")
        for n in range(4)
    ]
    assert [one["gpu_uuid"] for one in trend_values(runs)] == ["GPU-0", "GPU-1"]
