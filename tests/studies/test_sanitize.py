"""The bench that runs compute-sanitizer, with a stand-in for the tool and no GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import sanitize
from bench_folder import ROOT
from hypothesis import given, strategies as st
from sanitizer_child import first_blocks
from sanitizer_results import Check, read_results

from pytest_gpuenergy.devices import Binary
from pytest_gpuenergy.kernels import Dim3, Kernel, Launch, RecordedFigures
from pytest_gpuenergy.opening import open_device

GPU = "NVIDIA H200"
GRIDS: Mapping[int, Dim3] = {1: (1088, 1, 1), 2: (98, 1, 1), 3: (4, 1, 1)}
TIMES_MS = {1: 0.4, 2: 5.0, 3: 56.0}


def kernel(rank: int) -> Kernel:
    recorded = RecordedFigures(GPU, 700.0, TIMES_MS[rank], 300.0, 300.0 * TIMES_MS[rank])
    launch = Launch("f", GRIDS[rank], (32, 1, 1), ())
    return Kernel(f"// {rank}", (launch,), recorded=(recorded,))


def prepare(files: Mapping[str, Path], wanted: sanitize.Wanted, _: int) -> sanitize.Prepared:
    """Three kernels of case1 where a GPU, TVM and NVRTC would have made them."""
    (path,) = files.values()
    return sanitize.Prepared(
        GPU,
        tuple(
            sanitize.Subject(f"case1-k{rank:02d}", kernel(rank), path, rank, binary)
            for rank in GRIDS
            for binary in [Binary(Path("k.cubin"), {"f": "f"})]
            if wanted(kernel(rank), GPU)
        ),
    )


class Bench:
    """The bench over the bundled records of case1, each kernel of which does as it is told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = folder / "sanitizer.json"
        self._log = folder / "runs.txt"
        self._monkeypatch = monkeypatch
        (folder / "bin").mkdir()
        self._records = folder / "records"
        self._records.mkdir()
        (path,) = sanitize.RECORDS.glob("case1_conv2d_*.json")
        (self._records / path.name).symlink_to(path)
        script = folder / "bin" / "compute-sanitizer"
        fake = Path(__file__).with_name("fake_sanitizer.py")
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
        monkeypatch.setenv("FAKE_SANITIZER_LOG", str(self._log))

    def give(self, **does: str) -> None:
        """What a kernel does: ``rank1="finds"``."""
        for rank, what in does.items():
            self._monkeypatch.setenv(f"FAKE_SANITIZER_{rank.removeprefix('rank')}", what)

    def run(self, *words: str) -> int:
        self._log.write_text("")
        options = ["--records", str(self._records), "--case", "case1"]
        options += ["--jobs", "1", "--out", str(self.out)]
        return sanitize.main([*options, *words], prepare)

    @property
    def runs(self) -> list[tuple[str, int, int]]:
        """Tool, rank and blocks of each run, in order."""
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [(tool, int(rank), int(blocks)) for tool, rank, blocks in lines]

    def check(self, rank: int, tool: sanitize.Tool = "racecheck") -> Check:
        found = read_results(self.out).check(kernel(rank).digest, tool)
        assert found is not None
        return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_each_kernel_is_run_by_each_tool_and_kept(bench, capsys):
    assert bench.run() == 0
    assert sorted((tool, rank) for tool, rank, _ in bench.runs) == [
        (tool, rank) for tool in ("memcheck", "racecheck") for rank in (1, 2, 3)
    ]
    kernels = read_results(bench.out).kernels
    assert {one.name for one in kernels.values()} == {"case1-k01", "case1-k02", "case1-k03"}
    assert "case1 racecheck: 3 clean" in capsys.readouterr().out


def test_racecheck_takes_the_first_blocks_and_says_so(bench):
    assert bench.run() == 0
    assert (bench.check(1).blocks, bench.check(1).of) == (264, 1088)
    assert (bench.check(2).blocks, bench.check(2).of) == (98, 98)
    assert bench.check(1, "memcheck").blocks == 1088
    assert {blocks for tool, _, blocks in bench.runs if tool == "racecheck"} == {264}


def test_what_a_tool_finds_is_told_and_kept(bench, capsys):
    bench.give(rank2="finds")
    assert bench.run("--tool", "racecheck") == 1
    assert bench.check(2).outcome == "found"
    assert "3 hazards" in bench.check(2).printed
    assert (bench.check(1).outcome, bench.check(3).outcome) == ("clean", "clean")
    assert "case1 racecheck: 2 clean, 1 found" in capsys.readouterr().out


def test_a_tool_that_does_not_reach_the_kernel_has_not_found_it_clean(bench):
    bench.give(rank3="dies")
    assert bench.run("--tool", "memcheck") == 1
    assert bench.check(3, "memcheck").outcome == "failed"
    assert "terminated before" in bench.check(3, "memcheck").printed


@pytest.mark.slow
def test_a_later_session_goes_on_with_what_is_not_clean(bench):
    bench.give(rank2="finds")
    bench.run("--tool", "racecheck")
    bench.give(rank2="clean")
    assert bench.run("--tool", "racecheck", "--resume") == 0
    assert bench.runs == [("racecheck", 2, 264)]
    assert [bench.check(rank).outcome for rank in GRIDS] == ["clean"] * 3


@pytest.mark.slow
def test_without_a_gpu_nothing_is_checked(bench, capsys, monkeypatch):
    monkeypatch.setattr(sanitize, "open_device", lambda _: open_device("emulated"))
    assert sanitize.main(["--case", "case1", "--out", str(bench.out)]) == 2
    assert "there is none here" in capsys.readouterr().err
    assert not bench.out.exists()


def test_the_results_kept_are_of_the_bundled_kernels():
    kept = read_results(ROOT / "bench" / "results" / "nvidia-h200-2026-11-22" / "sanitizer.json")
    assert list(kept.summary()) == [
        f"case{number} {tool}: 25 clean"
        for number in range(1, 8)
        for tool in ("memcheck", "racecheck")
    ]


@given(st.tuples(*[st.integers(1, 40)] * 3), st.integers(1, 70_000))
def test_the_first_blocks_are_a_part_of_the_grid(grid, most):
    launch = Launch("f", grid, (32, 1, 1), ())
    (part,) = first_blocks(replace(kernel(1), launches=(launch,)), most).launches
    assert 1 <= part.blocks <= most
    assert all(some <= whole for some, whole in zip(part.grid, grid, strict=True))
    # In the order in which x runs fastest they are the first ones, and no further row fits.
    assert part.grid[0] == grid[0] or part.grid[1:] == (1, 1)
    assert part.grid[1] == grid[1] or part.grid[2] == 1
    assert part.blocks == launch.blocks or part.blocks + _row(part, grid) > most


def _row(part: Launch, grid: Dim3) -> int:
    """Blocks of what is added next: one, a row or a plane."""
    if part.grid[0] < grid[0]:
        return 1
    return grid[0] if part.grid[1] < grid[1] else grid[0] * grid[1]
