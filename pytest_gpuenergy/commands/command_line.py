"""The parts that subcommands share: adding arguments, printing, and writing files."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
import sys
import textwrap
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
    _ArgumentGroup,
)
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pytest_gpuenergy import replay, report as reports
from pytest_gpuenergy.support import InputError, aligned, printable, terminal_width

Subparsers: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"
"""The type that `argparse.ArgumentParser.add_subparsers` returns."""

_WIDTH = 79
"""Columns of the text in ``--help``."""
_MAX_NAMES = 12
"""The most names that an error message lists; of further ones it gives the number."""
_MAX_COUNT = 1_000_000
"""The most runs, tokens or trials that an option takes."""
_T = TypeVar("_T")
_N = TypeVar("_N", int, float)


def add_command(
    subparsers: Subparsers,
    name: str,
    run: Callable[[Namespace], int] | None,
    *,
    summary: str,
    example: str,
    description: str = "",
) -> ArgumentParser:
    """Add a subcommand whose ``--help`` ends with an example: command lines, one per line.

    The summary is a phrase for the list of commands; ``run`` returns the exit code.
    """
    indented = "\n".join(f"  {line}" for line in example.strip().splitlines())
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.fill(f"{summary}. {description}".rstrip(), _WIDTH),
        epilog=f"example:\n{indented}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --mode is not --model
    )
    parser.set_defaults(parser=parser)
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def unknown_words(parser: ArgumentParser, words: Sequence[str]) -> str:
    """Return a sentence about words that no option takes, with a similar option if there is one."""
    options = re.findall(r"--[a-z0-9-]+", parser.format_usage())
    similar = difflib.get_close_matches(words[0].partition("=")[0], options, 1)
    hint = f"use {similar[0]}" if similar else f"see {parser.prog} --help"
    return f"{parser.prog} does not understand {shlex.join(words):.80}: {hint}."


def path_argument(text: str) -> Path:
    """Parse the path of a file or folder, for `ArgumentParser.add_argument`."""
    return Path(target_argument(text))


def target_argument(text: str) -> str:
    """Parse a path, or ``-`` for the terminal, for `ArgumentParser.add_argument`."""
    if not text.strip():  # an unset variable of a shell, which would mean the current folder
        raise ArgumentTypeError("it is empty: give a path, such as . for the current folder")
    return text


def count(text: str) -> int:
    """Parse a whole number above zero, for `ArgumentParser.add_argument`."""
    if not text.isdecimal() or not 0 < int(text) <= _MAX_COUNT:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MAX_COUNT}")
    return int(text)


def number(kind: type[_N], least: _N, most: _N) -> Callable[[str], Any]:
    """Return a type for `ArgumentParser.add_argument`: numbers from ``least`` to ``most``."""

    def parse(text: str) -> _N:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return value

    return parse


def add_output_arguments(parser: ArgumentParser) -> None:
    """Add ``--json`` and ``--md``, for `write_outcome`."""
    for name, what in (("--json", "JSON"), ("--md", "Markdown")):
        parser.add_argument(
            name,
            metavar="PATH",
            type=target_argument,
            help=f"Write the result as {what}; - stands for the terminal",
        )


def write_outcome(
    arguments: Namespace,
    outcome: _T,
    terminal: Callable[[_T, int | None], Iterable[str]],
    json_document: Callable[[_T], str],
    markdown: Callable[[_T], str],
) -> None:
    """Write an outcome to the paths of ``--json`` and ``--md``, where ``-`` is the terminal.

    Unless one of them is ``-``, the lines of ``terminal`` are printed. It is called with the
    outcome and the width of the terminal, see `stdout_width`.

    Raises:
        ReportError: a file cannot be written.
    """
    for target, view in ((arguments.json, json_document), (arguments.md, markdown)):
        if target is not None:
            write_text(view(outcome), target)
    if "-" not in (arguments.json, arguments.md):
        print_lines(terminal(outcome, stdout_width()))


def stdout_width() -> int | None:
    """Return the width of the terminal on standard output, or None if lines may have any length."""
    return terminal_width(is_terminal=sys.stdout is not None and sys.stdout.isatty())


def write_text(text: str, target: str) -> None:
    """Write a view to the path ``target``; ``-`` is the terminal.

    Raises:
        ReportError: it cannot be written.
    """
    if target == "-":
        print(text, end="")
    else:
        reports.write_view(Path(target), text)


def print_lines(lines: Iterable[str]) -> None:
    """Print each string as one line, with control characters escaped."""
    for line in lines:
        print(printable(line))


def tell(line: str) -> None:
    """Print one line to the error output."""
    print(printable(line), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON for scripts; NaN is refused."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with aligned columns."""
    for line in aligned([header, *rows]):
        print(line)


def listed(names: Iterable[str], nothing: str) -> str:
    """Return the first names, each once, and the number of the others; ``nothing`` for none."""
    found = list(dict.fromkeys(names))
    more = [f"{len(found) - _MAX_NAMES} more"] if len(found) > _MAX_NAMES else []
    return ", ".join([*found[:_MAX_NAMES], *more]) or nothing


def add_setpoint_options(parser: ArgumentParser, *, current: bool) -> None:
    """Add ``--powercap`` and ``--smclock``, for several of each, and ``--allow``.

    With ``current``, limits stay as they are by default, on emulated GPUs too; otherwise the
    default is that of pytest, and the option is None.
    """
    default = "current" if current else "current, and all on an emulated GPU"
    parser.add_argument(
        "--powercap",
        metavar="LIST",
        default="current" if current else None,
        help=f"Power limits to measure under, as --powercap of pytest (default: {default})",
    )
    add_clock_options(parser, several=True)


def add_schema_option(parser: ArgumentParser | _ArgumentGroup, what: str) -> None:
    """Add ``--schema PATH``."""
    parser.add_argument(
        "--schema", metavar="PATH", type=target_argument, help=f"Write the JSON Schema of {what}"
    )


def add_clock_options(parser: ArgumentParser | _ArgumentGroup, *, several: bool) -> None:
    """Add ``--smclock``, for one clock or several, and ``--allow`` beside ``--powercap``."""
    parser.add_argument(
        "--smclock",
        metavar="LIST" if several else "MHZ",
        default="current",
        help="Clocks to lock the SMs to, as --smclock of pytest (default: current)"
        if several
        else "One clock to lock the SMs to, such as 1500MHz, or current, which leaves them as they "
        "are (default: current)",
    )
    parser.add_argument(
        "--allow",
        choices=("clocks",),
        help="clocks: lock the clocks even if somebody else seems to have locked them; they are "
        "unlocked afterwards",
    )


def add_schedule_options(parser: ArgumentParser) -> None:
    """Add ``--schedule`` and the options of how its requests are batched."""
    parser.add_argument(
        "--schedule",
        metavar="FILE",
        type=path_argument,
        help="Steps of a server (CSV with step,batch,tokens,count) or requests to batch "
        "(arrival_s,prompt_tokens,new_tokens); also as JSON lines",
    )
    parser.add_argument(
        "--max-batch",
        metavar="N",
        type=count,
        help="For requests: the most that run at once (default: 8)",
    )
    parser.add_argument(
        "--bucket-tokens",
        metavar="N",
        type=count,
        help="For requests: the multiple that sizes of steps are rounded to (default: 256)",
    )
    parser.add_argument(
        "--step-ms",
        metavar="MS",
        type=number(float, 1e-3, 1e6),
        help="For requests: the time to assume for each step, by which later requests arrive "
        "(default: all requests wait from the beginning)",
    )


def chosen_batching(arguments: Namespace) -> replay.Batching:
    """Return how requests are batched by the options of `add_schedule_options`."""
    names = ("max_batch", "bucket_tokens", "step_ms")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if given and arguments.schedule is None:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise InputError(f"{option} is for the requests of --schedule FILE: give that too.")
    return replay.Batching(**given)
