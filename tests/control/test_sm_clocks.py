"""The clocks that ``--smclock`` names, and the setpoints of caps and clocks together."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.control import (
    STEPS,
    NamedSetpoints,
    Setpoint,
    clock_words,
    even_steps,
    resolve_clock,
    resolve_clocks,
    supported_clocks,
)
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import DeviceError, InputError

H200 = tuple(range(345, 1981, 15))
CLOCKS = st.sets(st.integers(1, 9999), min_size=1, max_size=40).map(lambda s: tuple(sorted(s)))


def labels(found: NamedSetpoints) -> list[str]:
    return [one.label for one in found.setpoints]


def test_a_card_tells_its_clocks(device):
    assert supported_clocks(device) == H200


def test_a_card_that_cannot_be_locked_is_told():
    with (
        open_device("emulated:p100") as p100,
        pytest.raises(DeviceError, match=r"P100.* does not report which SM clocks it supports"),
    ):
        supported_clocks(p100)


def test_a_card_without_any_clock_is_told(device, monkeypatch):
    monkeypatch.setattr(device.nvml, "nvmlDeviceGetSupportedGraphicsClocks", lambda *_: [])
    with pytest.raises(DeviceError, match="supports no choice of SM clocks: use --smclock current"):
        supported_clocks(device)


def test_words_name_clocks_in_their_order():
    assert resolve_clocks("1500MHz, current,345mhz", H200) == {
        "1500MHz": [1500],
        "current": [None],
        "345mhz": [345],
    }


def test_all_are_five_even_steps():
    assert resolve_clocks("all", H200) == {"all": [345, 750, 1155, 1575, 1980]}


@given(CLOCKS)
def test_even_steps_are_supported_and_span_the_range(clocks):
    steps = even_steps(clocks)
    assert steps == sorted(set(steps))
    assert set(steps) <= set(clocks)
    assert (steps[0], steps[-1]) == (clocks[0], clocks[-1])
    assert len(steps) <= STEPS


@given(CLOCKS, st.integers(0, 99_999))
def test_a_clock_is_taken_as_it_is_or_refused_with_the_nearest(clocks, asked):
    if asked in clocks:
        assert resolve_clock(f"{asked}MHz", clocks, context="--smclock") == asked
        return
    nearest = min(abs(mhz - asked) for mhz in clocks)
    expected = {f"{mhz} MHz" for mhz in clocks if abs(mhz - asked) == nearest}
    with pytest.raises(InputError) as raised:
        resolve_clock(f"{asked}MHz", clocks, context="--smclock")
    named = str(raised.value).partition("of which ")[2].removesuffix(" are nearest.")
    assert expected & {*named.split(" and ")}


def test_the_nearest_two_are_named():
    with pytest.raises(InputError) as raised:
        resolve_clocks("1503MHz", H200)
    assert str(raised.value) == (
        "--smclock 1503MHz: 1503 MHz is none of the 110 clocks from 345 MHz to 1980 MHz that this "
        "GPU supports, of which 1500 MHz and 1515 MHz are nearest."
    )


@pytest.mark.parametrize("text", ["1500", "300W", "fast", "1500MHz,,", "-1MHz", "1e3MHz", "٣MHz"])
def test_what_is_no_clock_is_refused(text):
    with pytest.raises(InputError, match="is not understood: give"):
        resolve_clocks(text, H200)


@given(st.text(max_size=12))
def test_any_text_is_resolved_or_refused(text):
    try:
        found = resolve_clocks(text, H200)
    except InputError:
        return
    assert {mhz for group in found.values() for mhz in group} <= {*H200, None}


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_no_word_at_all_is_refused(text):
    with pytest.raises(InputError, match="names no clock"):
        clock_words(text)


# -- caps and clocks together ------------------------------------------------------------------


def test_each_cap_is_combined_with_each_clock(device, tmp_path):
    found = NamedSetpoints.of(device, "1,450W", tmp_path, "current,1500MHz")
    assert labels(found) == ["200W", "200W-1500MHz", "450W", "450W-1500MHz"]
    assert [one.index for one in found.setpoints] == [1, 1, 3, 3]
    assert found.setpoint_words(Setpoint(450.0, sm_clock_mhz=1500)) == ["450W", "--smclock 1500MHz"]
    assert found.setpoint_words(Setpoint(200.0)) == ["1", "--smclock current"]


def test_clocks_alone_are_setpoints(device, tmp_path):
    found = NamedSetpoints.of(device, "current", tmp_path, "all")
    assert labels(found) == ["345MHz", "750MHz", "1155MHz", "1575MHz", "1980MHz"]
    assert found.table_w == ()


def test_the_default_reads_nothing(device, tmp_path):
    device.inject("any", "gpu_is_lost")
    assert labels(NamedSetpoints.of(device, "current", tmp_path, "current")) == ["current"]


@pytest.mark.parametrize(
    ("options", "named", "expected"),
    [
        (("current", "current"), ["1500MHz"], ["current", "1500MHz"]),
        (("1", "current"), ["450W-1500MHz"], ["200W", "450W-1500MHz"]),
        (("1", "current"), ["200W"], ["200W"]),
        (("1", "current"), ["9999W", "450W-1501MHz", "450W"], ["200W", "450W"]),
        (("1", "1500MHz"), ["current"], ["200W-1500MHz", "current"]),
    ],
)
def test_labels_of_ids_are_added(device, tmp_path, options, named, expected):
    cap, clock = options
    found = NamedSetpoints.of(device, cap, tmp_path, clock).with_labels(device, named, tmp_path)
    assert labels(found) == expected


@pytest.mark.parametrize(
    ("given_caps", "given_clocks", "expected"),
    [
        (True, False, ["200W", "200W-1500MHz"]),
        (False, True, ["200W", "450W"]),
        (True, True, ["200W"]),
    ],
)
def test_ids_add_nothing_to_what_an_option_gives(
    device, tmp_path, given_caps, given_clocks, expected
):
    named = NamedSetpoints.of(device, "200W", tmp_path).with_labels(
        device,
        ["200W-1500MHz", "450W", "450W-1500MHz"],
        tmp_path,
        any_cap=not given_caps,
        any_clock=not given_clocks,
    )
    assert labels(named) == expected
