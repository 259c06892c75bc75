"""``gpuenergy gemm``: tunes, measures and profiles matrix products, named by their sizes."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from pytest_gpuenergy import (
    control,
    engine,
    kernels,
    pytest_plugin,
    replay,
    report as reports,
    tuners,
    tuning,
    workloads,
)
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_setpoint_options,
    count,
    path_argument,
    print_json,
    print_lines,
    tell,
)
from pytest_gpuenergy.commands.kernel_records import (
    add_product_options,
    product_kernels,
)
from pytest_gpuenergy.commands.tune import tune
from pytest_gpuenergy.commands.tune_options import (
    MAX_TRIALS,
    Wanted,
    add_device_options,
    add_search_options,
    distinct,
)
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import (
    InputError,
    UnavailableError,
    dump,
    interrupt_once,
    is_there,
    plain,
    run_child,
    terminal_width,
)

_GRAMMAR = (
    "Sizes such as 'M=1024 N=2048 K=3072', 'MN=1024 K=2048' or 'MNK=4096', several separated by "
    "';'; B=32 for a batch, groups=512,0,128 for groups of rows with a matrix B each, "
    "layout=nn|nt|tn|tt or several of them with commas, "
    "mode=float32|3xtf32|tf32|float16|bfloat16|e4m3|e5m2, bias=1, "
    "activation=relu|gelu|gelu_tanh|silu, residual=1, scaling=tensor|row|block, "
    "accumulation=float32|fast, quantize=1, lda=, ldb=, ldc= and distribution= as needed"
)
_RECORDS: dict[str, Any] = {
    "type": path_argument,
    "metavar": "DIR",
    "help": "Folder of record files (default: bench/records here or in a parent folder)",
}
_MODES: dict[str, Any] = {
    "metavar": "LIST",
    "help": "Modes of all products, such as 3xtf32,bfloat16, where SIZES names none (default: "
    "float32)",
}
_GOOD, _FAILED, _USAGE = 0, 1, 2  # exit codes
_SAVINGS = "product_savings.json"
_PLUGIN = "pytest_gpuenergy.pytest_plugin.benches.products"


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``gemm`` and its subcommands."""
    parser = add_command(
        subparsers,
        "gemm",
        None,
        summary=summary,
        example="""
gpuenergy gemm tune "MNK=1024 t=64; M=512 N=256 K=640" --out tuned
gpuenergy gemm perf "MNK=1024" --records tuned
gpuenergy gemm profile "MNK=1024 layout=nn" --records tuned --out profiles
""",
    )
    chosen = parser.add_subparsers(dest="gemm_command", required=True, metavar="COMMAND")
    tune_parser = add_command(
        chosen,
        "tune",
        _tune,
        summary="Search for fast or energy-efficient kernels of matrix products",
        description="Works like gpuenergy tune, for products named by their sizes. Each is tuned "
        "in the layouts nn and nt unless layout= chooses others.",
        example="""
gpuenergy gemm tune "MNK=1024" --trials 64 --out tuned
gpuenergy gemm tune "M=512 N=256 K=640 layout=nt t=64; MN=1024 K=2048 O=1" --out tuned
""",
    )
    tune_parser.add_argument(
        "sizes",
        nargs="+",
        metavar="SIZES",
        help=f"{_GRAMMAR}; t= is the same as --trials, O=0 as --tuner template, O=1 as --tuner tvm",
    )
    tune_parser.add_argument("--mode", **_MODES)
    add_search_options(tune_parser)
    add_device_options(tune_parser)
    tune_parser.set_defaults(quick=False)
    _add_perf(chosen)
    _add_profile(chosen)


def _add_perf(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "perf",
        _perf,
        summary="Verify and measure all contenders in matrix products",
        description="Runs bench/test_gemm.py of this project with pytest, also where there is no "
        "copy of it. Writes report.json, report.html, csv and, for each size, best_perf.txt. With "
        "--model, the products are those of a profiled model or a trace, and a last table says "
        "what each step would save with the best contender for each of them.",
        example="""
gpuenergy gemm perf "MNK=1024; M=512 N=256 K=640 layout=nt" --out results
gpuenergy gemm perf "MNK=4096 mode=bfloat16" --contender template --powercap all
gpuenergy gemm perf --model bloom/ --out results
""",
    )
    parser.add_argument("sizes", nargs="*", metavar="SIZES", help=_GRAMMAR)
    parser.add_argument("--mode", **_MODES)
    parser.add_argument(
        "--model",
        type=path_argument,
        metavar="RUN|TRACE",
        help="Measure the products of a folder of gpuenergy profile, or of a trace, in place of "
        "SIZES",
    )
    parser.add_argument(
        "--step", metavar="N", type=count, help="With --model: the decode step (default: 1)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="With --model: print what steps would save as JSON, and everything else to the error "
        "output",
    )
    parser.add_argument(
        "--contender",
        metavar="NAME[,NAME...]",
        help="Measure only these contenders, such as template,tvm (default: all)",
    )
    parser.add_argument("--records", **_RECORDS)
    parser.add_argument(
        "--cutlass",
        type=path_argument,
        metavar="PATH",
        help="Checkout of CUTLASS, or its folder of headers (default: those in the package "
        "nvidia-cutlass or apache-tvm)",
    )
    parser.add_argument(
        "--cutlass-profiler",
        type=path_argument,
        metavar="PATH",
        help="Program cutlass_profiler of a build of CUTLASS; its fastest kernel takes part as "
        "the contender cutlass_profiler",
    )
    parser.add_argument(
        "--out",
        type=path_argument,
        default=Path("gemm-results"),
        metavar="DIR",
        help="Where results are written (default: gemm-results)",
    )
    parser.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        help="GPU to use, as --gpu-device of pytest (default: auto)",
    )
    add_setpoint_options(parser, current=False)
    parser.add_argument(
        "--cache",
        choices=("hot", "cold"),
        help="Content of the L2 cache, as --gpuenergy-cache of pytest (default: hot; with --model "
        "cold, as a model's weights are)",
    )


def _tune(arguments: Namespace) -> int:
    requests = workloads.parse_requests(" ".join(arguments.sizes), arguments.mode)
    if any(request.in_background for request in requests):
        tell("O=65536 is ignored: to tune in the background, let the shell do so (nohup ... &).")
    return tune(arguments, distinct(_wanted(arguments, requests)))


def _wanted(arguments: Namespace, requests: Sequence[workloads.GemmRequest]) -> Iterator[Wanted]:
    asked: dict[workloads.Gemm, tuple[int | None, str | None]] = {}
    for request in requests:
        if request.trials is not None and request.trials > MAX_TRIALS:
            raise InputError(
                f"t of {request.workload.name} asks for {request.trials} trials: give at most "
                f"{MAX_TRIALS}."
            )
        options = (
            ("t", request.trials, "trials", arguments.trials),
            ("O", request.tuner, "tuner", arguments.tuner),
        )
        for letter, here, option, there in options:
            if None not in (here, there) and here != there:
                raise InputError(
                    f"{letter} of {request.workload.name} asks for {here}, but --{option} for "
                    f"{there}: give one of them."
                )
        for workload in request.layouts:
            how = (request.trials, request.tuner)
            if asked.setdefault(workload, how) != how:
                raise InputError(
                    f"{workload.name} is named twice, with another t or O: leave one out."
                )
            yield Wanted(workload, request.tuner, request.trials)


def _perf(arguments: Namespace) -> int:
    """Measure matrix products with pytest, and write each one's best kernels."""
    if arguments.model is None:
        if not arguments.sizes:
            raise InputError("Name matrix products by their sizes, or --model RUN.")
        for name in ("step", "json"):
            if getattr(arguments, name):
                raise InputError(f"--{name} is for --model RUN: give that too.")
        sizes = " ".join(arguments.sizes)
        products = workloads.measured_products(sizes, arguments.mode)
        if arguments.mode is None:
            return _measure(arguments, sizes)
        if notice := workloads.search_options_notice(sizes):
            tell(notice)
        return _measure(arguments, _sizes_of(products))
    if arguments.sizes:
        raise InputError("SIZES and --model name different products: give one of them.")
    if arguments.mode is not None:
        raise InputError(
            "--mode is for SIZES, and --model has products in the modes of the model: give one of "
            "them."
        )

    cold = arguments.cache != "hot"
    products_of_model = replay.model_products(arguments.model, arguments.step or 1, cold=cold)
    asked = [
        alternative
        for calls in products_of_model.products
        if calls.product is not None
        for alternative in replay.alternatives(calls.product)
    ]

    def show(report: reports.Report) -> None:
        savings = replay.product_savings(report, products_of_model)
        path = arguments.out / _SAVINGS
        reports.write_view(path, dump(savings))
        if arguments.json:
            print_json(plain(savings))
        else:
            print_lines(
                replay.savings_lines(savings, terminal_width(is_terminal=sys.stdout.isatty()))
            )
            print(path)

    return _measure(arguments, _sizes_of(dict.fromkeys(asked)), show)


def _sizes_of(products: Iterable[workloads.Gemm]) -> str:
    return "; ".join(map(workloads.sizes_text, products))


def _measure(
    arguments: Namespace, sizes: str, show: Callable[[reports.Report], None] | None = None
) -> int:
    """Run the bench of these products, write its outputs, and return the exit code.

    At the end, or after an interrupt, ``show`` is given the report if it has figures.
    """
    if arguments.records is not None:
        tuning.given_folder(arguments.records)
    tuners.check_cutlass(arguments.cutlass, arguments.cutlass_profiler)
    if arguments.contender is not None:
        contenders = [word.strip() for word in arguments.contender.split(",")]
        tuners.check_contenders(contenders, workloads.Gemm.kind)
        if tuners.CUTLASS_PROFILER in contenders and arguments.cutlass_profiler is None:
            raise InputError(
                f"The contender {tuners.CUTLASS_PROFILER} needs --cutlass-profiler PATH."
            )
    out, here = arguments.out, Path.cwd()
    document = out / "report.json"
    options = {
        "--gemm": sizes,
        "--gpuenergy-json": document,
        "--gpuenergy-html": out / "report.html",
        "--gpuenergy-csv": out / "csv",
        "--gpuenergy-cache": arguments.cache or ("hot" if arguments.model is None else "cold"),
        "--records": arguments.records,
        "--cutlass": arguments.cutlass,
        "--cutlass-profiler": arguments.cutlass_profiler,
        "--gpu-device": arguments.gpu_device,
        "--powercap": arguments.powercap,
        "--smclock": None if arguments.smclock == control.CURRENT_CLOCKS else arguments.smclock,
        "--gpuenergy-allow": arguments.allow,
        "--contenders": arguments.contender,
    }
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    benches = Path(pytest_plugin.__file__).with_name("benches")
    item = f"{benches / 'bench_items.py'}::test_gemm"
    # Use neither settings nor conftest files of the folder in which this package is installed.
    alone = ["-c", os.devnull, f"--rootdir={here}", f"--confcutdir={benches}"]
    pytest = [sys.executable, "-P", "-m", "pytest", "-p", _PLUGIN]
    written: list[Path] = []
    before, latest = _identity(document), reports.latest_run(here)
    try:
        with interrupt_once():
            shown: bool | Literal["as errors"] = "as errors" if arguments.json else True
            code = run_child([*pytest, *alone, *words, item], here, shown=shown).returncode
    finally:  # an interrupted run has results too
        # Another command may have begun a run here meanwhile: the report is this one's.
        run = document if _identity(document) != before else None
        if run is None and (found := reports.latest_run(here)) is not None:  # as on a full disk
            run = found.path if latest is None or found.path != latest.path else None
        if run is not None:
            report = reports.load_report(run)
            written = reports.write_best_perf(report, out)
            for path in written:
                print(path, file=sys.stderr if arguments.json else sys.stdout)
            if show is not None and report.measurements:
                show(report)
    if code == _GOOD and not written:
        raise UnavailableError("Nothing was measured, for the reasons above.")
    return code if code in (_GOOD, _FAILED) else _USAGE


def _identity(path: Path) -> tuple[int, int] | None:
    """Return an identity that changes if another file replaces this one; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _add_profile(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "profile",
        _profile,
        summary="Profile the kernels of matrix products with Nsight Compute",
        description="Writes the programs of gpuenergy kernels export --gemm, builds them with "
        "CMake and nvcc, and runs each under ncu with all of its sections. Clocks are not locked "
        "and caches not cleared.",
        example="""
gpuenergy gemm profile "MNK=4096 mode=3xtf32 layout=nn" --out profiles
ncu --import profiles/gemm_4096x4096x4096_nn_3xtf32.ncu-rep --page details
""",
    )
    parser.add_argument("sizes", nargs="+", metavar="SIZES", help=_GRAMMAR)
    parser.add_argument("--mode", **_MODES)
    add_product_options(parser)
    parser.add_argument("--records", **_RECORDS)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=path_argument,
        required=True,
        help="New or empty folder to write to",
    )


def _profile(arguments: Namespace) -> int:
    """Write, build and profile a program for each product."""
    sizes, out = " ".join(arguments.sizes), arguments.out.absolute()
    workloads.measured_products(sizes, arguments.mode)
    if arguments.contender is not None:
        tuners.check_text_contender(arguments.contender)
    try:
        if is_there(out) and any(out.iterdir()):
            raise InputError(
                f"The folder {out} is not empty: name a new one, so that profiles of different "
                "kernels never mix."
            )
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}.") from None
    with ExitStack() as stack:
        stack.enter_context(interrupt_once())
        device = stack.enter_context(open_device(arguments.gpu_device or "auto"))
        if device.emulated:
            raise InputError(
                f"Profiling takes a real GPU, and {device.name} is emulated here: run this where "
                "there is an NVIDIA GPU, or choose one with --gpu-device."
            )
        tools = kernels.profiling_tools()
        station = stack.enter_context(engine.Station(device))
        for sentence in station.restored:
            tell(sentence)
        chosen = product_kernels(
            sizes, arguments.mode, arguments.contender, device, arguments.records
        )
        gpu = device.uuid, device.name
        for profile in kernels.profile_kernels(chosen, tools, out, device.architecture, gpu):
            print(profile)
    return 0
