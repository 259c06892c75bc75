"""``gpuenergy hosts``: the GPUs of a fleet, and what pytest-xdist needs to use them."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pytest_gpuenergy import fleet as fleets
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    print_json,
    print_table,
    tell,
)
from pytest_gpuenergy.support import emulated_mark, plain


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``hosts``."""
    parser = add_command(
        subparsers,
        "hosts",
        run,
        summary=summary,
        description="Without an argument, it lists those of this host. It changes nothing. It "
        "also prints the --tx specifications by which pytest-xdist uses these GPUs without "
        "--gpuenergy-fleet. The exit code is 1 if no GPU can measure.",
        example="gpuenergy hosts\n"
        "gpuenergy hosts --ray\n"
        "gpuenergy hosts --ssh 'node1,node2:/scratch/project python=/opt/venv/bin/python'\n"
        "gpuenergy hosts --slurm '\"--partition gpu --gpus-per-task 1\" x8' --json",
    )
    _add_fleets(parser)
    parser.add_argument(
        "--gpu-device",
        default="auto",
        metavar="DEVICE",
        help="auto (the NVIDIA GPUs; the default) or emulated[:PROFILE][xN] on each host",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON")


def _add_fleets(parser: ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="HEAD:PORT",
        help="List the nodes of the Ray cluster of this machine, or of the one whose client "
        "server is at HEAD:PORT",
    )
    group.add_argument(
        "--ssh", metavar="HOSTS", help="List these hosts, as --gpuenergy-fleet ssh:HOSTS takes them"
    )
    group.add_argument(
        "--slurm",
        metavar="OPTIONS",
        help="List the hosts on which srun places tasks with these options, as --gpuenergy-fleet "
        "slurm:OPTIONS xN takes them",
    )


def run(arguments: Namespace) -> int:
    """Print the hosts and their GPUs; 0 if a GPU can measure."""
    fleet = _fleet(arguments)
    project = str(Path.cwd())
    hosts = fleets.ask_hosts(fleet, arguments.gpu_device, project)
    offered = fleets.assign_slots(fleet, hosts, arguments.gpu_device, project, capping=False)
    specs = [fleets.tx_spec(slot.command) for slot in offered.slots]
    if arguments.json:
        print_json({"hosts": [plain(host) for host in hosts], "tx": specs})
    else:
        _print(hosts, specs)
    return 0 if offered.slots else 1


def _fleet(arguments: Namespace) -> fleets.Fleet | None:
    if arguments.ray is not None:
        first, _, rest = arguments.ray.partition(" ")
        address = first and f"://{first.removeprefix('ray://')}"
        words = f"ray{address} {rest}" if "=" not in first else f"ray {arguments.ray}"
        return fleets.parse_fleet(words, "--ray")
    if arguments.ssh is not None:
        return fleets.parse_fleet(f"ssh:{arguments.ssh}", "--ssh")
    return (
        None
        if arguments.slurm is None
        else fleets.parse_fleet(f"slurm:{arguments.slurm}", "--slurm")
    )


def _print(hosts: list[fleets.ProbedHost], specs: list[str]) -> None:
    rows = [_row(host, gpu) for host in hosts for gpu in host.gpus]
    if rows:
        header = ("host", "GPU", "model", "UUID", "driver", "limits", "measures", "capped")
        print_table(header, rows)
    for host in hosts:
        if host.problem is not None:
            print(f"{host.title}: {host.problem}")
        for gpu in host.gpus:
            for what, reason in (("measure", gpu.no_measuring), ("be capped", gpu.no_capping)):
                if reason is not None:
                    print(f"{host.title}, GPU {gpu.index} cannot {what}: {reason}")
    for spec in specs:
        print(f"--tx {shlex.quote(spec)}")
    if not specs:
        tell("No GPU can measure.")


def _row(host: fleets.ProbedHost, gpu: fleets.ProbedGpu) -> tuple[str, ...]:
    limits = f"{gpu.power_limits_w[0]:g}-{gpu.power_limits_w[1]:g} W" if gpu.power_limits_w else "-"
    model = f"{gpu.name}{emulated_mark(gpu.emulated)}"
    return (
        host.title,
        str(gpu.index),
        model,
        gpu.uuid or "-",
        gpu.driver or "-",
        limits,
        "no" if gpu.no_measuring else "yes",
        "no" if gpu.no_capping else "yes",
    )
