"""The cap tables of GPUs, and the setpoints that the words of --powercap name."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.control import (
    CURRENT,
    UNKNOWN,
    PowerLimits,
    Setpoint,
    cap_table,
    cap_words,
    enforced_setpoint,
    present_limit_mw,
    project_tables,
    read_limits,
    resolve_setpoints,
    resolve_words,
)
from pytest_gpuenergy.support import DeviceError, InputError, SetpointError

H200 = PowerLimits(200.0, 700.0, 700.0)
TABLE = (200.0, 325.0, 450.0, 575.0, 700.0)
WIDE = PowerLimits(1.0, 1000.0, 500.0)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("NVIDIA GeForce RTX 3090", (100, 200, 300, 420, 450)),
        ("NVIDIA GeForce RTX 4090", (150, 200, 300, 400, 450)),
        ("Tesla V100-SXM2-16GB", (100, 150, 200, 250, 300)),
        ("NVIDIA A30", (100, 120, 140, 160, 165)),
        ("NVIDIA A100-SXM4-40GB", (100, 200, 300, 400, 450)),
        ("NVIDIA A100-SXM4-80GB", (100, 200, 300, 400, 450)),
        ("NVIDIA A100-PCIE-40GB", (100, 200, 300, 400, 450)),
        ("NVIDIA A100 80GB PCIe", (100, 200, 300, 400, 450)),
    ],
)
def test_tables_of_known_gpus(name, table):
    assert cap_table(name, WIDE) == table


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A3000",
        "NVIDIA A1000",
        "NVIDIA RTX A300",
        "Tesla V100-SXM2-32GB",
    ],
)
def test_other_gpus_get_evenly_spaced_caps(name):
    assert cap_table(name, H200) == TABLE


@given(st.integers(1000, 2_000_000), st.integers(0, 2_000_000))
def test_spaced_caps_are_within_the_constraints(low_mw, span_mw):
    limits = PowerLimits(low_mw / 1e3, (low_mw + span_mw) / 1e3, low_mw / 1e3)
    table = cap_table("NVIDIA L4", limits)
    assert (table[0], table[-1]) == pytest.approx((limits.min_w, limits.max_w), abs=0.0501)
    assert sorted(table) == list(table)
    caps = resolve_setpoints("all", table, limits)
    assert all(cap.unavailable is None for cap in caps)


def test_a_projects_table_comes_first_and_is_sorted():
    assert cap_table("NVIDIA A30", WIDE, {"A30": [150, 110]}) == (110.0, 150.0)


def test_a_projects_table_of_another_gpu_changes_nothing():
    assert cap_table("NVIDIA H200", H200, {"NVIDIA L4": [40, 72]}) == TABLE


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("1", [200]),
        ("5,1", [700, 200]),
        ("300W", [300]),
        ("300w , 2", [300, 325]),
        ("325.5W", [325.5]),
        ("all", [200, 325, 450, 575, 700]),
        ("current", [None]),
        ("current,all", [None, 200, 325, 450, 575, 700]),
    ],
)
def test_words_in_the_order_given(text, watts):
    assert [cap.power_limit_w for cap in resolve_setpoints(text, TABLE, H200)] == watts


@pytest.mark.parametrize("text", ["3,450W,all", "450.0W,3", "current,current"])
def test_a_cap_named_twice_is_taken_once(text):
    labels = [cap.label for cap in resolve_setpoints(text, TABLE, H200)]
    assert len(labels) == len(set(labels))


def test_watts_from_the_table_have_its_index():
    assert resolve_setpoints("450W", TABLE, H200) == [Setpoint(450.0, index=3)]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("9", r"table has the caps 1 to 5 \(200 W, 325 W, .* 700 W\); write 9W for watts"),
        ("0", "table has the caps 1 to 5"),
        ("300", "write 300W for watts"),
        ("50W", "this GPU accepts 200 W to 700 W"),
        ("701W", "this GPU accepts 200 W to 700 W"),
        ("99999W", "this GPU accepts 200 W to 700 W"),
        ("abc", r"'abc' is not understood: .* such as 300W, all, or current"),
        ("", "'' names no power cap"),
        ("1,,2", "'' is not understood"),
        ("-300W", "not understood"),
        ("3e2W", "not understood"),
        ("W", "not understood"),
        ("٣", "not understood"),
        ("1;2", "not understood"),
        ("nanW", "not understood"),
    ],
)
def test_words_that_cannot_be_used(word, message):
    with pytest.raises(InputError, match=message):
        resolve_setpoints(word, TABLE, H200)


@given(st.text(max_size=20))
def test_any_text_gives_caps_or_an_input_error(text):
    with contextlib.suppress(InputError):
        assert resolve_setpoints(text, TABLE, H200)


@given(st.text("\t ,", max_size=20))
def test_commas_and_blanks_alone_name_no_cap(text):
    with pytest.raises(InputError, match="names no power cap"):
        cap_words(text)


@given(st.lists(st.sampled_from(["1", "5", "300W", "325W", "all", "current"]), min_size=1))
def test_every_word_keeps_the_caps_that_it_names(words):
    named = resolve_words(",".join(words), TABLE, H200)
    assert list(named) == list(dict.fromkeys(words))
    assert {cap for caps in named.values() for cap in caps} == {
        cap for word in words for cap in resolve_setpoints(word, TABLE, H200)
    }


def test_a_table_value_outside_the_constraints_is_unavailable():
    caps = resolve_setpoints("all", (100.0, 200.0), PowerLimits(150.0, 300.0, 300.0))
    assert caps[0].unavailable == "100 W is outside this card's constraints of 150 W to 300 W"
    assert caps[1].unavailable is None


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def test_tables_of_a_project(tmp_path):
    text = '[tool.gpuenergy.powercaps]\n"NVIDIA L4" = [40, 50.5, 72]\n'
    assert project_tables(project(tmp_path, text)) == {"NVIDIA L4": (40.0, 50.5, 72.0)}


def test_a_project_without_a_file_has_no_tables(tmp_path):
    assert project_tables(tmp_path) == {}


def test_a_project_without_our_section_has_no_tables(tmp_path):
    assert project_tables(project(tmp_path, "[tool.ruff]\nline-length = 100\n")) == {}


@pytest.mark.parametrize(
    "table", ["[]", "300", '"300"', '["300"]', "[true]", "[0]", "[-1]", "[inf]", "[nan]", "[[1]]"]
)
def test_a_table_that_is_no_list_of_watts_is_refused(tmp_path, table):
    text = f"[tool.gpuenergy.powercaps]\nL4 = {table}\n"
    with pytest.raises(InputError, match="power caps of 'L4' must be a list of positive watts"):
        project_tables(project(tmp_path, text))


@pytest.mark.parametrize(
    "text", ['[tool.gpuenergy.powercap]\n"NVIDIA L4" = [40]', '[tool.gpuenergy]\ngpu_device = "0"']
)
def test_a_table_that_nothing_reads_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="only takes the tables powercaps and workloads"):
        project_tables(project(tmp_path, text))


@pytest.mark.parametrize(
    "text", ["tool = 3", "[tool]\ngpuenergy = [1]", "[tool.gpuenergy]\npowercaps = [1]"]
)
def test_a_section_of_another_kind_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="must be a table of lists of watts"):
        project_tables(project(tmp_path, text))


def test_a_file_that_is_no_toml_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"pyproject\.toml cannot be read"):
        project_tables(project(tmp_path, "[tool"))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        project_tables(tmp_path)


watts = st.none() | st.integers(1, 2000).map(float)
clocks = st.none() | st.integers(1, 4000)
setpoints = st.builds(Setpoint, watts, sm_clock_mhz=clocks)


@pytest.mark.parametrize(
    ("setpoint", "label", "folder"),
    [
        (CURRENT, "current", "powercap_current"),
        (Setpoint(450.0, index=3), "450W", "powercap3"),
        (Setpoint(350.0), "350W", "powercap_350W"),
        (Setpoint(325.5), "325.5W", "powercap_325.5W"),
        (Setpoint(sm_clock_mhz=1500), "1500MHz", "powercap_1500MHz"),
        (Setpoint(450.0, sm_clock_mhz=1500), "450W-1500MHz", "powercap_450W-1500MHz"),
        (Setpoint(450.0, sm_clock_mhz=1500, index=3), "450W-1500MHz", "powercap3-1500MHz"),
    ],
)
def test_names_of_a_setpoint(setpoint, label, folder):
    assert (setpoint.label, setpoint.folder) == (label, folder)


@given(setpoints, setpoints)
def test_setpoints_that_differ_have_labels_and_folders_that_differ(one, other):
    assert (one.label == other.label) is (one == other)
    assert (one.folder == other.folder) is (one == other)


@given(st.lists(setpoints))
def test_setpoints_sort_by_power_limit_and_then_by_clock(listed):
    ordered = sorted(listed, key=lambda setpoint: setpoint.order)
    for lower, higher in pairwise(ordered):
        assert (lower.power_limit_w or 0) <= (higher.power_limit_w or 0)
        if lower.power_limit_w == higher.power_limit_w:
            assert (lower.sm_clock_mhz or 0) <= (higher.sm_clock_mhz or 0)


def test_limits_of_the_card(device):
    assert read_limits(device) == PowerLimits(200.0, 700.0, 700.0)


def test_a_card_without_limits_is_a_device_error(device):
    device.inject("nvmlDeviceGetPowerManagementLimitConstraints", "not_supported")
    with pytest.raises(
        DeviceError, match=r"power limits \(Not Supported\): use --powercap current"
    ):
        read_limits(device)


def test_the_enforced_limit_may_be_lower_than_the_one_asked_for(device):
    device.inject("enforced_limit", {"power_w": 250})
    assert enforced_setpoint(device) == Setpoint(250.0)
    assert present_limit_mw(device) == 700_000


def test_an_enforced_limit_that_is_not_reported_is_unknown(device):
    device.inject("nvmlDeviceGetEnforcedPowerLimit", "not_supported")
    assert enforced_setpoint(device) == UNKNOWN


def test_a_present_limit_that_is_not_reported_is_an_error(device):
    device.inject("nvmlDeviceGetPowerManagementLimit", "not_supported")
    with pytest.raises(SetpointError, match="does not report its power limit"):
        present_limit_mw(device)
