"""``gpuenergy tune``: searches fast kernels of a workload and writes its record file."""

from __future__ import annotations

import signal
import sys
import threading
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.commands import Subparsers, add_command, print_json, print_table
from pytest_gpuenergy.errors import InputError, KernelFault

if TYPE_CHECKING:
    from pytest_gpuenergy.devices.device import Device
    from pytest_gpuenergy.kernels.kernel import Kernel
    from pytest_gpuenergy.tuning.tuner import Measure, TuneResult
    from pytest_gpuenergy.workloads.conv2d import Conv2d
    from pytest_gpuenergy.workloads.workload import Workload

_LOCK_WAIT_S = 2.0
_MOST_KEPT = 25
_MOST_TRIALS = 100_000


def add_parser(subparsers: Subparsers) -> None:
    """Add ``tune``."""
    parser = add_command(
        subparsers,
        "tune",
        run,
        summary="Search fast kernels of a workload with TVM and keep representatives of them",
        description="A folder that holds an earlier search of the same workload on the same GPU "
        "is continued; with --trials 0 the representatives are only chosen again.",
        example="""
gpuenergy tune --case case5 --trials 64 --out tuned
gpuenergy tune --case case1,case2 --trials 200 --no-energy --out tuned --gpu-device 0
""",
    )
    parser.add_argument(
        "--case",
        action="append",
        required=True,
        metavar="NAME[,NAME...]",
        help="Workloads to tune, or all; may be repeated",
    )
    parser.add_argument(
        "--trials",
        type=_between(0, _MOST_TRIALS),
        default=64,
        metavar="N",
        help="Candidates to time for each workload (default: 64)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="Where record files are written"
    )
    parser.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, a UUID, or emulated[:PROFILE][xN] (default: auto)",
    )
    parser.add_argument(
        "--seed",
        type=_between(0, 2**30),
        default=0,
        metavar="N",
        help="Seed of the search (default: 0)",
    )
    parser.add_argument(
        "--keep",
        type=_between(1, _MOST_KEPT),
        default=_MOST_KEPT,
        metavar="N",
        help="Kernels to keep for each workload (default: 25)",
    )
    parser.add_argument(
        "--no-energy",
        action="store_true",
        help="Do not measure power and energy of the kernels that are kept",
    )
    parser.add_argument("--json", action="store_true", help="Print the outcome as JSON")


def run(arguments: Namespace) -> int:
    """Tune all the cases asked for, one after the other."""
    import os

    from pytest_gpuenergy.devices.lock import gpu_lock
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.tuning.metaschedule import SearchSettings
    from pytest_gpuenergy.tuning.requirements import check_tvm
    from pytest_gpuenergy.tuning.tuner import Tuner
    from pytest_gpuenergy.verification import verify

    workloads = _workloads(arguments.case)
    check_tvm()
    threads = len(os.sched_getaffinity(0))
    settings = SearchSettings(arguments.trials, arguments.seed, threads)
    results: list[TuneResult] = []
    with ExitStack() as stack:
        device = stack.enter_context(open_device(arguments.gpu_device))
        stack.enter_context(gpu_lock(device, wait_s=_LOCK_WAIT_S))
        stop = stack.enter_context(_stop_on_interrupt())
        measure = None if arguments.no_energy else _measure_with(device)
        tuner = Tuner(device, arguments.out, arguments.keep, verify, measure, _tell, stop)
        results.extend(tuner.tune(workload, settings) for workload in workloads)
    _report(results, as_json=arguments.json)
    return 0


def _workloads(names: list[str]) -> list[Conv2d]:
    from pytest_gpuenergy.workloads.table import CASES, find_workload

    wanted = [name.strip() for words in names for name in words.split(",") if name.strip()]
    if not wanted:
        raise InputError(f"--case names no workload: choose one of {', '.join(CASES)}, or all.")
    if "all" in wanted:
        wanted = list(CASES)
    return [find_workload(name) for name in dict.fromkeys(wanted)]


def _measure_with(device: Device) -> Measure:
    """A function that measures a kernel at the power limit that the card has."""
    from pytest_gpuenergy.energy.lease import enforced_limit_w
    from pytest_gpuenergy.harness import Harness, Subject
    from pytest_gpuenergy.kernels.records import Measured

    harness = Harness(device)

    def measure(device: Device, kernel: Kernel, workload: Workload) -> Measured | None:
        limit_w = enforced_limit_w(device)
        subject = Subject("tune", kernel.short_digest, enforced_power_limit_w=limit_w)
        found = harness.measure_kernel(kernel, workload, subject)
        if found.outcome != "correct":
            raise KernelFault(found.outcome, found.error or "it failed.")
        if found.time_ms is None or found.power_w is None or found.energy_mj is None:
            _tell(f"{workload.name}: no energy of {kernel.short_digest}: {found.error}")
            return None
        if limit_w is None:
            return None
        return Measured(found.time_ms, found.power_w, found.energy_mj, limit_w)

    return measure


@contextmanager
def _stop_on_interrupt() -> Iterator[Event]:
    """An event that the first Ctrl-C or termination sets; a second one ends the process."""
    stop = Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def on_signal(number: int, frame: object) -> None:  # noqa: ARG001
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    prior = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in prior.items():
            signal.signal(number, handler)


def _report(results: list[TuneResult], *, as_json: bool) -> None:
    if as_json:
        print_json([{**vars(result), "path": str(result.path)} for result in results])
        return
    header = ("workload", "trials", "valid", "kept", "replaced", "best ms", "s", "file")
    rows = [
        (
            result.workload,
            str(result.tried),
            str(result.valid),
            str(result.kept),
            str(len(result.rejected)),
            f"{result.best_ms:.4g}",
            f"{result.elapsed_s:.0f}",
            str(result.path),
        )
        for result in results
    ]
    print_table(header, rows)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> Any:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number
