"""How costs grow with size: loading a report, ending a session, comparing runs, writing a page.

    python studies/scale.py
    python studies/scale.py --parts load,compare,page --items 10000

The session runs on the emulated GPU, in a project of its own: one small kernel, compiled and
verified once and then cached, in the requested number of items. The other parts repeat the
measurements of a published report under other names. Commands are timed from start to end, the
session from its last item to its end. CPU time is given in addition to wall time, as only that is
meaningful on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, Measurement, Metric
from pytest_gpuenergy.report import Report, RunFolder, load_report, write_json
from pytest_gpuenergy.support import InputError

PUBLISHED = (
    Path(__file__).parents[1] / "bench" / "results" / "nvidia-h200-2026-11-22" / "report.json"
)
NOISE = 0.004
"""Relative standard deviation of a figure from run to run."""

MAIN = "from pytest_gpuenergy.cli import main; raise SystemExit(main())"
GPUENERGY = (sys.executable, "-c", MAIN)
PYTEST = (sys.executable, "-m", "pytest")
PARTS = ("load", "compare", "page", "session")
MOST_S = {"load": 1.0, "compare": 5.0, "page": 5.0, "session": 3.0}
"""Wall time allowed on an idle machine: 10 000 measurements to load, 3 750 items otherwise."""

RANKS = 75
CAPS = 5
PROJECT = {
    "pyproject.toml": """
[tool.pytest.ini_options]
gpu_device = "emulated"
""",
    "conftest.py": """
import atexit
import json
import time
from pathlib import Path
import pytest

last = {}

@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish():
    last.update(wall=time.time(), processor=time.process_time())

@atexit.register
def note():
    last["processor"] = time.process_time() - last["processor"]
    Path("last.json").write_text(json.dumps(last))
""",
    "test_many.py": '''
from dataclasses import replace
import pytest
from pytest_gpuenergy.kernels import Origin
from pytest_gpuenergy.workloads import Conv2d

RANKS, ITEMS = {ranks}, {items}
SOURCE = """
extern "C" __global__ void conv(const float* data, const float* weight, float* output) {
  float sum = 0;
  for (int ci = 0; ci < 4; ++ci)
    sum += data[ci * 64 + threadIdx.x] * weight[blockIdx.x * 4 + ci];
  output[blockIdx.x * 64 + threadIdx.x] = sum;
}
"""
LAUNCH = dict(entry="conv", grid=8, block=64, arguments=("data", "weight", "output"))

@pytest.mark.parametrize("number", range(ITEMS))
def test_conv(number, powercap, load_kernel, energy_benchmark):
    kernel = replace(load_kernel(SOURCE, **LAUNCH), origin=Origin("scale", number % RANKS + 1))
    case = f"case{number // RANKS + 1}"
    energy_benchmark(kernel, workload=Conv2d.of(case, 1, 8, 8, 8, 4, 1, 1, 1, 0))
''',
}


@dataclass(frozen=True)
class Cost:
    """Time taken by one part."""

    part: str
    count: int
    wall_s: float
    processor_s: float

    def row(self) -> str:
        """A row of the table."""
        return (
            f"| {self.part} | {self.count} | {self.wall_s:.2f} | {self.processor_s:.2f} "
            f"| {MOST_S[self.part]:g} |"
        )


def enlarged(report: Report, count: int, run_id: str, seed: int) -> Report:
    """``count`` measurements: those of ``report``, repeated for other workloads.

    Figures vary by `NOISE`, drawn from the seed.
    """
    rng = np.random.default_rng(seed)
    known = [m for m in report.measurements if m.measured]
    made = []
    for number in range(count):
        m, copy = known[number % len(known)], number // len(known) + 1
        name = f"{m.workload.name}x{copy}"
        shifted = _shifted(m, 1 + NOISE * rng.standard_normal(), 1 + NOISE * rng.standard_normal())
        workload = replace(m.workload, name=name)
        made.append(replace(shifted, workload=workload, node_id=f"{m.node_id}-{name}"))
    return Report(replace(report.run, run_id=run_id), tuple(made))


def _shifted(m: Measurement, time: float, energy: float) -> Measurement:
    factors = {Metric.TIME: time, Metric.ENERGY: energy, Metric.EDP: time * energy}
    changes: dict[str, object] = {}
    for metric, factor in factors.items():
        if (found := m.estimate(metric)) is not None:
            changes[metric.field] = found.value * factor
            ends = Interval(found.low * factor, found.high * factor)
            changes[f"{metric.field}_ci95"] = ends
    return replace(m, **changes)


def cost_of_command(part: str, count: int, command: Sequence[str], folder: Path) -> Cost:
    """Run a command to its end.

    Raises:
        InputError: it failed.
    """
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise InputError(f"{part} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(part, count, wall_s, spent_s)


def cost_of_loading(report: Report, folder: Path) -> Cost:
    """Load a JSON report."""
    path = folder / "large.json"
    write_json(report, path)
    began_s, spent_s = time.perf_counter(), time.process_time()
    loaded = load_report(path)
    cost = Cost(
        "load",
        len(loaded.measurements),
        time.perf_counter() - began_s,
        time.process_time() - spent_s,
    )
    assert loaded == report
    return cost


def cost_of_ending(items: int, folder: Path) -> Cost:
    """Run a session; the cost is from its last item to its end.

    Raises:
        InputError: it failed.
    """
    for name, text in PROJECT.items():
        numbers = {"{ranks}": RANKS, "{items}": -(-items // CAPS)}
        for place, number in numbers.items():
            text = text.replace(place, str(number))
        (folder / name).write_text(text)
    own = {"GPUENERGY_STATE": str(folder / "state")}
    command = (*PYTEST, "-q", "-p", "no:hypothesispytest")  # Hypothesis takes a second to end
    done = subprocess.run(
        command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False
    )
    ended_s = time.time()
    if done.returncode:
        raise InputError(f"the session failed: {(done.stderr or done.stdout).strip()[-300:]}")
    last = json.loads((folder / "last.json").read_text())
    (run,) = (folder / ".gpuenergy" / "runs").iterdir()
    count = len(RunFolder(run).load().measurements)
    return Cost("session", count, ended_s - last["wall"], last["processor"])


def costs(parts: Sequence[str], items: int, load: int, folder: Path) -> Iterator[Cost]:
    """Run each part in turn; files are written below ``folder``.

    Raises:
        InputError: a command failed.
    """
    published = load_report(PUBLISHED)
    if "load" in parts:
        yield cost_of_loading(enlarged(published, load, "load", 0), folder)
    if "compare" in parts or "page" in parts:
        for number, name in enumerate(("base", "new")):
            write_json(enlarged(published, items, name, number), folder / f"{name}.json")
    if "compare" in parts:
        command = (*GPUENERGY, "compare", "base.json", "new.json")
        yield cost_of_command("compare", items, command, folder)
    if "page" in parts:
        views = ("--html", "page.html", "--baseline", "base.json")
        yield cost_of_command("page", items, (*GPUENERGY, "report", "new.json", *views), folder)
    if "session" in parts:
        (folder / "project").mkdir()
        yield cost_of_ending(items, folder / "project")


@contextmanager
def working_folder(named: Path | None) -> Iterator[Path]:
    """``named``, which is kept, or a temporary folder if that is None."""
    if named is not None:
        named.mkdir(parents=True)
        yield named
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; exit code 2 if a part cannot be run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=3750, help="Items in a session or comparison")
    parser.add_argument("--load", type=int, default=10_000, help="Measurements to load")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help=f"Some of {', '.join(PARTS)} (default: all)"
    )
    parser.add_argument("--folder", type=Path, help="New folder for all files, which is kept")
    arguments = parser.parse_args(argv)
    parts = arguments.parts.split(",")
    if unknown := sorted({*parts} - {*PARTS}):
        parser.error(f"--parts {unknown[0]!r} is not one of {', '.join(PARTS)}")
    if min(arguments.items, arguments.load) < 1:
        parser.error("--items and --load take numbers above zero")
    print("| part | measurements | wall (s) | processor (s) | at most (s) |")
    print("|---|---:|---:|---:|---:|", flush=True)
    try:
        with working_folder(arguments.folder) as folder:
            for cost in costs(parts, arguments.items, arguments.load, folder):
                print(cost.row(), flush=True)
    except (InputError, OSError) as error:
        print(f"scale.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
