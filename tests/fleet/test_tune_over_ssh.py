"""Searches on the GPUs of hosts that ssh reaches, none of which sees another's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuenergy.cli import main

if TYPE_CHECKING:
    from conftest import Hosts

pytestmark = pytest.mark.slow
SIZES = "MNK=32 layout=nt"


def tuned(fleet: str, out: Path, *words: str, trials: int = 4) -> int:
    """Tune a small product over a fleet of emulated GPUs."""
    what = ("gemm", "tune", SIZES, "--trials", str(trials), "--keep", "1", "--out", str(out))
    return main([*what, "--gpu-device", "emulated", "--fleet", fleet, *words])


def trials(out: Path) -> list[dict[str, Any]]:
    (path,) = out.glob("*/raw-template/trials.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_candidates_are_timed_on_all_hosts(
    hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.add("h1", "h2")
    assert tuned(hosts.text("h1", "h2", "h3"), tmp_path) == 0
    printed = capsys.readouterr()
    print(printed)
    assert len({one["gpu"] for one in trials(tmp_path)}) == 2
