"""``gpuenergy extract``: the unique kernels in a trace of PyTorch's profiler."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from pytest_gpuenergy import replay
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    path_argument,
    print_json,
    print_lines,
    tell,
)
from pytest_gpuenergy.support import is_folder

_SUFFIXES = (".gz", ".xz", ".json", ".jsonl", ".trace", ".pt")


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``extract``."""
    parser = add_command(
        subparsers,
        "extract",
        run,
        summary=summary,
        description="Launches that share kernel, operator, arguments and launch plan count as one "
        "kernel. Writes every launch (kernel_launch_params.jsonl and .csv), the unique kernels "
        "(unique_kernels_compute.jsonl), how each can be replayed (kernel_signatures.json), and, "
        "with the extra html, charts (gantt.html, gantt.png, breakdown.png). Any trace will do; "
        "one with shapes (record_shapes=True) says how to replay its kernels. A file of unique "
        "kernels, of an older tool too, is read without a trace; it has no launches.",
        example="""
gpuenergy extract bloom.pt.trace.json.gz --out bloom/
gpuenergy extract bloom/ --json
""",
    )
    parser.add_argument(
        "source",
        type=path_argument,
        metavar="RUN|TRACE",
        help="A trace, a *unique_kernels_compute.jsonl, or a folder with one of them",
    )
    parser.add_argument(
        "--out",
        type=path_argument,
        metavar="DIR",
        help="Folder to write to (default: RUN, or a new one named after TRACE)",
    )
    parser.add_argument("--json", action="store_true", help="Print a summary as JSON")


def run(arguments: Namespace) -> int:
    """Extract, write, and print a summary."""
    source: Path = arguments.source
    found = replay.extract_kernels(source)
    folder = arguments.out
    if folder is None and is_folder(source):
        folder = source
    elif folder is None:
        name = Path(source.name)
        while name.suffix in _SUFFIXES:
            name = name.with_suffix("")
        folder = Path(f"{name}-kernels")
    replay.write_results(found, folder, source.name or folder.name, tell)
    if arguments.json:
        print_json({**replay.json_document(found), "folder": str(folder)})
    else:
        print_lines([*replay.terminal(found), "", f"written to {folder}"])
    return 0
