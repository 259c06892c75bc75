"""Times what users wait for, from `gpuenergy --help` to whole benches, and prints a table.

python bench/waiting.py
python bench/waiting.py --rows help,collection --runs 5 --json waiting.json

Run it on an idle machine. Each run of a row starts from the state that the row names, an empty
cache for example, in a folder of its own; the figures are medians of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial" / "first-gate.md"
BENCH_ITEMS = 875
"""The number of items of ``pytest bench`` under all caps of one card."""

_TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_RESULT = re.compile(r" (?:PASSED|FAILED|ERROR)\b")
_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
_COMMAND = (sys.executable, "-c", "import sys; from pytest_gpuenergy.cli import main; main()")


@dataclass(frozen=True)
class Waiting:
    """What one run of a command took.

    Attributes:
        wall_s: from its start to its end.
        cpu_s: the processor time of the command and all its children.
        first_s: from its start to the first item's result; None if it has no items.
    """

    wall_s: float
    cpu_s: float
    first_s: float | None = None


@dataclass(frozen=True)
class Row:
    """A situation in which somebody waits.

    Attributes:
        name: its name for ``--rows``.
        what: its description in the table.
        goal: what is wanted, in words; empty if nothing was said.
        measure: makes one run in a new folder.
        is_long: whether a run takes minutes, so that it has to be named.
    """

    name: str
    what: str
    goal: str
    measure: Callable[[Path], Waiting]
    is_long: bool = False


def timed(command: Sequence[str], folder: Path, state: Path) -> Waiting:
    """Run a command and return how long it took.

    Args:
        command: the command, which must succeed.
        folder: its working directory.
        state: the folder of its caches and records.

    Raises:
        SystemExit: it failed; the message has the end of its output.
    """
    environment = {
        **os.environ,
        "GPUENERGY_CACHE": str(state / "cache"),
        "GPUENERGY_STATE": str(state / "state"),
        "GPUENERGY_CAP_WRITES": "deny",
        "PYTHONUNBUFFERED": "1",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    first_s, lines = None, []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if first_s is None and _RESULT.search(line):
                first_s = time.perf_counter() - began_s
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"error: {' '.join(command)} failed:\n{''.join(lines[-20:])}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Waiting(wall_s, cpu_s, first_s)


def bench(folder: Path, *words: str) -> Waiting:
    """Run ``pytest bench`` on the emulated GPU, with its caches in ``folder``."""
    return timed((*_PYTEST, "bench", "-v", "--gpu-device", "emulated", *words), ROOT, folder)


def repeated_case(folder: Path) -> Waiting:
    """Run the quick start's bench a second time."""
    bench(folder, "-k", "case1", "--powercap", "3")
    return bench(folder, "-k", "case1", "--powercap", "3")


def tutorial(folder: Path) -> Waiting:
    """Measure the tutorial's kernel in a project with the files that the tutorial shows."""
    for name, text in _TITLED.findall(TUTORIAL.read_text(encoding="utf-8")):
        if name in ("scale.cu", "test_scale.py", "pyproject.toml"):
            (folder / name).write_text(text, encoding="utf-8")
    return timed((*_PYTEST, "-v", "--powercap", "3"), folder, folder / "state")


def collection(folder: Path) -> Waiting:
    """Collect the bench; what as many items of nobody's take is not counted."""
    (folder / "test_plain.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('number', range({BENCH_ITEMS}))\n"
        "def test_nothing(number): pass\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\n")
    plain = timed((*_PYTEST, "--collect-only", "-q", str(folder)), folder, folder)
    ours = bench(folder, "--collect-only", "-q", "--powercap", "all")
    return Waiting(ours.wall_s - plain.wall_s, ours.cpu_s - plain.cpu_s)


def command_help(folder: Path) -> Waiting:
    """Print the help of ``gpuenergy`` and of each command; return the slowest."""
    listed = subprocess.run(
        [*_COMMAND, "--help"], capture_output=True, text=True, check=True, cwd=folder
    ).stdout
    commands = re.findall(r"^    ([a-z-]+) ", listed, re.MULTILINE)
    words = [(), *((command,) for command in commands)]
    return max(
        (timed((*_COMMAND, *word, "--help"), folder, folder) for word in words),
        key=lambda waiting: waiting.wall_s,
    )


ROWS = (
    Row(
        "first",
        "`pytest bench -k case1 --powercap 3`, empty cache",
        "45 s, first result after 10 s",
        lambda folder: bench(folder, "-k", "case1", "--powercap", "3"),
    ),
    Row("repeated", "the same, repeated", "8 s of processor time", repeated_case),
    Row("tutorial", "the tutorial's kernel, empty cache", "10 s", tutorial),
    Row("collection", "collecting 875 items, less the same of nobody's", "0.7 s", collection),
    Row("help", "`--help`, of the slowest command", "0.15 s", command_help),
    Row(
        "bench",
        "`pytest bench --powercap all`, 875 items, empty cache",
        "15 min",
        lambda folder: bench(folder, "--powercap", "all"),
        is_long=True,
    ),
)


def median_waiting(runs: Sequence[Waiting]) -> Waiting:
    """Return the median of each figure."""
    first = [run.first_s for run in runs if run.first_s is not None]
    return Waiting(
        median(run.wall_s for run in runs),
        median(run.cpu_s for run in runs),
        median(first) if first else None,
    )


def table(results: Sequence[tuple[Row, Waiting]]) -> str:
    """Return the results as a table in Markdown."""
    lines = [
        "| what (emulated) | s | processor s | first result s | goal |",
        "|---|---:|---:|---:|---|",
    ]
    for row, waiting in results:
        first = "" if waiting.first_s is None else f"{waiting.first_s:.2f}"
        lines.append(
            f"| {row.what} | {waiting.wall_s:.2f} | {waiting.cpu_s:.2f} | {first} | {row.goal} |"
        )
    return "\n".join(lines)


def chosen_rows(words: str) -> list[Row]:
    """Return the rows of a list of names, or all that take less than minutes."""
    if not words:
        return [row for row in ROWS if not row.is_long]
    by_name = {row.name: row for row in ROWS}
    if unknown := [word for word in words.split(",") if word not in by_name]:
        sys.exit(f"error: --rows {', '.join(unknown)}: give some of {', '.join(by_name)}.")
    return [by_name[word] for word in words.split(",")]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", default="", metavar="LIST", help="rows, by default all short ones"
    )
    parser.add_argument(
        "--runs", type=int, default=1, metavar="N", help="of each row (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="where to write all runs as well")
    arguments = parser.parse_args(words)
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "rows": {},
    }
    results = []
    for row in chosen_rows(arguments.rows):
        runs = []
        for _ in range(max(1, arguments.runs)):
            with tempfile.TemporaryDirectory(prefix="waiting-") as folder:
                runs.append(row.measure(Path(folder)))
        results.append((row, median_waiting(runs)))
        document["rows"][row.name] = [vars(run) for run in runs]
        if arguments.json is not None:  # what was measured is kept if a later row fails
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{document['date']}, {document['machine']}, load {document['load']:.1f}\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
