"""The subcommands of ``gpuenergy``: each module has ``add_parser`` and ``run``.

Importing a command module must stay cheap, since ``gpuenergy --help`` imports them all: NumPy,
the workloads and everything heavier is imported inside ``run``.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"
"""What `argparse.ArgumentParser.add_subparsers` returns."""

_WIDTH = 79


def add_command(
    subparsers: Subparsers,
    name: str,
    run: Callable[[Namespace], int] | None,
    *,
    summary: str,
    example: str,
    description: str = "",
) -> ArgumentParser:
    """Add a subcommand whose ``--help`` ends with an example.

    Args:
        subparsers: what `argparse.ArgumentParser.add_subparsers` returned.
        name: the word on the command line.
        run: called with the parsed arguments; gives the exit code.
        summary: one phrase, for the list of commands.
        example: command lines, one a line.
        description: more sentences for ``--help``.
    """
    indented = "\n".join(f"  {line}" for line in example.strip().splitlines())
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.fill(f"{summary}. {description}".rstrip(), _WIDTH),
        epilog=f"example:\n{indented}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON for scripts; not-a-number is refused, not written."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, two spaces apart, without trailing blanks."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
