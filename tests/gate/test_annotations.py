"""GitHub Actions annotations: their content, and that no name can inject commands."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from gate_simulation import Session, drawn_measurement
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.gate import SHOWN, GateSettings, annotate, annotation, compare
from pytest_gpuenergy.record import Measurement, RunInfo
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


def test_what_fails_is_an_error(told: Callable[..., list[str]]) -> None:
    (line,) = told([measurement()], [measurement(edp=1.2)])
    assert line.startswith("::error title=simulated-k01-current::EDP (emulated) +")
    assert line.endswith("limit 5 %25: WORSE")


def test_what_is_worse_and_does_not_fail_is_a_warning(told: Callable[..., list[str]]) -> None:
    (line,) = told(
        [measurement()], [measurement(edp=1.2)], dataclasses.replace(FAIL, enforced=False)
    )
    assert line.startswith("::warning title=simulated-k01-current::EDP (emulated) +")


def test_a_kernel_that_is_wrong_now_is_an_error(told: Callable[..., list[str]]) -> None:
    figures = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
    wrong = replace(
        measurement(), outcome="correctness", error="It\nis wrong.", **dict.fromkeys(figures)
    )
    assert told([measurement()], [wrong]) == ["::error title=simulated-k01-current::It%0Ais wrong."]


def test_what_cannot_be_decided_is_one_notice(told: Callable[..., list[str]]) -> None:
    flagged = [replace(measurement(f"k{n:02d}"), validity=("host_gaps",)) for n in range(3)]
    assert told(flagged, flagged) == [
        "::notice title=gate::3 of 3 verdicts are AMBIGUOUS: flagged in the baseline: host_gaps; "
        "flagged now: host_gaps"
    ]


def test_when_strict_what_cannot_be_decided_or_is_new_is_an_error(
    told: Callable[..., list[str]],
) -> None:
    flagged = replace(measurement(), validity=("host_gaps",))
    first, second = told(
        [flagged], [flagged, measurement("k02")], dataclasses.replace(FAIL, strict=True)
    )
    assert re.match(r"::error title=simulated-k01-current::.* AMBIGUOUS ", first)
    assert second == "::error title=simulated-k02-current::not in the baseline"


def test_nothing_is_said_of_what_is_the_same_or_better(told: Callable[..., list[str]]) -> None:
    base = [measurement("k01"), measurement("k02")]
    assert told(base, [measurement("k01"), measurement("k02", edp=0.5)]) == []


def test_no_more_are_told_than_github_keeps(told: Callable[..., list[str]]) -> None:
    base = [measurement(f"k{n:02d}") for n in range(15)]
    lines = told(base, [measurement(f"k{n:02d}", edp=2.0) for n in range(15)])
    assert len(lines) == SHOWN
    assert lines[-1] == "::error title=gate::6 more in the job's summary"


@given(st.text(), st.text())
def test_names_are_read_back_as_they_can_be_printed(title: str, message: str) -> None:
    line = annotation("error", title, message)
    # As the runner parses it: up to the next "::", properties separated by commas, then the data.
    found = re.fullmatch(r"::error title=([^:,\r\n]*)::([^\r\n]*)", line)
    assert found is not None
    codes = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
    read = [re.sub("%[0-9A-F]{2}", lambda code: codes[code[0]], text) for text in found.groups()]
    assert read == [printable_text(title), printable_text(message)]
