"""The options of ``gpuenergy tune``, and the settings made from them."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import tell
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.tvm.settings import SPACES, STRATEGIES, SearchSettings

if TYPE_CHECKING:
    from pytest_gpuenergy.tuning.tuner import TuneSettings
    from pytest_gpuenergy.workloads.workload import Workload

_MOST_KEPT = 25
_MOST_TRIALS = 30_000  # their database has less than 1 GiB, the most that is read
_TRIALS = 1000
_QUICK_TRIALS = 100
_QUICK_KEPT = 2


def add_workload_options(parser: ArgumentParser) -> None:
    """Add the options that name workloads."""
    group = parser.add_argument_group("workloads (default: all seven cases)")
    group.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="Workloads by name, including your project's own, or all for the cases; may be "
        "repeated",
    )
    group.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="cases, resnet, yolo, gemm, or project for your own; may be repeated",
    )
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="[NAME=][KIND:]SIZES",
        help="A workload by its sizes; without KIND a convolution, "
        "N,H,W,CO,CI,KH,KW,STRIDE,PADDING[,DILATION[,GROUPS]]; may be repeated",
    )
    group.add_argument(
        "--quick",
        action="store_true",
        help=f"Only the first and the last workload, {_QUICK_TRIALS} trials, {_QUICK_KEPT} kernels",
    )


def add_search_options(parser: ArgumentParser) -> None:
    """Add the options of the search itself."""
    group = parser.add_argument_group("search")
    group.add_argument(
        "--trials",
        type=_between(0, _MOST_TRIALS),
        metavar="N",
        help=f"Candidates to time for each workload (default: {_TRIALS})",
    )
    group.add_argument(
        "--objective",
        choices=METRICS,
        default="time",
        help="What to minimize; for energy and edp, the power of promising trials is measured too "
        "(default: time)",
    )
    group.add_argument(
        "--space",
        choices=SPACES,
        default="all",
        help="Schedules to consider: TVM's own (direct), those as a matrix product (gemm), or all "
        "(default: all)",
    )
    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="evolutionary",
        help="evolutionary learns from the times; replay-trace draws at random (default: "
        "evolutionary)",
    )
    group.add_argument(
        "--seed",
        type=_between(0, 2**30),
        default=0,
        metavar="N",
        help="Seed of the search (default: 0)",
    )
    group.add_argument(
        "--threads",
        type=_between(1, 1024),
        metavar="N",
        help="CPU cores for the search (default: all)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="Continue the searches in --out; --trials includes their trials",
    )


def add_device_options(parser: ArgumentParser) -> None:
    """Add the options for the GPU and the results."""
    group = parser.add_argument_group("device and results")
    group.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="Where record files are written"
    )
    group.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, a UUID, or emulated[:PROFILE][xN] (default: auto)",
    )
    group.add_argument(
        "--powercap",
        metavar="CAP",
        default="current",
        help="One power limit to tune under: 1 to 5, watts such as 300W, or current, which leaves "
        "the card as it is (default: current)",
    )
    group.add_argument(
        "--keep",
        type=_between(1, _MOST_KEPT),
        metavar="N",
        help=f"Kernels to keep for each workload (default: {_MOST_KEPT})",
    )
    group.add_argument(
        "--no-energy",
        action="store_true",
        help="Do not measure power and energy of the kept kernels",
    )
    group.add_argument("--json", action="store_true", help="Print the outcome as JSON")


def chosen_workloads(arguments: Namespace) -> list[Workload]:
    """The workloads to tune, one of each shape; the others are reported.

    Raises:
        InputError: there is no such workload or network, or a shape is not understood.
    """
    from pytest_gpuenergy.workloads.table import choose_workloads, distinct_shapes

    named = arguments.case or arguments.network or arguments.shape
    chosen = choose_workloads(
        arguments.case if named else ["all"], arguments.network, arguments.shape, Path.cwd()
    )
    distinct = distinct_shapes(chosen)
    for first, others in distinct.items():
        for other in others:
            tell(f"{other.name}: has the same shape as {first.name} and uses its records")
    workloads = list(distinct)
    if arguments.quick:
        workloads = list(dict.fromkeys((workloads[0], workloads[-1])))
    return workloads


def tune_settings(arguments: Namespace) -> TuneSettings:
    """What the tuner is asked for."""
    from pytest_gpuenergy.tuning.tuner import TuneSettings

    quick = arguments.quick
    return TuneSettings(
        trials=_given(arguments.trials, _QUICK_TRIALS if quick else _TRIALS),
        keep=_given(arguments.keep, _QUICK_KEPT if quick else _MOST_KEPT),
        objective=Metric(arguments.objective),
        energy=not arguments.no_energy,
        resume=arguments.resume,
    )


def search_settings(arguments: Namespace, trials: int) -> SearchSettings:
    """How TVM searches for ``trials`` candidates."""
    import os

    threads = _given(arguments.threads, len(os.sched_getaffinity(0)))
    settings = SearchSettings(arguments.seed, threads, arguments.strategy, arguments.space)
    return settings.for_trials(trials)


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number
