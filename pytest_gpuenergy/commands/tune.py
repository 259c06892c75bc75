"""``gpuenergy tune``: searches for kernels of workloads and writes their record files."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Event

from pytest_gpuenergy import engine, fleet as fleets, tuners, tuning
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    print_json,
    print_table,
    tell,
)
from pytest_gpuenergy.commands.tune_options import (
    Wanted,
    add_device_options,
    add_search_options,
    add_workload_options,
    chosen_workloads,
    grouped,
)
from pytest_gpuenergy.support import interrupt_once


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``tune``."""
    parser = add_command(
        subparsers,
        "tune",
        run,
        summary=summary,
        description="Workloads are tuned one after the other, and of equal shapes only the first. "
        "Trials are written to disk immediately, so an interrupted search can be continued with "
        "--resume. Searches that are already complete are left as they are, and are named.",
        example="""
gpuenergy tune --quick
gpuenergy tune --case case1,case2 --trials 200 --no-energy --out tuned --gpu-device 0
gpuenergy tune --network resnet --objective edp --powercap 3 --out tuned
gpuenergy tune --network cases --fleet ssh:node1,node2 --out tuned
gpuenergy tune --shape stem=1,224,224,64,3,7,7,2,3 --out tuned --resume
gpuenergy tune --case case2 --mode 3xtf32 --objective edp --out tuned
gpuenergy tune --network resnet --mode tf32,float16 --layout nhwc --out tuned
gpuenergy tune --shape "gemm:MNK=1024 layout=nt" --tuner template --out tuned
""",
    )
    add_workload_options(parser)
    add_search_options(parser)
    add_device_options(parser)


def run(arguments: Namespace) -> int:
    """Tune all requested workloads, one after the other."""
    return tune(arguments, chosen_workloads(arguments))


def tune(arguments: Namespace, wanted: Sequence[Wanted]) -> int:
    """Tune workloads one after the other, with the options of `tune_options`."""
    groups = grouped(arguments, wanted)
    results: list[tuning.TuneResult] = []
    with ExitStack() as stack:
        stack.callback(_report, results, as_json=arguments.json)  # whatever ends the tuning
        stack.enter_context(interrupt_once(stop := Event()))
        spaces = stack.enter_context(tuners.Spaces())
        for tuner_name in {group.tuner for group in groups}:
            spaces.check(tuner_name)
        gpus = _claim(stack, arguments)
        gpus.begin(energy=all(group.settings.energy for group in groups))
        for group in groups:
            tuner = tuning.Tuner(
                gpus=gpus,
                make_space=spaces.of(group.tuner, gpus.devices[0], group.search),
                folder=arguments.out,
                settings=group.settings,
                tell=tell,
                live=tuning.live_stream(),
                stop=stop,
                is_kept=tuning.is_kept,
            )
            for result in tuner.tune(group.workloads):
                results.append(result)
                tuning.keep_outcome(arguments.out, result)
        complete = sum(len(group.workloads) for group in groups) - len(results)
        if complete and not arguments.json:
            stack.callback(print, f"already complete: {complete} of {complete + len(results)}")
    return 0


def _claim(stack: ExitStack, arguments: Namespace) -> tuning.TuningGpus:
    """Claim the GPUs that the options name, of this host or a fleet, until the stack is closed.

    Raises:
        InputError: there are none, or they are of several models.
        DeviceError: a GPU cannot be claimed, or a host does not answer.
    """
    settings = engine.Settings(arguments.powercap, arguments.smclock, arguments.allow == "clocks")
    if arguments.fleet is None:
        gpus = engine.claim_gpus(stack, arguments.gpu_device, settings, tell, "--gpu-device")
        return tuning.TuningGpus.of_this_host(gpus, tell)

    fleet = fleets.parse_fleet(arguments.fleet, "--fleet")
    return fleets.claim_fleet(stack, fleet, arguments.gpu_device, settings, tell, "--fleet")


def _report(results: list[tuning.TuneResult], *, as_json: bool) -> None:
    if as_json:
        print_json([{**vars(result), "path": str(result.path)} for result in results])
        return
    if not results:
        return
    print(results[0].gpu)  # which says whether it is emulated
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
