"""Run every bundled kernel under compute-sanitizer: memcheck and racecheck. Needs a GPU.

    python studies/sanitize.py --out sanitizer.json
    python studies/sanitize.py --out sanitizer.json --resume

There is a process per kernel and tool; those expected to take longest start first, and several
share the GPU. A kernel that does not end within ``--limit-s`` is reported as not finished.
``--out`` is written after every kernel and keeps earlier results of other kernels; with
``--resume``, kernels already found clean are not run again.

racecheck looks for hazards in shared memory, which occur within a block, so it only runs the first
blocks of a grid, by default as many as fill an H200 twice (``--blocks``). The kernels index by
blockIdx alone, so they then compute a part of their output.

Exit code 1 if a kernel is not clean, 2 if the tool or the GPU is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from sanitizer_child import MARK, command, first_blocks
from sanitizer_results import TOOLS, Check, Outcome, Results, Tool, read_results

from pytest_gpuenergy.devices import Binary, NvrtcCompilers
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import GpuEnergyError, InputError, cache_dir, termination_as_interrupt
from pytest_gpuenergy.tuners import KernelStore, load_records, tuner_files
from pytest_gpuenergy.tuning import TVM

RECORDS = Path(__file__).parents[1] / "bench" / "records" / "nvidia-h200"
SANITIZER = "compute-sanitizer"
BLOCKS: Mapping[Tool, int] = {"memcheck": sys.maxsize, "racecheck": 2 * 132}
LIMIT_S = 120.0
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_PRINTED = 4000
_POLL_S = 0.1


@dataclass(frozen=True)
class Subject:
    """A kernel to check: where a child process can find it, and its machine code."""

    name: str
    kernel: Kernel
    records: Path
    rank: int
    binary: Binary

    def expected_s(self, blocks: int) -> float:
        """An estimate proportional to a check's time, from a launch's; infinite if unknown."""
        if not self.kernel.recorded:
            return float("inf")
        return self.kernel.recorded[0].time_ms * min(1.0, blocks / block_count(self.kernel))


@dataclass(frozen=True)
class Job:
    """A tool to run on a kernel, with at most ``blocks`` blocks of each launch."""

    subject: Subject
    tool: Tool
    blocks: int


@dataclass(frozen=True)
class Prepared:
    """The GPU's model, and the kernels to check on it."""

    gpu: str
    subjects: tuple[Subject, ...]


def block_count(kernel: Kernel) -> int:
    """Number of thread blocks in all launches."""
    return sum(launch.blocks for launch in kernel.launches)


Wanted = Callable[[Kernel, str], bool]
"""Whether to check a kernel on this model of GPU."""
Prepare = Callable[[Mapping[str, Path], Wanted, int], Prepared]
"""Prepares kernels from record files, with a number of processes."""


def record_files(folder: Path, cases: Sequence[str]) -> dict[str, Path]:
    """The record files in ``folder`` by their workload's name: those of ``cases``, or all.

    Raises:
        InputError: a case has none.
    """
    found = tuner_files(folder, TVM)
    files = {file.workload.name: path for path, file in found.items()}
    if unknown := set(cases) - set(files):
        raise InputError(f"{folder} has no records of {', '.join(sorted(unknown))}.")
    return {name: files[name] for name in cases or files}


def prepare(files: Mapping[str, Path], wanted: Wanted, processes: int) -> Prepared:
    """Lower all kernels and compile the wanted ones.

    Raises:
        InputError: there is no NVIDIA GPU.
    """
    with open_device("auto") as device:
        if device.emulated:
            raise InputError(
                f"{SANITIZER} checks kernels on an NVIDIA GPU, but there is none here."
            )
        gpu, architecture = device.name, device.architecture
    loaded = [(path, load_records(path)) for path in files.values()]
    ranks = [(path, file, rank) for path, file in loaded for rank in file.ranks]
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(KernelStore(processes))
        pool = stack.enter_context(
            contextlib.closing(NvrtcCompilers(architecture, cache_dir("cubin")))
        )
        threads = stack.enter_context(ThreadPoolExecutor(processes))
        kernels = threads.map(lambda one: store.kernel(one[1], one[2]), ranks)
        chosen = [
            (one, kernel, pool.submit(kernel))
            for one, kernel in zip(ranks, kernels, strict=True)
            if wanted(kernel, gpu)
        ]
        subjects = tuple(
            Subject(f"{file.workload.name}-k{rank:02d}", kernel, path, rank, compiled.result())
            for (path, file, rank), kernel, compiled in chosen
        )
    return Prepared(gpu, subjects)


def check(job: Job, gpu: str, limit_s: float, stop: threading.Event) -> Check | None:
    """Run a tool on a kernel; return None if ``stop`` was set meanwhile."""
    subject = job.subject
    child = command(subject.records, subject.rank, subject.binary, job.blocks)
    begun_s = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [SANITIZER, "--tool", job.tool, *child],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = _wait(process, begun_s + limit_s, stop)
        finally:
            # The tool's child outlives it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        printed = log.read().decode(errors="replace")
    if code is None and stop.is_set():
        return None
    outcome = judge(printed, code)
    return Check(
        outcome,
        block_count(first_blocks(subject.kernel, job.blocks)),
        block_count(subject.kernel),
        gpu,
        round(time.monotonic() - begun_s, 1),
        "" if outcome == "clean" else printed[-_PRINTED:],
    )


def _wait(process: subprocess.Popen[bytes], until_s: float, stop: threading.Event) -> int | None:
    """The exit code; None if the time is up or ``stop`` is set before there is one."""
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if stop.is_set() or time.monotonic() >= until_s:
                return None


def judge(printed: str, code: int | None) -> Outcome:
    """The outcome, from the output and the exit code (None if the process was killed)."""
    counts = [int(one or other) for one, other in SUMMARY.findall(printed)]
    if any(counts):
        return "found"
    if code is None:
        return "not finished"
    return "clean" if counts and MARK in printed and code == 0 else "failed"


def check_all(
    jobs: Sequence[Job],
    gpu: str,
    keep: Callable[[Job, Check], None],
    *,
    processes: int,
    limit_s: float,
) -> None:
    """Run jobs, longest first; call ``keep`` in this thread as each ends.

    An interrupt ends the running jobs and raises KeyboardInterrupt.
    """
    stop = threading.Event()
    ordered = sorted(jobs, key=lambda job: job.subject.expected_s(job.blocks), reverse=True)
    with ThreadPoolExecutor(processes) as pool:
        running = {pool.submit(check, job, gpu, limit_s, stop): job for job in ordered}
        try:
            for done in as_completed(running):
                if (found := done.result()) is not None:
                    keep(running[done], found)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def run(arguments: argparse.Namespace, prepare: Prepare) -> int:
    """Run the checks that the command line asks for; return the exit code.

    Raises:
        GpuEnergyError: they cannot be run.
    """
    if shutil.which(SANITIZER) is None:
        raise InputError(f"{SANITIZER} is not on PATH: it comes with the CUDA toolkit.")
    if arguments.resume and arguments.out is None:
        raise InputError("--resume continues a file: give --out as well.")
    out: Path | None = arguments.out
    results = read_results(out) if out is not None and out.exists() else Results()
    tools = (arguments.tool,) if arguments.tool else TOOLS
    blocks = {tool: arguments.blocks or BLOCKS[tool] for tool in tools}
    former = results if arguments.resume else Results()

    def open_tools(kernel: Kernel, gpu: str) -> list[Tool]:
        planned = {tool: block_count(first_blocks(kernel, blocks[tool])) for tool in tools}
        known = {tool: former.check(kernel.digest, tool) for tool in tools}
        return [t for t, one in known.items() if not (one and one.covers(planned[t], gpu))]

    files = record_files(arguments.records, [n for n in arguments.case.split(",") if n])
    prepared = prepare(files, lambda kernel, gpu: bool(open_tools(kernel, gpu)), arguments.jobs)
    jobs = [
        Job(subject, tool, blocks[tool])
        for subject in prepared.subjects
        for tool in open_tools(subject.kernel, prepared.gpu)
    ]
    ran = Results()

    def keep(job: Job, found: Check) -> None:
        nonlocal ran, results
        subject = job.subject
        entry = (subject.kernel.digest, subject.name, job.tool, found)
        ran, results = ran.with_check(*entry), results.with_check(*entry)
        print(
            f"{subject.name} {job.tool}: {found.outcome}, {found.blocks} of {found.of} blocks, "
            f"{found.seconds} s",
            flush=True,
        )
        if found.outcome in ("found", "failed"):
            print(found.printed, flush=True)
        if out is not None:
            results.write(out)

    try:
        check_all(jobs, prepared.gpu, keep, processes=arguments.jobs, limit_s=arguments.limit_s)
    finally:
        print(*ran.summary(), sep="\n", flush=True)
    checks = [one for kernel in ran.kernels.values() for one in kernel.checks.values()]
    return 0 if all(one.outcome == "clean" for one in checks) else 1


def main(words: Sequence[str] | None = None, prepare: Prepare = prepare) -> int:
    """Run the command; exit code 0 if everything that ran is clean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="", help="Comma-separated names (default: all)")
    parser.add_argument("--tool", choices=TOOLS, help="Only this one (default: both)")
    parser.add_argument("--records", type=Path, default=RECORDS, help="Folder of record files")
    parser.add_argument("--out", type=Path, help="File to which results are added")
    parser.add_argument("--resume", action="store_true", help="Skip kernels found clean in --out")
    parser.add_argument("--jobs", type=_count, default=min(7, os.cpu_count() or 1))
    parser.add_argument(
        "--limit-s",
        type=float,
        default=LIMIT_S,
        help=f"Wall time for a kernel (default: {LIMIT_S:g})",
    )
    parser.add_argument(
        "--blocks",
        type=_count,
        help="Maximum blocks of a launch (default: all for memcheck, "
        f"{BLOCKS['racecheck']} for racecheck)",
    )
    arguments = parser.parse_args(words)
    try:
        with termination_as_interrupt():
            return run(arguments, prepare)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
