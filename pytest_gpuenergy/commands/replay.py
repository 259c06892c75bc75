"""``gpuenergy replay``: whose joules the joules of a language model are."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import Subparsers, add_command, print_json, print_lines, tell

if TYPE_CHECKING:
    from pytest_gpuenergy.replay.account import Account, Saving
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
        "real GPU and the extra replay; an emulated GPU replays the figures that a real one has "
        "recorded in RUN.",
        example="""
gpuenergy profile bloom-560m --out bloom/
gpuenergy replay bloom/
gpuenergy replay bloom/ --powercap 300W,500W,700W --resume
gpuenergy replay bloom/ --gpu-device emulated:h200 --powercap all
""",
    )
    parser.add_argument(
        "folder", metavar="RUN", type=Path, nargs="?", help="Folder of gpuenergy profile"
    )
    parser.add_argument(
        "--gpu-device",
        "--gpu",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, a UUID, or emulated[:PROFILE] (default: auto)",
    )
    parser.add_argument(
        "--powercap",
        metavar="LIST",
        default="current",
        help="Power limits to measure everything under, as for pytest (default: current)",
    )
    parser.add_argument(
        "--cache",
        choices=("model", "hot", "cold"),
        default="model",
        help="what the L2 cache holds: model: what the model found there; hot: the tensors of one "
        "call; cold: nothing (default: model)",
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        default="",
        help="Replay from a file of gpuenergy profile --export, without the model's Python code",
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
    parser.add_argument(
        "--power-log", metavar="PATH", type=Path, help="Write the card's power over time as CSV"
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_seconds,
        help="Seconds over which each row of --power-log is a mean (default: the card's samples)",
    )
    parser.add_argument("--html", metavar="PATH", type=Path, help="Write a page that works offline")
    parser.add_argument(
        "--schema", metavar="PATH", type=Path, help="Write the JSON Schema of --json; needs no run"
    )
    parser.add_argument("--json", action="store_true", help="Print the report as JSON")


def run(arguments: Namespace) -> int:
    """Replay, write the report, and print a summary."""
    from pytest_gpuenergy.control.tables import NamedSetpoints
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.energy.power_log import PowerLog
    from pytest_gpuenergy.engine.station import Station
    from pytest_gpuenergy.replay.plan import planner_for
    from pytest_gpuenergy.replay.profiling import read_profile
    from pytest_gpuenergy.replay.replaying import (
        REPORT_JSON,
        Replay,
        page_values,
        schema_document,
    )
    from pytest_gpuenergy.report.html import check_html, write_html
    from pytest_gpuenergy.report.store import Report
    from pytest_gpuenergy.report.views import write_view
    from pytest_gpuenergy.support.errors import InputError
    from pytest_gpuenergy.support.json_output import plain

    if arguments.schema is not None:
        write_view(arguments.schema, schema_document())
        if arguments.folder is None:
            return 0
    if arguments.interval is not None and arguments.power_log is None:
        raise InputError("--interval is for --power-log PATH: give that too.")
    if arguments.folder is None:
        raise InputError(
            "Name the folder that gpuenergy profile has written: gpuenergy replay RUN."
        )
    read_profile(arguments.folder)
    if arguments.html is not None:
        check_html()
    with ExitStack() as stack:
        device = stack.enter_context(open_device(arguments.gpu_device))
        planner = planner_for(device, arguments.folder, arguments.cache, arguments.export)
        setpoints = NamedSetpoints.of(device, arguments.powercap, Path.cwd()).setpoints
        station = stack.enter_context(Station(device))
        for sentence in station.restored:
            tell(sentence)
        log = None
        if arguments.power_log is not None:
            log = stack.enter_context(PowerLog(device, arguments.power_log, arguments.interval))

        def announce(line: str) -> None:
            tell(line)
            if log is not None:
                log.collect()

        replay = Replay(
            arguments.folder,
            station,
            planner,
            arguments.cache,
            arguments.step,
            [name.strip() for name in arguments.kernels.split(",") if name.strip()],
            setpoints,
            announce=announce,
        )
        if arguments.resume:
            replay.resume()
        report = replay.run()
    if arguments.html is not None:
        write_html(
            Report(report.run, report.measurements), arguments.html, replay=page_values(report)
        )
    if arguments.json:
        print_json(plain(report))
    else:
        print_lines([*_terminal(report), "", f"written to {replay.results / REPORT_JSON}"])
    return 0


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return found


def _terminal(report: ReplayReport) -> Iterator[str]:
    from pytest_gpuenergy.replay.account import GRAPH

    label = " (emulated)" if report.run.emulated else ""
    yield f"{report.profile.model} on {report.run.gpu_name}{label}"
    if report.run.emulated:
        yield "figures that a card has recorded, and a model of what power limits do to them"
    for one in report.accounts:
        yield from ("", *_account(one, report.profile.step_name(one.step)))
    for one in report.accounts:
        if one.level == GRAPH:
            yield from ("", *_parts(one, report.profile.step_name(one.step)))
    for step in dict.fromkeys(one.step for one in report.savings):
        found = [one for one in report.savings if one.step == step]
        yield from ("", *_savings(found, report.profile.step_name(step)))
    reasons: dict[str, list[str]] = {}
    for key, why in report.missing.items():
        reasons.setdefault(why, []).append(key)
    if reasons:
        yield from ("", "not replayed")
        yield from (f"{', '.join(keys)}: {why}" for why, keys in reasons.items())


def _account(one: Account, step: str) -> Iterator[str]:
    yield (
        f"{step}, {one.level}, {one.cap}: {one.energy_mj:.4g} mJ and {one.time_ms:.4g} "
        f"ms measured; predicted {one.predicted_mj:.4g} mJ ({one.energy_error:+.1%})"
    )
    yield (
        f"  calls {one.kernels_mj:.4g} mJ ±{one.kernels_mj_half_width:.2g} in {one.kernels_ms:.4g} "
        f"ms, temperature {one.temperature_mj:+.3g}, gaps {one.gaps_mj:+.3g} in {one.gaps_ms:.3g} "
        f"ms at {one.idle_w:.1f} W, residual {one.residual_mj:+.3g}"
    )
    yield f"  {one.coverage:.1%} of the GPU time replayed{_gpu_time(one)}"
    edp = f"EDP {one.edp_mj_ms:.4g} mJ ms"
    if one.joules_per_token is None or one.tokens_per_joule is None:
        yield f"  {edp}"
    else:
        yield (
            f"  {one.joules_per_token:.4g} J per token, {one.tokens_per_joule:.4g} tokens per "
            f"joule, {edp}"
        )
    if one.spaced:
        yield (
            f"  {len(one.spaced)} calls that the power limit holds back alone were measured with "
            f"gaps between them, too: {', '.join(one.spaced)}"
        )
    if one.limited:
        yield (
            f"  the power limit held {len(one.limited)} calls back alone, but not in the step: "
            f"{', '.join(one.limited)}"
        )


def _gpu_time(one: Account) -> str:
    if one.gpu_ms is None or one.time_error is None:
        return ""
    return (
        f"; by the profiler {one.gpu_ms:.4g} ms alone, {one.trace_ms:.4g} ms in the model "
        f"({one.time_error:+.1%})"
    )


def _parts(one: Account, step: str) -> Iterator[str]:
    from pytest_gpuenergy.support.text import aligned

    total_mj = sum(part.energy_mj for part in one.parts) or 1.0
    shown = one.parts[:_SHOWN]
    share = sum(part.energy_mj for part in shown) / total_mj
    yield f"{step}, {one.cap}: {len(shown)} calls take {share:.1%} of the calls' energy"
    header = ("call", "calls", "ms", "mJ", "energy", "operator")
    rows = [
        (
            part.call,
            str(part.calls),
            f"{part.time_ms:.4g}",
            f"{part.energy_mj:.4g}",
            f"{part.energy_mj / total_mj:.1%}",
            part.operator,
        )
        for part in shown
    ]
    yield from aligned([header, *rows])


def _savings(found: Sequence[Saving], step: str) -> Iterator[str]:
    from pytest_gpuenergy.support.text import aligned

    total_mj = sum(one.energy_mj for one in found) or 1.0
    saved_mj = sum(one.saved_mj for one in found)
    yield (
        f"{step}: each call under the limit that suits it best would save "
        f"{saved_mj:.4g} mJ ({saved_mj / total_mj:.1%})"
    )
    header = ("call", "calls", "best limit", "mJ saved", "saved", "time", "operator")
    rows = [
        (
            one.call,
            str(one.calls),
            one.cap,
            f"{one.saved_mj:.4g}",
            f"{one.saved_mj / one.energy_mj:.1%}" if one.energy_mj else "",
            f"{one.slowdown - 1:+.1%}",
            one.operator,
        )
        for one in found[:_SHOWN]
    ]
    yield from aligned([header, *rows])
