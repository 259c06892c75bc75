"""``gpuenergy replay``: whose joules the joules of a language model are."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace

from pytest_gpuenergy import replay
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_schedule_options,
    add_schema_option,
    add_setpoint_options,
    chosen_batching,
    count,
    number,
    path_argument,
    print_json,
    print_lines,
    target_argument,
    tell,
    write_text,
)
from pytest_gpuenergy.support import InputError, plain, plain_numbers


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``replay``."""
    parser = add_command(
        subparsers,
        "replay",
        run,
        summary=summary,
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
gpuenergy replay sizes/ --schedule requests.csv --powercap 300W,500W,700W
""",
    )
    parser.add_argument(
        "folder", metavar="RUN", type=path_argument, nargs="?", help="Folder of gpuenergy profile"
    )
    parser.add_argument(
        "--gpu-device",
        "--gpu",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, a UUID, or emulated[:PROFILE] (default: auto)",
    )
    add_setpoint_options(parser, current=True)
    parser.add_argument(
        "--cache",
        choices=("model", "hot", "cold"),
        default="model",
        help="What the L2 cache holds before a call. model: what it held in the model; hot: the "
        "tensors of the call; cold: nothing (default: model)",
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        type=target_argument,
        help="Replay from a file of gpuenergy profile --export, without the model's Python code",
    )
    parser.add_argument(
        "--step", metavar="N", type=int, default=1, help="The decode step to replay (default: 1)"
    )
    parser.add_argument(
        "--runs",
        metavar="N",
        type=count,
        default=0,
        help="Launch everything that is measured at least N times in its measurement (default: as "
        "often as the precision needs)",
    )
    parser.add_argument(
        "--kernels",
        metavar="LIST",
        type=_names,
        help="Ids of the calls or kernels to replay, separated by commas (default: all)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="Keep what an earlier replay has measured"
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="Measure everything for a shorter time, with wider intervals",
    )
    parser.add_argument(
        "--changes",
        action="store_true",
        help="Also replay changed calls, and list the five changes of each step that save most",
    )
    parser.add_argument(
        "--power-log",
        metavar="PATH",
        type=path_argument,
        help="Write the card's power over time as CSV",
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=number(float, 0.001, 1e6),
        help="Seconds over which the power in each row of --power-log is averaged (default: one "
        "row per sample of the card)",
    )
    add_schedule_options(parser)
    parser.add_argument(
        "--html", metavar="PATH", type=path_argument, help="Write a page that works offline"
    )
    add_schema_option(parser, "--json; needs no run")
    parser.add_argument("--json", action="store_true", help="Print the report as JSON")


def run(arguments: Namespace) -> int:
    """Replay, write the report, and print a summary; of several ranks, in as many processes."""
    if arguments.schema is not None:
        write_text(replay.schema_document(), arguments.schema)
        if arguments.folder is None:
            return 0
    if arguments.interval is not None and arguments.power_log is None:
        raise InputError("--interval is for --power-log PATH: give that too.")
    if arguments.folder is None:
        raise InputError(
            "Name the folder that gpuenergy profile has written: gpuenergy replay RUN."
        )
    batching = chosen_batching(arguments)
    options = replay.ReplayOptions(
        arguments.folder,
        device=arguments.gpu_device,
        powercap=arguments.powercap,
        smclock=arguments.smclock,
        allow_clocks=arguments.allow == "clocks",
        cache=arguments.cache,
        export=arguments.export or "",
        step=arguments.step,
        runs=arguments.runs,
        kernels=arguments.kernels or (),
        resume=arguments.resume,
        brief=arguments.brief,
        changes=arguments.changes,
        power_log=arguments.power_log,
        interval_s=arguments.interval,
        html=arguments.html,
    )
    if arguments.schedule is not None:
        if arguments.html is not None:
            raise InputError(
                "--html is a page of one profile: replay the folder of a size without --schedule."
            )
        serving = replay.replay_schedule(options, arguments.schedule, batching, _tell)
        if arguments.json:
            print_json(plain(serving))
        else:
            path = replay.serving_path(serving, arguments.folder)
            print_lines(map(plain_numbers, replay.serving_lines(serving)))
            print_lines(["", f"written to {path}"])
        return 0
    code, report = replay.replay_profile(options, arguments.command_line, _tell)
    if report is not None and arguments.json:
        print_json(plain(report))
    elif report is not None:
        path = replay.report_path(report, arguments.folder)
        print_lines(map(plain_numbers, replay.report_lines(report)))
        print_lines(["", f"written to {path}"])
    return code


def _tell(line: str) -> None:
    tell(plain_numbers(line))


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise ArgumentTypeError(f"{text!r} names no kernel")
    return found
