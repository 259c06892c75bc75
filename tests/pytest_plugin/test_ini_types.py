"""The ini options' values as TOML's own types, in each file and table that pytest reads."""

from __future__ import annotations

import pytest
from points import each_once

from pytest_gpuenergy.pytest_plugin import PytestOptions

LEAN = """
filterwarnings = ["error"]
addopts = ["--disable-plugin-autoload", "-p", "gpuenergy"]
gpu_device = "emulated"
"""
PLACES = [
    ("pyproject.toml", "tool.pytest"),
    ("pyproject.toml", "tool.pytest.ini_options"),
    ("pytest.toml", "pytest"),
    (".pytest.toml", "pytest"),
]

VALUES = [
    ("powercap = 3", "powercap", "3"),
    ("powercap = [1, 3]", "powercap", "1,3"),
    ('powercap = ["300W", 2, "current"]', "powercap", "300W,2,current"),
    ('smclock = ["1500MHz", "current"]', "smclock", "1500MHz,current"),
    ("gpuenergy_timeout = 5", "timeout_s", 5.0),
    ("gpuenergy_timeout = 2.5", "timeout_s", 2.5),
    ('gpuenergy_timeout = "2.5"', "timeout_s", 2.5),
    ("gpuenergy_preheat = 0", "preheat_s", 0.0),
    ("gpuenergy_anchor = 0", "anchor_s", 0.0),
    ("gpuenergy_lock_wait = 0.5", "lock_wait_s", 0.5),
    ("gpuenergy_seed = 17", "seed", 17),
    ("strict_powercap = true", "strict_powercap", True),
    ("strict_powercap = false", "strict_powercap", False),
    ('gpuenergy_durations = "yes"', "durations", True),
    ("gpuenergy_verify_only = 1", "verify_only", True),
    ('gpuenergy_allow = ["board", "clocks"]', "allow_clocks", True),
    ("powercap = []", "powercap", None),
]


@pytest.mark.parametrize(("file", "table", "line", "name", "value"), each_once(PLACES, VALUES))
def test_values_are_given_as_one_would_write_them(pytester, file, table, line, name, value):
    (pytester.path / file).write_text(f"[{table}]{LEAN}{line}\n")
    assert getattr(PytestOptions.from_pytest_config(pytester.parseconfig()), name) == value


@pytest.mark.parametrize(("file", "table"), PLACES)
def test_a_list_of_limits_is_the_same_as_the_option_repeated(pytester, file, table):
    (pytester.path / file).write_text(
        f'[{table}]{LEAN}gpuenergy_fail = ["edp:5%", "time:3%"]\ngpuenergy_session_sd = '
        '["edp:1%", "time:1%"]\n'
    )
    given = PytestOptions.from_pytest_config(pytester.parseconfig()).gate
    (pytester.path / file).write_text(f'[{table}]{LEAN}gpuenergy_session_sd = "edp:1%,time:1%"\n')
    limits = ("--gpuenergy-fail", "edp:5%", "--gpuenergy-fail", "time:3%")
    other = pytester.parseconfig(*limits, "--gpuenergy-compare", "base.json")
    assert given == PytestOptions.from_pytest_config(other).gate


REFUSED = [
    ("gpuenergy_timeout = [5]", r"gpuenergy_timeout in * is [[]5]: give a string or a number."),
    (
        "powercap = [[1]]",
        "powercap in * is [[][[]1]]: give a string or a number, or a list of these.",
    ),
    ('gpuenergy_json = ["r.json"]', "gpuenergy_json in * is *: give a string."),
    ("strict_powercap = [true]", "strict_powercap in * is *: give true or false."),
    ('strict_powercap = "maybe"', "strict_powercap in * is 'maybe': give true or false."),
    ("gpuenergy_timeout = -1", "--gpuenergy-timeout '-1' is not a number of seconds above 0*"),
    ("gpuenergy_timeout = nan", "--gpuenergy-timeout 'nan' is not a number of *"),
    ('powercap = ","', "--powercap ',' names no power cap: *"),
    ("gpuenergy_seed = 1.5", "--gpuenergy-seed '1.5' is not a whole number from 0 to *."),
    ("gpuenergy_preheat = -1", "--gpuenergy-preheat '-1' is not a number of seconds from 0 *"),
    ('gpuenergy_cache = "warm"', "--gpuenergy-cache 'warm' is not understood: *"),
    ('gpuenergy_fail = ["edp"]', "--gpuenergy-fail *edp*"),
]


@pytest.mark.parametrize(("file", "table", "line", "sentence"), each_once(PLACES, REFUSED))
def test_a_value_of_another_type_is_refused_with_one_sentence(
    pytester, file, table, line, sentence
):
    (pytester.path / file).write_text(f"[{table}]{LEAN}{line}\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])
    assert len(result.stderr.str().strip().split("\n")) == 1


@pytest.mark.parametrize(
    "line",
    [
        *("powercap = true", "gpuenergy_timeout = true", "gpuenergy_json = 5"),
        *("powercap = {low = 1}", "gpuenergy_seed = 2026-11-28", "strict_powercap = 2"),
    ],
)
def test_what_pytest_leaves_as_it_is_in_its_own_table_is_refused(pytester, line):
    pytester.makefile(".toml", pytest=f"[pytest]{LEAN}{line}\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {line.split()[0]} in */pytest.toml is *: give *."])


def test_a_list_in_an_ini_file_may_have_a_value_a_line(pytester):
    pytester.makefile(".ini", pytest="[pytest]\npowercap =\n    1\n    300W\n")
    assert PytestOptions.from_pytest_config(pytester.parseconfig()).powercap == "1,300W"


def test_the_command_line_overrides_an_ini_option_of_any_type(pytester):
    pytester.makefile(".toml", pytest=f"[pytest]{LEAN}powercap = [1, 2]\n")
    config = pytester.parseconfig("-o", "powercap=3")
    assert PytestOptions.from_pytest_config(config).powercap == "3"
