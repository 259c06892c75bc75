"""The mean power over the phases of a profile, and the file with its samples."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st
from profiler_traces import events, lasting, launch

from pytest_gpuenergy.replay import (
    PhasePower,
    PowerCurve,
    TraceLaunch,
    launches,
    phase_powers,
    read_power,
    write_power,
)
from pytest_gpuenergy.support import InputError

SAMPLE_US = 20_000.0


def phase(name: str, begin_us: float, end_us: float, run: int = 0) -> list[dict[str, Any]]:
    """Two launches, with which a phase of a run begins and ends."""
    number = int(begin_us) + 1
    first = launch("k", begin_us - 7.0, begin_us, number)
    last = launch("k", end_us - 8.0, end_us - 5.0, number + 1)
    span = (begin_us - 7.2, end_us - begin_us - 0.2)
    around = [lasting("user_annotation", one, *span) for one in (f"run {run}", name)]
    return [*around, *first, *last]


def launched(*parts: list[dict[str, Any]]) -> list[TraceLaunch]:
    return launches(events([one for part in parts for one in part]))


def powers(found: list[PhasePower]) -> dict[str | None, float | None]:
    return {one.phase: one.power_w for one in found}


@given(
    lengths_us=st.lists(st.floats(110_000, 900_000), min_size=2, max_size=2),
    window_us=st.floats(1.0, 25_000.0),
    place=st.floats(0.0, 1.0),
    shift_us=st.floats(0.0, SAMPLE_US),
    step_us=st.floats(1000.0, SAMPLE_US),
)
def test_no_phase_takes_power_from_its_neighbour(lengths_us, window_us, place, shift_us, step_us):
    first_us, second_us = lengths_us
    change_us, end_us = 100.0 + first_us, 100.0 + first_us + second_us

    def sample_w(at_us: float) -> float:
        """The mean over a window that has the time of the sample somewhere in it."""
        begin_us = at_us - place * window_us
        before = min(max((change_us - begin_us) / window_us, 0.0), 1.0)
        return before * 600.0 + (1 - before) * 200.0

    times_us = [shift_us + number * step_us for number in range(int(end_us / step_us) + 2)]
    found = phase_powers(
        PowerCurve(times_us, list(map(sample_w, times_us))),
        launched(phase("prefill", 100.0, change_us), phase("decode", change_us, end_us)),
    )
    assert powers(found) == {"prefill": pytest.approx(600.0), "decode": pytest.approx(200.0)}


def test_a_short_phase_has_no_mean():
    curve = PowerCurve([SAMPLE_US * number for number in range(20)], [300.0] * 20)
    (found,) = phase_powers(curve, launched(phase("prefill", 100.0, 99_000.0)))
    assert (found.power_w, found.samples) == (None, 0)
    assert found.longest_us == pytest.approx(98_900.0)


def test_a_phase_without_samples_has_no_mean():
    curve = PowerCurve([0.0, 400_000.0], [300.0, 300.0])
    (found,) = phase_powers(curve, launched(phase("decode", 10.0, 300_000.0)))
    assert found.power_w is None


def test_what_lies_between_two_runs_belongs_to_no_phase():
    runs = [phase("decode", 1e6 * number + 10, 1e6 * number + 4e5, number) for number in (0, 1)]
    times_us = [SAMPLE_US * number for number in range(80)]
    curve = PowerCurve(times_us, [500.0 if us % 1e6 < 4e5 else 90.0 for us in times_us])
    (found,) = phase_powers(curve, launched(*runs))
    assert found.power_w == pytest.approx(500.0)
    assert found.samples == 2 * 17


def test_a_trace_without_phases_has_one_mean():
    curve = PowerCurve([SAMPLE_US * number for number in range(20)], [300.0] * 20)
    found = phase_powers(curve, launched(phase("step 0", 10.0, 300_000.0)))
    assert powers(found) == {None: pytest.approx(300.0)}


curves = st.lists(
    st.tuples(st.floats(-1e15, 1e15), st.floats(0, 5000)), max_size=9, unique_by=lambda one: one[0]
)


@given(curves)
def test_a_curve_is_read_as_it_was_written(tmp_path_factory, pairs):
    written = sorted({round(us, 0): power_w for us, power_w in pairs}.items())
    curve = PowerCurve([us for us, _ in written], [power_w for _, power_w in written])
    folder = tmp_path_factory.mktemp("curve")
    write_power(curve, folder)
    found = read_power(folder / "power.csv")
    assert found.times_us == curve.times_us
    assert found.powers_w == pytest.approx(curve.powers_w, abs=1e-3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Line 0 of"),
        (b"\xff\xfe\x00", "the first line is not timestamp_us,power_w"),
        (b"timestamp_us,power_w\n1.0\n", "Line 2 of"),
        (b"timestamp_us,power_w\n1.0,much\n", "Line 2 of"),
        (b"timestamp_us,power_w\n1.0,2.0\nnan,1.0\n", "Line 3 of"),
        (b"timestamp_us,power_w\n1e300,1.0\n", "out of range"),
        (b"timestamp_us,power_w\n1.0,-3.0\n", "out of range"),
        (b"timestamp_us,power_w\n2.0,3.0\n2.0,3.0\n", "do not ascend"),
        (b'timestamp_us,power_w\n"' + b"9" * 200_000 + b'",1\n', "Line 2 of"),
    ],
)
def test_what_is_no_curve_gets_one_sentence(tmp_path, content, said):
    path = tmp_path / "power.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as refused:
        read_power(path)
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_other_content_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "power.csv"
    path.write_bytes(b"timestamp_us,power_w\n" + content)
    with suppress(InputError):
        assert len(read_power(path).times_us) <= content.count(b",")
