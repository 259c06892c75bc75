"""``gpuenergy tune``: searches fast kernels of a workload and writes its record file."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.commands import Subparsers, add_command, print_json, print_table, tell
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.tvm.settings import SPACES, STRATEGIES, SearchSettings

if TYPE_CHECKING:
    from pytest_gpuenergy.control.setpoint import Setpoint
    from pytest_gpuenergy.devices.device import Device
    from pytest_gpuenergy.tuning.outcome import TuneResult
    from pytest_gpuenergy.tuning.tuner import TuneSettings
    from pytest_gpuenergy.workloads.workload import Workload

_LOCK_WAIT_S = 2.0
_MOST_KEPT = 25
_MOST_TRIALS = 30_000  # which make a database of less than 1 GiB, the largest that is read
_TRIALS = 1000
_QUICK_TRIALS = 100
_QUICK_KEPT = 2


def add_parser(subparsers: Subparsers) -> None:
    """Add ``tune``."""
    parser = add_command(
        subparsers,
        "tune",
        run,
        summary="Search fast or thrifty kernels of workloads with TVM and keep the best and others",
        description="Workloads are tuned one after the other; of equal shapes only the first. "
        "What was tried is on disk at once: a search that was ended goes on with --resume.",
        example="""
gpuenergy tune --quick --out tuned
gpuenergy tune --case case1,case2 --trials 200 --no-energy --out tuned --gpu-device 0
gpuenergy tune --network resnet --objective edp --powercap 3 --out tuned
gpuenergy tune --shape stem=1,224,224,64,3,7,7,2,3 --out tuned --resume
""",
    )
    which = parser.add_argument_group("workloads (default: all seven cases)")
    which.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="Names, your project's own among them, or all for the cases; may be repeated",
    )
    which.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="cases, resnet, yolo, or project for your own; may be repeated",
    )
    which.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="[NAME=]N,H,W,CO,CI,KH,KW,STRIDE,PADDING[,DILATION[,GROUPS]]",
        help="A convolution by its sizes, or KIND:SIZES of another kind; may be repeated",
    )
    which.add_argument(
        "--quick",
        action="store_true",
        help=f"Only the first and the last of them, {_QUICK_TRIALS} trials, {_QUICK_KEPT} kernels",
    )
    how = parser.add_argument_group("search")
    how.add_argument(
        "--trials",
        type=_between(0, _MOST_TRIALS),
        metavar="N",
        help=f"Candidates to time for each workload (default: {_TRIALS})",
    )
    how.add_argument(
        "--objective",
        choices=METRICS,
        default="time",
        help="What to minimize; of energy and edp, the power of promising trials is measured too "
        "(default: time)",
    )
    how.add_argument(
        "--space",
        choices=SPACES,
        default="all",
        help="Schedules to look at: TVM's own, those as a matrix product, or all (default: all)",
    )
    how.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="evolutionary",
        help="evolutionary learns from the times; replay-trace draws at random (default: "
        "evolutionary)",
    )
    how.add_argument(
        "--seed",
        type=_between(0, 2**30),
        default=0,
        metavar="N",
        help="Seed of the search (default: 0)",
    )
    how.add_argument(
        "--threads",
        type=_between(1, 1024),
        metavar="N",
        help="Processor cores for the search (default: all)",
    )
    how.add_argument(
        "--resume",
        action="store_true",
        help="Go on with the searches in --out; --trials counts what they have tried",
    )
    where = parser.add_argument_group("device and results")
    where.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="Where record files are written"
    )
    where.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, a UUID, or emulated[:PROFILE][xN] (default: auto)",
    )
    where.add_argument(
        "--powercap",
        metavar="CAP",
        default="current",
        help="One power limit to tune under: 1 to 5, watts such as 300W, or current, which leaves "
        "the card as it is (default: current)",
    )
    where.add_argument(
        "--keep",
        type=_between(1, _MOST_KEPT),
        metavar="N",
        help=f"Kernels to keep for each workload (default: {_MOST_KEPT})",
    )
    where.add_argument(
        "--no-energy",
        action="store_true",
        help="Do not measure power and energy of the kernels that are kept",
    )
    where.add_argument("--json", action="store_true", help="Print the outcome as JSON")


def run(arguments: Namespace) -> int:
    """Tune all the workloads asked for, one after the other."""
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.engine.station import Station
    from pytest_gpuenergy.support.signals import interrupt_once
    from pytest_gpuenergy.tuning.confirm import confirm_with
    from pytest_gpuenergy.tuning.outcome import is_kept, keep_outcome
    from pytest_gpuenergy.tuning.progress import live_stream
    from pytest_gpuenergy.tuning.tuner import Tuner
    from pytest_gpuenergy.tvm.requirements import check_tvm
    from pytest_gpuenergy.tvm.space import TvmSpace
    from pytest_gpuenergy.tvm.store import KernelStore

    workloads = _workloads(arguments)
    check_tvm()
    settings = _settings(arguments)
    search = _search_settings(arguments, settings.trials)
    results: list[TuneResult] = []
    with ExitStack() as stack:
        stack.callback(_report, results, as_json=arguments.json)  # whatever ends the tuning
        stack.enter_context(interrupt_once(stop := Event()))
        device = stack.enter_context(open_device(arguments.gpu_device))
        station = stack.enter_context(Station(device, lock_wait_s=_LOCK_WAIT_S))
        for sentence in station.restored:
            tell(sentence)
        stack.enter_context(station.under(_one_setpoint(device, arguments.powercap)))
        store = stack.enter_context(KernelStore(search.threads))
        tuner = Tuner(
            device=device,
            make_space=lambda workload: TvmSpace(workload, device, store, search),
            folder=arguments.out,
            settings=settings,
            confirm=confirm_with(station, energy=settings.energy, tell=tell),
            tell=tell,
            live=live_stream(),
            stop=stop,
            is_kept=partial(is_kept, arguments.out),
        )
        for result in tuner.tune(workloads):
            results.append(result)
            keep_outcome(arguments.out, result)
    return 0


def _settings(arguments: Namespace) -> TuneSettings:
    from pytest_gpuenergy.tuning.tuner import TuneSettings

    quick = arguments.quick
    return TuneSettings(
        trials=_given(arguments.trials, _QUICK_TRIALS if quick else _TRIALS),
        keep=_given(arguments.keep, _QUICK_KEPT if quick else _MOST_KEPT),
        objective=Metric(arguments.objective),
        energy=not arguments.no_energy,
        resume=arguments.resume,
    )


def _search_settings(arguments: Namespace, trials: int) -> SearchSettings:
    import os

    threads = _given(arguments.threads, len(os.sched_getaffinity(0)))
    settings = SearchSettings(arguments.seed, threads, arguments.strategy, arguments.space)
    return settings.for_trials(trials)


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _workloads(arguments: Namespace) -> list[Workload]:
    from pytest_gpuenergy.workloads.table import choose_workloads, distinct_shapes

    named = arguments.case or arguments.network or arguments.shape
    chosen = choose_workloads(
        arguments.case if named else ["all"], arguments.network, arguments.shape, Path.cwd()
    )
    distinct = distinct_shapes(chosen)
    for first, others in distinct.items():
        for other in others:
            tell(f"{other.name}: has the shape of {first.name}, whose records serve it")
    workloads = list(distinct)
    if arguments.quick:
        workloads = list(dict.fromkeys((workloads[0], workloads[-1])))
    return workloads


def _one_setpoint(device: Device, text: str) -> Setpoint:
    from pytest_gpuenergy.control.tables import NamedSetpoints

    found = NamedSetpoints.of(device, text, Path.cwd()).setpoints
    if len(found) != 1:
        raise InputError(
            f"--powercap {text}: a search takes one power limit: give one, or current."
        )
    return found[0]


def _report(results: list[TuneResult], *, as_json: bool) -> None:
    if as_json:
        print_json([{**vars(result), "path": str(result.path)} for result in results])
        return
    if not results:
        return
    header = (
        "workload",
        "trials",
        "valid",
        "kept",
        "replaced",
        "best ms",
        "GFLOP/s",
        "s",
        "J",
        "file",
    )
    rows = [
        (
            result.workload,
            str(result.tried),
            str(result.valid),
            str(result.kept),
            str(len(result.rejected)),
            f"{result.best_ms:.4g}",
            f"{result.best_gflops:.0f}",
            f"{result.elapsed_s:.0f}",
            "" if result.energy_j is None else f"{result.energy_j:.0f}",
            str(result.path),
        )
        for result in results
    ]
    print_table(header, rows)


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> Any:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number
