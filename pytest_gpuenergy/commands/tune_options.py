"""The options of ``gpuenergy tune``, and the settings made from them."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy import tuning, workloads
from pytest_gpuenergy.commands.command_line import (
    add_clock_options,
    number,
    path_argument,
    tell,
)
from pytest_gpuenergy.commands.kernel_records import add_variant_options, chosen_variants
from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.tuners import SPACES, STRATEGIES, SearchSettings
from pytest_gpuenergy.tuning import TUNER_NAMES, TunerName

if TYPE_CHECKING:
    from pytest_gpuenergy.tuning import TuneSettings
    from pytest_gpuenergy.workloads import Workload

OUT = Path("tuned")
"""The default folder of record files."""

MAX_TRIALS = 30_000
"""The most trials of one search, whose database is then smaller than the 1 GiB that is read."""
_MAX_KEPT = 25
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
        help="Workloads by name, including your project's own, 5 for case5, or all for the cases; "
        "may be repeated",
    )
    group.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="Workloads of these networks: cases, resnet, yolo, gemm, or project for your own; "
        "may be repeated",
    )
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="[NAME=][KIND:]SIZES",
        help="A workload by its sizes; without KIND a convolution, "
        "N,H,W,CO,CI,KH,KW,STRIDE,PADDING[,DILATION[,GROUPS]] [mode=...] [layout=nhwc] [bias=1] "
        "[relu=1]; may be repeated",
    )
    add_variant_options(group)
    group.add_argument(
        "--quick",
        action="store_true",
        help=f"Only the first and the last workload, {_QUICK_TRIALS} trials, and the {_QUICK_KEPT} "
        "fastest kernels",
    )


def add_search_options(parser: ArgumentParser) -> None:
    """Add the options of the search itself."""
    group = parser.add_argument_group("search")
    group.add_argument(
        "--trials",
        type=_trials,
        metavar="N",
        help=f"Candidates to time for each workload (default: {_TRIALS})",
    )
    group.add_argument(
        "--objective",
        choices=[str(metric) for metric in METRICS],
        default="time",
        help="What to minimize; for energy and edp, the power of promising trials is measured too "
        "(default: time)",
    )
    group.add_argument(
        "--tuner",
        choices=TUNER_NAMES,
        help="template searches the parameters of our templates for matrix products and "
        "convolutions, tvm the schedules of MetaSchedule (default: tvm for convolutions in "
        "float32 and NCHW without groups, bias or ReLU, otherwise template)",
    )
    group.add_argument(
        "--space",
        choices=SPACES,
        default="all",
        help="Schedules of TVM to consider: its own (direct), those of a matrix product in padded "
        "tiles (gemm), or all (default: all)",
    )
    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="evolutionary",
        help="How TVM searches: evolutionary learns from the times; replay-trace draws at random "
        "(default: evolutionary)",
    )
    group.add_argument(
        "--seed",
        type=number(int, 0, 2**30),
        default=0,
        metavar="N",
        help="Seed of TVM's search (default: 0)",
    )
    group.add_argument(
        "--threads",
        type=number(int, 1, 1024),
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
        "--out",
        type=path_argument,
        default=OUT,
        metavar="DIR",
        help=f"Where record files are written (default: {OUT})",
    )
    group.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, a UUID, emulated[:PROFILE][xN], or several of these, separated by "
        "commas: candidates are then timed on all of them (default: auto)",
    )
    group.add_argument(
        "--fleet",
        metavar="HOSTS",
        help="Use the GPUs of other hosts, named as for --gpuenergy-fleet of pytest: ray, "
        "ray://HEAD:10001, ssh:HOST,HOST2 or slurm:'OPTIONS OF SRUN' xN; --gpu-device is then auto "
        "or emulated",
    )
    group.add_argument(
        "--powercap",
        metavar="CAP",
        default="current",
        help="One power limit to tune under: 1 to 5, watts such as 300W, or current, which leaves "
        "the card as it is (default: current)",
    )
    add_clock_options(group, several=False)
    group.add_argument(
        "--keep",
        type=number(int, 1, _MAX_KEPT),
        metavar="N",
        help=f"Kernels to keep for each workload (default: {_MAX_KEPT})",
    )
    group.add_argument(
        "--no-energy",
        action="store_true",
        help="Do not measure power and energy of the kept kernels",
    )
    group.add_argument("--json", action="store_true", help="Print the outcome as JSON")


@dataclass(frozen=True)
class Wanted:
    """A workload to tune; a member that is None is taken from the options or has its default."""

    workload: Workload
    tuner: TunerName | None = None
    trials: int | None = None


def chosen_workloads(arguments: Namespace) -> list[Wanted]:
    """Return the workloads that the options name.

    Raises:
        InputError: there is no such workload or network, or a shape is not understood.
    """
    named = arguments.case or arguments.network or arguments.shape
    chosen = distinct(
        Wanted(workload)
        for workload in workloads.choose_workloads(
            arguments.case if named else ["all"],
            arguments.network,
            arguments.shape,
            Path.cwd(),
            chosen_variants(arguments),
        )
    )
    return list(dict.fromkeys((chosen[0], chosen[-1]))) if arguments.quick else chosen


def distinct(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Return one workload of each shape, tuner by tuner, and report the others."""
    by_tuner: dict[TunerName | None, dict[Workload, Wanted]] = {}
    for wish in wanted:
        by_tuner.setdefault(wish.tuner, {}).setdefault(wish.workload, wish)
    chosen = []
    for by_workload in by_tuner.values():
        for first, others in workloads.distinct_shapes(by_workload).items():
            chosen.append(by_workload[first])
            for other in others:
                tell(f"{other.name}: has the same shape as {first.name} and uses its records")
    return chosen


@dataclass(frozen=True)
class Group:
    """Workloads with the same tuner and the same number of trials."""

    workloads: tuple[Workload, ...]
    tuner: TunerName
    settings: TuneSettings
    search: SearchSettings


def grouped(arguments: Namespace, wanted: Sequence[Wanted]) -> list[Group]:
    """Group the workloads that are tuned alike, in their order."""
    quick = arguments.quick
    threads = _given(arguments.threads, len(os.sched_getaffinity(0)))
    search = SearchSettings(arguments.seed, threads, arguments.strategy, arguments.space)

    def tuner_and_trials(wish: Wanted) -> tuple[TunerName, int]:
        tuner = wish.tuner or arguments.tuner or tuning.usual_tuner(wish.workload)
        usual = _given(arguments.trials, _QUICK_TRIALS if quick else _TRIALS)
        return tuner, _given(wish.trials, usual)

    groups = []
    for (tuner, trials), alike in groupby(wanted, tuner_and_trials):
        settings = tuning.TuneSettings(
            trials=trials,
            keep=_given(arguments.keep, _QUICK_KEPT if quick else _MAX_KEPT),
            objective=Metric(arguments.objective),
            energy=not arguments.no_energy,
            resume=arguments.resume,
            best_only=quick,
        )
        workloads = tuple(wish.workload for wish in alike)
        groups.append(Group(workloads, tuner, settings, search.for_trials(trials)))
    return groups


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _trials(text: str) -> int:
    if text and not text.strip("0"):
        raise ArgumentTypeError(
            "0 asks for no trials: give at least 1; with --resume, earlier trials count"
        )
    return int(number(int, 1, MAX_TRIALS)(text))
