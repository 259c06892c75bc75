"""The command ``gpuenergy``: everything besides measuring in pytest."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

from pytest_gpuenergy import __version__, commands, control
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    error_message,
    printable_output,
    remove_leftovers,
    settle_places,
    still_running,
)

COMMANDS = {
    "doctor": "Check drivers, permissions, compilers and packages",
    "tune": "Search for fast or energy-efficient kernels and write record files",
    "gemm": "Tune, compare and profile matrix products by their sizes",
    "optimize": "Improve kernels by moves on their source, each verified before it is timed",
    "profile": "Profile a language model's inference, and extract its kernels",
    "replay": "Replay a profiled model's calls alone, and account for its energy",
    "extract": "Extract the unique GPU kernels from a trace of PyTorch's profiler",
    "kernels": "List, show or export tuned kernels, or sample the log of a search",
    "powercap": "Show, set or restore the power limit of a GPU, and its clocks",
    "hosts": "List the GPUs of a fleet's hosts, and whether each can measure and be capped",
    "report": "Merge runs and write them as a page, tables or other tools' formats",
    "advise": "Advise which power limit, clock and kernels are best for measured workloads",
    "compare": "Judge a run by an earlier one: SAME, BETTER, WORSE or AMBIGUOUS",
    "ab": "Measure two revisions of the kernels alternately on the same GPU",
    "baseline": "Make a run the baseline that later ones are judged by",
    "history": "Show a metric over the runs of this project, and where it changed",
    "clean": "Remove the runs of this project, exported kernels and the caches",
}
"""Subcommands and what ``--help`` says of each, a module in `pytest_gpuenergy.commands`."""

_LEAVE_AS_FOUND = ("doctor", "hosts", "powercap")
"""Commands that only report, or report what a killed run left before they restore it."""

_FAILURE, _USAGE = 1, 2
_INTERRUPTED, _BROKEN_PIPE = 130, 141  # 128 + SIGINT, 128 + SIGPIPE, as a shell reports them
_PATIENCE_S = 1.0
"""The time for which an interrupted command waits for a reference that another thread computes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name) and return the exit code.

    0 is success, 1 a failing verdict or an error, 2 invalid usage or input, 130 an interrupt.
    """
    if argv is None:
        atexit.register(gc.freeze)  # to look for garbage once more would take a third of the time
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without µ shows \xb5, as pytest does
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(argv)
        if sys.stdout is not None:  # None if it was closed before we started
            sys.stdout.flush()  # a closed pipe or a full disk raises here at the latest
    except SystemExit as stop:  # argparse, after --help or a usage error
        return stop.code if isinstance(stop.code, int) else _FAILURE
    except InputError as error:
        return _complain(str(error), _USAGE)
    except GpuEnergyError as error:
        return _complain(str(error), _FAILURE)
    except KeyboardInterrupt:
        if still_running(_PATIENCE_S):
            _complain("Interrupted. A reference that did not end was abandoned.", _INTERRUPTED)
            with contextlib.suppress(OSError, AttributeError):  # closed, or never open
                sys.stdout.flush()
            os._exit(_INTERRUPTED)  # or Python would wait for it
        return _complain("Interrupted.", _INTERRUPTED)
    except BrokenPipeError:
        _forget_output()
        return _BROKEN_PIPE
    except OSError as error:
        if error.filename is not None:
            return _complain(error_message(error), _FAILURE)
        _forget_output()
        return _complain(f"The output cannot be written: {error.strerror}.", _FAILURE)
    return code


def _forget_output() -> None:
    """Redirect stdout to the null device, or the interpreter's final flush would fail again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    settle_places()
    words = list(sys.argv[1:] if argv is None else argv)
    first = next((word for word in words if word != "--"), "")
    parser = build_parser(first)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        raise InputError(commands.unknown_words(getattr(arguments, "parser", parser), unknown))
    with printable_output():
        remove_leftovers()
        if arguments.command not in _LEAVE_AS_FOUND and control.dead_run_uuids():
            for sentence in control.restore_dead_runs():
                commands.tell(sentence)
        arguments.command_line = words
        code: int = arguments.run(arguments)
    return code


def build_parser(command: str = "") -> ArgumentParser:
    """Return the parser of the command line.

    The module of a command is imported only if the command is named, since that takes long; the
    other commands are just listed.
    """
    parser = ArgumentParser(
        prog="gpuenergy",
        description="Commands that accompany pytest in measuring GPU kernels under power caps.",
        epilog="example:\n  gpuenergy doctor\n  gpuenergy kernels list --case case1",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuenergy {__version__}")
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, summary in COMMANDS.items():
        if name == command:
            module = importlib.import_module(f"pytest_gpuenergy.commands.{name}")
            module.add_parser(subparsers, summary)
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def _complain(sentence: str, code: int) -> int:
    print(f"gpuenergy: error: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
