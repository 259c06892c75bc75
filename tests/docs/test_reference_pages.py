"""The reference pages list what there is: options, commands, fields, profiles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuenergy.cli import COMMANDS, main
from pytest_gpuenergy.emulator import PROFILES
from pytest_gpuenergy.record import SAME_BOARD_SD
from pytest_gpuenergy.replay import understood

REFERENCE = Path(__file__).parents[2] / "docs/reference"
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+|-k)(?![\w-])")
ACTIONS = {
    "kernels": ("list", "show", "export", "sample"),
    "powercap": ("show", "set", "restore"),
    "baseline": ("update",),
    "gemm": ("perf", "profile"),  # the options of `gemm tune` are those of `tune`
}


def _page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def _first_cells(text: str) -> Iterator[str]:
    for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        yield row.partition(" | ")[0]


def _section(page: str, title: str) -> str:
    return _page(page).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _listed_options(section: str) -> set[str]:
    return set(OPTION.findall("\n".join(_first_cells(section))))


def test_the_options_of_pytest_are_those_of_its_help(pytester):
    printed = pytester.runpytest("--help").stdout.str()
    group = printed.partition("\nenergy of GPU kernels:\n")[2].partition("\n\n")[0]
    found = set(re.findall(r"^  (--[a-z-]+)", group, re.MULTILINE))
    assert len(found) > 15
    assert _listed_options(_section("options.md", "pytest")) == found
    for option in found:
        assert re.search(rf"^  {option[2:].replace('-', '_')} \(", printed, re.MULTILINE), option


def test_the_default_deviation_between_sessions_is_the_documented_one(pytester, capsys):
    shown = ",".join(f"{metric}:{value:.2%}" for metric, value in SAME_BOARD_SD.items())
    assert f"`{shown}`" in _page("options.md")
    assert main(["compare", "--help"]) == 0
    assert shown in capsys.readouterr().out
    assert shown in pytester.runpytest("--help").stdout.str()


def test_the_commands_are_those_of_the_help():
    shown = re.findall(r"^\| \[`(\w+)`\]", _page("command-line.md"), re.MULTILINE)
    assert shown == list(COMMANDS)
    assert re.findall(r"^## (\w+)$", _page("command-line.md"), re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_a_command_are_those_of_its_help(command, capsys):
    found: set[str] = set()
    for action in ACTIONS.get(command, ("",)):
        assert main([command, *filter(None, [action]), "--help"]) == 0
        found |= set(OPTION.findall(capsys.readouterr().out.partition("\n\n")[0]))
    section = _section("command-line.md", command)
    assert _listed_options(section) == found
    for action in ACTIONS.get(command, ()):
        assert re.search(rf"`{action}[ `]", section)


@pytest.mark.parametrize(
    ("title", "record"),
    [("Run", "RunInfo"), ("Measurement", "Measurement"), ("Anchor check", "AnchorCheck")],
)
def test_the_fields_of_the_record_are_those_of_the_schema(title, record):
    schema = json.loads(_page("report.schema.json"))
    rows = _section("record.md", title).partition("\n### ")[0]
    listed = set(re.findall(r"`(\w+)`", "\n".join(_first_cells(rows))))
    assert listed == set(schema["$defs"][record]["properties"])


def test_parts_of_a_measurement_are_documented():
    schema = json.loads(_page("report.schema.json"))
    names = set(re.findall(r"`(\w+)`", _section("record.md", "Measurement")))
    for part in ("WorkloadInfo", "KernelInfo", "Interval", "Window", "Correctness", "Conditions"):
        assert set(schema["$defs"][part]["properties"]) <= names, part


def test_the_emulated_gpus_are_those_that_there_are():
    rows = _first_cells(_section("emulated-gpu.md", "Profiles"))
    assert [row.strip("`") for row in rows if row.startswith("`")] == list(PROFILES)


def test_the_names_of_fields_in_lists_of_kernels_are_those_that_are_understood():
    section = _section("formats.md", "Kernels of a trace").partition("### Lists of kernels")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    listed = {field: tuple(re.findall(r"`(\w+)`", names)) for field, names in rows}
    found = {field: names for field, names in understood() if field != "total_us"}
    assert {field: listed[field] for field in found} == found
