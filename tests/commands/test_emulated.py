"""Emulated figures say so wherever they appear: README promises it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.cli import COMMANDS, main
from pytest_gpuenergy.record import Interval, Measurement, Window
from pytest_gpuenergy.report import Report, RunFolder, write_json

MARK = re.compile(r'\(emulated\)|emulated NVIDIA H200|"emulated": ?true|,emulated,.*\n[^\n]*,True,')
SHOWN = {
    "report": [
        (),
        ("--md", "-"),
        ("--json", "out"),
        ("--html", "out"),
        ("--bencher", "out"),
        ("--gha", "out"),
        ("--csv", "out"),
        ("--tidy", "out"),
    ],
    "advise": [(), ("--json", "-"), ("--md", "-")],
    "compare": [(), ("--json", "-"), ("--md", "-"), ("--fail", "edp:5%")],
    "history": [(), ("--json", "-"), ("--md", "-")],
    "baseline": [("update", "--to", "base.json")],
}
"""The commands that show figures of reports, and the forms of their outputs."""
OWN_TESTS = {"tune", "gemm", "optimize", "replay", "powercap", "hosts", "ab", "kernels"}
"""Commands whose tests expect the mark in what they measure, or in the name of the GPU."""
WITHOUT_FIGURES = {"doctor", "clean", "profile", "extract"}
"""Commands that show no figure of an emulated GPU."""


@pytest.fixture
def reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Callable[..., Measurement]
) -> None:
    """``base.json`` and ``new.json``, which are also this project's runs; the new one is slower."""
    monkeypatch.chdir(tmp_path)
    for name, edp in (("base", 1.0), ("new", 2.0)):
        run = a_run(run_id=f"20260102T030405-{name:0<6}")
        rows = [
            replace(
                measured(rank, cap, energy_mj=100.0 * edp),
                time_ms_ci95=Interval(0.4999, 0.5001),
                energy_mj_ci95=Interval(99.9 * edp, 100.1 * edp),
                edp_mj_ms_ci95=Interval(49.9 * edp, 50.1 * edp),
                trials=(Window(1.0, 200.0 * edp, 2000, 1.0),) * 3,
            )
            for rank in (1, 2)
            for cap in (1, 3)
        ]
        write_json(Report(run, tuple(rows)), Path(f"{name}.json"))
        folder = RunFolder.create(tmp_path, run)
        for row in rows:
            folder.append(row)


def test_every_command_is_known_here():
    assert {*COMMANDS} == {*SHOWN} | OWN_TESTS | WITHOUT_FIGURES


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [(name, arguments) for name, forms in SHOWN.items() for arguments in forms],
)
def test_a_view_of_emulated_figures_says_so(command, arguments, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    sources = {
        "report": ["new.json"],
        "advise": ["new.json"],
        "compare": ["base.json", "new.json"],
        "baseline": [],
        "history": [],
    }[command]
    if command == "baseline":
        arguments = (arguments[0], "new.json", *arguments[1:])
    main([command, *sources, *arguments])
    told = capsys.readouterr()
    text = told.out
    if "out" in arguments:
        out = Path("out")
        files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
        text = "\n".join(path.read_text() for path in files)
    assert MARK.search(text), text[:2000]
    for line in filter(lambda line: line.startswith("::"), told.err.splitlines()):
        assert " (emulated)" in line
