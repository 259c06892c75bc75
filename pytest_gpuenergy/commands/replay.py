"""``gpuenergy replay``: whose joules the joules of a language model are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import Subparsers, add_command, print_json, print_lines, tell
from pytest_gpuenergy.commands.profile import torch_device

if TYPE_CHECKING:
    from pytest_gpuenergy.replay.replaying import ReplayReport

_SHOWN = 10


def add_parser(subparsers: Subparsers) -> None:
    """Add ``replay``."""
    parser = add_command(
        subparsers,
        "replay",
        run,
        summary="Replay a profiled model's calls alone, and account for its energy",
        description="Makes each unique call of an operator again, alone and as a CUDA graph, with "
        "the arguments that it had in the model; measures its time and energy; measures the "
        "prefill and a decode step as wholes; and shows how far the sum accounts for them. Needs a "
        "real GPU and the extra replay.",
        example="""
gpuenergy profile bloom-560m --out bloom/
gpuenergy replay bloom/
""",
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="Folder of gpuenergy profile")
    parser.add_argument(
        "--gpu-device", metavar="DEVICE", default="auto", help="auto, an index, or a UUID"
    )
    parser.add_argument(
        "--cache",
        choices=("model", "hot", "cold"),
        default="model",
        help="model: the weights of each layer in turn, other arguments in the L2 cache; hot: one "
        "call's arguments; cold: more arguments in turn than the cache holds (default: model)",
    )
    parser.add_argument(
        "--step", metavar="N", type=int, default=1, help="The decode step to replay (default: 1)"
    )
    parser.add_argument(
        "--kernels",
        metavar="LIST",
        default="",
        help="Ids of the calls or kernels to replay, separated by commas (default: all)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="Keep what an earlier replay has measured"
    )
    parser.add_argument("--json", action="store_true", help="Print the report as JSON")


def run(arguments: Namespace) -> int:
    """Replay, write the report, and print a summary."""
    from pytest_gpuenergy.replay.models import check_packages
    from pytest_gpuenergy.replay.replaying import REPORT_JSON, Replay, read_profile
    from pytest_gpuenergy.support.json_output import plain

    check_packages()
    read_profile(arguments.folder)
    with ExitStack() as stack:
        device, station = torch_device(arguments.gpu_device, stack)
        replay = Replay(
            arguments.folder,
            station,
            device,
            arguments.cache,
            arguments.step,
            [name.strip() for name in arguments.kernels.split(",") if name.strip()],
            announce=tell,
        )
        if arguments.resume:
            replay.resume()
        report = replay.run()
    if arguments.json:
        print_json(plain(report))
    else:
        print_lines([*_terminal(report), "", f"written to {arguments.folder / REPORT_JSON}"])
    return 0


def _terminal(report: ReplayReport) -> Iterator[str]:
    from pytest_gpuenergy.replay.account import GRAPH
    from pytest_gpuenergy.support.text import aligned

    yield f"{report.profile.model} on {report.gpu}, {report.idle_w:.1f} W between launches"
    for one in report.accounts:
        what = "prefill" if one.step == 0 else f"decode step {one.step}"
        yield ""
        yield (
            f"{what}, {one.level}: {one.energy_mj:.4g} mJ and {one.time_ms:.4g} ms measured; "
            f"predicted {one.predicted_mj:.4g} mJ ({one.energy_error:+.1%}), its calls take "
            f"{one.kernels_ms:.4g} ms ({one.time_error:+.1%})"
        )
        yield (
            f"  calls {one.kernels_mj:.4g} mJ ±{one.kernels_mj_half_width:.2g}, temperature "
            f"{one.temperature_mj:+.3g}, gaps {one.gaps_mj:+.3g}, residual {one.residual_mj:+.3g}; "
            f"{one.coverage:.1%} of the GPU time replayed"
        )
        if one.limited:
            yield (
                f"  the power limit held {len(one.limited)} calls back alone, but not in the step: "
                f"{', '.join(one.limited)}"
            )
    for one in report.accounts:
        if one.level != GRAPH:
            continue
        total_mj = sum(part.energy_mj for part in one.parts) or 1.0
        rows = [
            (
                part.call,
                str(part.calls),
                f"{part.time_ms:.4g}",
                f"{part.energy_mj:.4g}",
                f"{part.energy_mj / total_mj:.1%}",
                part.operator,
            )
            for part in one.parts[:_SHOWN]
        ]
        header = ("call", "calls", "ms", "mJ", "energy", "operator")
        yield from ("", f"step {one.step}", *aligned([header, *rows]))
    if report.missing:
        reasons: dict[str, list[str]] = {}
        for key, why in report.missing.items():
            reasons.setdefault(why, []).append(key)
        yield from (
            "",
            "not replayed",
            *(f"{', '.join(keys)}: {why}" for why, keys in reasons.items()),
        )
