"""Times what users wait for, from `gpuenergy --help` to whole benches, and prints a table.

python bench/waiting.py
python bench/waiting.py --rows help,collection --runs 5 --json waiting.json
python bench/waiting.py --card --json waiting-card.json
python bench/waiting.py --card --rows products,optimize --parts

Run it on an idle machine. By default everything runs on the emulated GPU; with ``--card``, the
rows of a real one are timed instead, under the power limit that it has. Each run of a row
starts from the state that the row names, an empty cache for example, in a folder of its own; the
figures are medians of the runs. A command that takes longer than ``--limit`` is interrupted, and
the row shows what it had reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial" / "first-gate.md"
INTERRUPTED_S = 15.0
"""The time in which a command that is interrupted must end."""
BENCH_ITEMS = 875
"""The number of items of ``pytest bench`` under all caps of one card."""

_TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_RESULT = re.compile(r" (?:PASSED|FLAGGED|FAILED|ERROR)\b")
_TRACED = re.compile(r"^\| +(\S.*?) +\| +([\d.]+) +\| +([\d.]+) +\|", re.MULTILINE)
"""A line of the table of times in a search's trace: an activity, its seconds, and those a state."""
_EDP = re.compile(r" EDP ([\d.]+) \[([\d.]+), ([\d.]+)\]")
"""The ratio of the EDPs that a search compares, and its interval."""
_PRODUCTS = (
    "M=1280 N=1280 K=1280; M=3000 N=3000 K=3000 mode=bfloat16; M=1000 N=777 K=333 mode=3xtf32"
)
"""Products of which there are no records."""
_RECORDED = (
    "MNK=512; MNK=1152 mode=bfloat16; MNK=2048 mode=tf32; M=512 N=256 K=640; MNK=1536; "
    "MNK=1024 mode=3xtf32"
)
"""Products of which ``bench/records`` has tuned kernels of an H200."""
_FURTHER = (
    "MNK=896 mode=tf32; MNK=1536 mode=bfloat16; MNK=2048 mode=3xtf32; MNK=1152; "
    "M=512 N=3072 K=768 mode=tf32; M=512 N=768 K=3072 mode=bfloat16"
)
"""Further ones, for a session of a dozen."""
_TRIALS = 400
_SCALE = """\
extern "C" __global__ void scale(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = %s;
}
"""
_TEST_SCALE = """\
from pytest_gpuenergy import Contract, Tensor, load_kernel

N = 1 << 24
TENSORS = (Tensor("x", (N,), "float32", "input"), Tensor("y", (N,), "float32", "output"))
SCALE = Contract("scale", TENSORS, lambda inputs: {"y": 2 * inputs["x"]}, flops=N)


def test_scale(energy_benchmark):
    launch = {"entry": "scale", "grid": N // 256, "block": 256, "arguments": ("x", "y")}
    energy_benchmark(load_kernel("scale.cu", **launch), workload=SCALE)
"""
_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
_COMMAND = (
    sys.executable,
    "-c",
    "import sys; from pytest_gpuenergy.cli import main; sys.exit(main())",
)


@dataclass(frozen=True)
class Waiting:
    """What one run of a command took.

    Attributes:
        wall_s: from its start to its end.
        cpu_s: the processor time of the command and all its children.
        first_s: from its start to the first item's result; None if it has no items.
        next_s: from the result of one item to that of the next, on average; None if there are none.
        parts_s: the wall time of its parts, by name, where the command records them.
        is_ended: whether it was interrupted because it took too long.
    """

    wall_s: float
    cpu_s: float
    first_s: float | None = None
    next_s: float | None = None
    parts_s: dict[str, float] = field(default_factory=dict)
    is_ended: bool = False


class EndedError(Exception):
    """A command took too long; ``waiting`` is what it had reached."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(f"ended after {waiting.wall_s:.0f} s")
        self.waiting = waiting


Parts = Callable[[Waiting], dict[str, float]]
"""A function that returns the parts of what a command took, from the files it has written."""

_WIDTH = "interval, per cent"
_EACH = "each state"
_WIDTH_OF_EDP = "EDP, interval, per cent"
_RATE = "trials a minute"
_FIRST_TIME = "the first time"
_FORMS = {
    _EACH: "a state {:.2f} s",
    "confirm": "the comparison {:.1f} s",
    _WIDTH_OF_EDP: "EDP ±{:.1f} %",
    _RATE: "{:.0f} trials a minute",
    _FIRST_TIME: "{:.1f} s the first time",
}
"""The words in the table for a part that a row has a goal for."""


@dataclass(frozen=True)
class Row:
    """A situation in which somebody waits.

    Attributes:
        name: its name for ``--rows``.
        what: its description in the table.
        goal: what is wanted, in words; empty if nothing was said.
        measure: makes one run in a new folder.
        is_long: whether a run takes minutes, so that it has to be named.
        is_on_card: whether it takes a real card, instead of the emulated one.
    """

    name: str
    what: str
    goal: str
    measure: Callable[[Path], Waiting]
    is_long: bool = False
    is_on_card: bool = False


@contextmanager
def limited(limit_s: int) -> Iterator[None]:
    """Raise TimeoutError in what the caller does if it takes longer than ``limit_s``, if not 0."""

    def expire(*_: object) -> NoReturn:
        raise TimeoutError

    former = signal.signal(signal.SIGALRM, expire)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def end(process: subprocess.Popen[str]) -> None:
    """Interrupt a command and its children, and kill them if they go on for too long."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)  # so that it restores what it changed
    try:
        process.communicate(timeout=INTERRUPTED_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def timed(
    command: Sequence[str], folder: Path, state: Path, parts: Parts = lambda _: {}
) -> Waiting:
    """Run a command and return how long it took.

    Args:
        command: the command, which must succeed.
        folder: its working directory.
        state: the folder of its caches and records.
        parts: returns the parts of what it took.

    Raises:
        EndedError: it took longer than `limited` allows.
        SystemExit: it failed; the message has the end of its output.
    """
    environment = {
        **os.environ,
        "GPUENERGY_CACHE": str(state / "cache"),
        "GPUENERGY_STATE": str(state / "state"),
        "GPUENERGY_CAP_WRITES": "deny",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    results_s: list[float] = []
    lines = []
    is_ended = False
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if _RESULT.search(line):
                    results_s.append(time.perf_counter() - began_s)
        except TimeoutError:
            is_ended = True
            end(process)
        except BaseException:
            end(process)
            raise
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode and not is_ended:
        sys.exit(f"error: {' '.join(command)} failed:\n{''.join(lines[-20:])}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    first_s = results_s[0] if results_s else None
    later = len(results_s) - 1
    next_s = (results_s[-1] - results_s[0]) / later if later > 0 else None
    whole = Waiting(wall_s, cpu_s, first_s, next_s, is_ended=is_ended)
    if is_ended:
        with suppress(OSError, ValueError, LookupError):  # files that are not complete
            whole = replace(whole, parts_s=parts(whole))
        raise EndedError(whole)
    return replace(whole, parts_s=parts(whole))


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
    """Collect the bench; what as many items of nobody's take is not counted.

    Both are collected once before, so that their bytecode exists.
    """
    (folder / "test_plain.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('number', range({BENCH_ITEMS}))\n"
        "def test_nothing(number): pass\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\n")
    for _ in range(2):
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


def item_parts(path: Path, whole: Waiting) -> dict[str, float]:
    """Return the phases of each item of a report.

    ``else`` is what precedes the first item's result besides its phases, and the same per item on
    average for the later ones. ``interval`` is no time, but half the width of the energy's, in per
    cent.
    """
    items = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    parts: dict[str, float] = {}
    for number, item in enumerate(items, 1):
        parts |= {f"{number}: {phase}": seconds for phase, seconds in item["phases_s"].items()}
        if interval := item.get("energy_mj_ci95"):
            width = 50 * (interval["high"] - interval["low"]) / item["energy_mj"]
            parts[f"{number}: {_WIDTH}"] = width
    spent_s = [sum(item["phases_s"].values()) for item in items]
    if whole.first_s is not None:
        parts["first: else"] = whole.first_s - spent_s[0]
    if whole.next_s is not None:
        parts["next: else"] = whole.next_s - sum(spent_s[1:]) / len(spent_s[1:])
    return parts


def search_parts(folder: Path) -> dict[str, float]:
    """Return the seconds that the trace of a search names, each of the search's whole time.

    Those of a state and half the width of the interval of its EDP, in per cent, are among them.
    """
    parts: dict[str, float] = {}
    for path in sorted(folder.rglob("trace.md")):
        text = path.read_text(encoding="utf-8")
        _, _, times = text.partition("Wall time of the latest run")
        for what, seconds, each in _TRACED.findall(times):
            parts[what] = float(seconds)
            if what == "evaluate":
                parts[_EACH] = float(each)
        for edp, low, high in _EDP.findall(text):
            parts[_WIDTH_OF_EDP] = 50 * (float(high) - float(low)) / float(edp)
    return parts


def products(folder: Path, sizes: str = _PRODUCTS, name: str = "products") -> Waiting:
    """Measure products, by default such of which there are no records."""
    report = folder / f"{name}.json"
    words = ("--gemm", sizes, "-k", "template and nn", "--powercap", "current")
    command = (*_PYTEST, "bench/test_gemm.py", "-v", *words, "--gpuenergy-json", str(report))
    return timed(command, ROOT, folder, lambda whole: item_parts(report, whole))


def products_again(folder: Path) -> Waiting:
    """Measure them a second time, when their kernels have been chosen."""
    cold = products(folder, name="before")
    warm = products(folder)
    earlier = {f"before: {name}": seconds for name, seconds in cold.parts_s.items()}
    return replace(warm, parts_s=warm.parts_s | earlier)


def optimize(folder: Path) -> Waiting:
    """Search for a better kernel of 64 MiB tensors, by rules."""
    kernels = ROOT / "bench" / "search" / "kernels"
    spec = json.loads((kernels / "layernorm.json").read_text(encoding="utf-8"))
    spec["sizes"][0] = {"ROWS": 4096, "COLUMNS": 4096}
    (folder / "layernorm.json").write_text(json.dumps(spec), encoding="utf-8")
    shutil.copy(kernels / spec["file"], folder)
    words = ("layernorm.json", "--no-llm", "--budget-builds", "12", "--objective", "edp")
    return timed(
        (*_COMMAND, "optimize", *words), folder, folder, lambda _: search_parts(folder / "out")
    )


def ab(folder: Path) -> Waiting:
    """Compare two kernels of 64 MiB tensors that do the same."""
    git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost")
    (folder / "test_scale.py").write_text(_TEST_SCALE, encoding="utf-8")
    subprocess.run([*git, "init", "-q", "."], cwd=folder, check=True)
    for formula in ("2 * x[i]", "x[i] + x[i]"):
        (folder / "scale.cu").write_text(_SCALE % formula, encoding="utf-8")
        subprocess.run([*git, "add", "scale.cu", "test_scale.py"], cwd=folder, check=True)
        subprocess.run([*git, "commit", "-q", "-m", formula], cwd=folder, check=True)
    return timed((*_COMMAND, "ab", "HEAD~1", "HEAD", "test_scale.py"), folder, folder / "state")


def profile(folder: Path) -> Waiting:
    """Profile a model of 24 layers."""
    return timed((*_COMMAND, "profile", "bloom-560m", "--out", "bloom"), folder, folder)


def profile_again(folder: Path) -> Waiting:
    """Profile it a second time, when PyTorch and transformers have their bytecode."""
    cold = profile(folder)
    return replace(profile(folder), parts_s={_FIRST_TIME: cold.wall_s})


def replay(folder: Path, *words: str) -> Waiting:
    """Replay its calls and steps; the profile is not counted."""
    profile(folder)
    return timed((*_COMMAND, "replay", "bloom", *words), folder, folder)


def tune(folder: Path) -> Waiting:
    """Search for the templates' parameters of a product."""
    words = ("M=1024 N=1024 K=1024 layout=nn", "--trials", str(_TRIALS), "--no-energy")

    def rate(whole: Waiting) -> dict[str, float]:
        return {} if whole.is_ended else {_RATE: 60 * _TRIALS / whole.wall_s}

    return timed((*_COMMAND, "gemm", "tune", *words), folder, folder, rate)


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
    Row(
        "products",
        "three products without records, empty cache",
        "first item 8 s, each of the next 4 s",
        products,
        is_on_card=True,
    ),
    Row(
        "products-again",
        "the same again, kernels chosen",
        "first item 15 s, each of the next 2 s",
        products_again,
        is_on_card=True,
    ),
    Row(
        "records",
        "six products with records, empty cache",
        "first item 15 s, each of the next 2 s",
        lambda folder: products(folder, _RECORDED),
        is_on_card=True,
    ),
    Row(
        "session",
        "a dozen products with records, empty cache",
        "first item 15 s, each of the next 2 s; energies ±1.0 %",
        lambda folder: products(folder, f"{_RECORDED}; {_FURTHER}"),
        is_on_card=True,
    ),
    Row("ab", "`ab` of two kernels on 64 MiB tensors", "45 s", ab, is_on_card=True),
    Row(
        "optimize",
        "`optimize`, 64 MiB tensors, 12 variants and a confirmation",
        "1.5 s a variant and 20 s",
        optimize,
        is_on_card=True,
    ),
    Row(
        "profile",
        "`gpuenergy profile` of 24 layers, the second time",
        "15 s",
        profile_again,
        is_on_card=True,
    ),
    Row("replay", "`gpuenergy replay` of them", "120 s", replay, is_on_card=True),
    Row(
        "replay-brief",
        "`gpuenergy replay --brief` of them",
        "120 s",
        lambda folder: replay(folder, "--brief"),
        is_on_card=True,
    ),
    Row(
        "tune",
        f"`gpuenergy gemm tune`, {_TRIALS} trials",
        "60 s (400 a minute)",
        tune,
        is_on_card=True,
    ),
)


def median_waiting(runs: Sequence[Waiting]) -> Waiting:
    """Return the median of each figure."""

    def median_of(field: str) -> float | None:
        values = [value for run in runs if (value := getattr(run, field)) is not None]
        return median(values) if values else None

    return Waiting(
        median(run.wall_s for run in runs),
        median(run.cpu_s for run in runs),
        median_of("first_s"),
        median_of("next_s"),
        {
            part: median(run.parts_s[part] for run in runs if part in run.parts_s)
            for part in dict.fromkeys(part for run in runs for part in run.parts_s)
        },
        any(run.is_ended for run in runs),
    )


def further(waiting: Waiting) -> str:
    """Return the parts that a row has a goal for, in words."""
    parts = waiting.parts_s
    found = [form.format(parts[name]) for name, form in _FORMS.items() if name in parts]
    widths = [
        width
        for name, width in parts.items()
        if name.endswith(f": {_WIDTH}") and not name.startswith("before")
    ]
    if widths:
        found.append(f"energies ±{median(widths):.2f} % (median), up to ±{max(widths):.2f} %")
    return ", ".join(found)


def table(results: Sequence[tuple[Row, Waiting]], *, emulated: bool) -> str:
    """Return the results as a table in Markdown."""
    lines = [
        f"| what{' (emulated)' if emulated else ''} | s | processor s | first result s "
        "| each of the next s | further | goal |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for row, waiting in results:
        first, later = (
            "" if seconds is None else f"{seconds:.2f}"
            for seconds in (waiting.first_s, waiting.next_s)
        )
        ended = ", ended before its end" if waiting.is_ended else ""
        lines.append(
            f"| {row.what}{ended} | {waiting.wall_s:.2f} | {waiting.cpu_s:.2f} | {first} | {later} "
            f"| {further(waiting)} | {row.goal} |"
        )
    return "\n".join(lines)


def parts_table(results: Sequence[tuple[Row, Waiting]]) -> str:
    """Return the parts of the results as a table in Markdown; no text without any."""
    rows = [
        f"| {row.name} | {part} | {seconds:.2f} |"
        for row, waiting in results
        for part, seconds in waiting.parts_s.items()
    ]
    return "\n".join(["", "| row | part | s |", "|---|---|---:|", *rows]) if rows else ""


def chosen_rows(words: str, *, on_card: bool) -> list[Row]:
    """Return the rows of a list of names, or all that take less than minutes."""
    if not words:
        return [row for row in ROWS if row.is_on_card == on_card and not row.is_long]
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
    parser.add_argument(
        "--limit", type=int, default=0, metavar="S", help="of each run of a row; by default none"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where to keep what the commands write"
    )
    parser.add_argument("--json", type=Path, help="where to write all runs as well")
    parser.add_argument(
        "--card", action="store_true", help="time the rows of a real GPU, the first of this machine"
    )
    parser.add_argument(
        "--parts", action="store_true", help="print also the parts of each row that are recorded"
    )
    arguments = parser.parse_args(words)
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "rows": {},
    }
    results = []
    for row in chosen_rows(arguments.rows, on_card=arguments.card):
        runs = []
        for number in range(1, max(1, arguments.runs) + 1):
            with ExitStack() as stack:
                if arguments.keep is None:
                    folder = Path(
                        stack.enter_context(tempfile.TemporaryDirectory(prefix="waiting-"))
                    )
                else:
                    folder = arguments.keep.resolve() / f"{row.name}-{number}"
                    folder.mkdir(parents=True)
                try:
                    with limited(arguments.limit):
                        runs.append(row.measure(folder))
                except EndedError as ended:
                    runs.append(ended.waiting)
        results.append((row, median_waiting(runs)))
        document["rows"][row.name] = [vars(run) for run in runs]
        if arguments.json is not None:  # what was measured is kept if a later row fails
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{document['date']}, {document['machine']}, load {document['load']:.1f}\n")
    print(table(results, emulated=not arguments.card))
    if arguments.parts:
        print(parts_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
