"""Makes untrusted text, such as names, safe for a terminal or the log of a CI job."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast


def printable(line: str) -> str:
    """``line`` without anything that ends it, moves the cursor, or commands GitHub's runner.

    The runner interprets lines of a step's output that begin with ``::``, after any blanks.
    """
    return _without_commands(without_controls(line))


def printable_text(text: str) -> str:
    """As `printable` for each line of ``text``; newlines and tabs are kept."""
    return "\n".join(
        _without_commands("\t".join(map(without_controls, line.split("\t"))))
        for line in text.split("\n")
    )


def without_controls(text: str) -> str:
    """``text`` on one line, with blanks in place of unprintable characters."""
    return "".join(c if c.isprintable() else " " for c in text)


_LEAST_COLUMNS = 20


def terminal_width(*, is_terminal: bool) -> int | None:
    """The width of the terminal, or what COLUMNS says; None where lines may have any length."""
    columns = os.environ.get("COLUMNS", "")
    given = columns.isascii() and columns.isdecimal() and len(columns) < 6 and int(columns) > 0
    if not (is_terminal or given):
        return None
    return max(_LEAST_COLUMNS, int(columns) if given else shutil.get_terminal_size().columns)


def show_section(terminalreporter: Any, title: str, lines: Iterable[str]) -> None:
    """Write a section of pytest's summary, one line each; nothing if there are no lines."""
    for number, line in enumerate(lines):
        if number == 0:
            terminalreporter.section(title)
        terminalreporter.write_line(printable(line))


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Pass everything printed to stdout in this context through `printable_text`."""
    if sys.stdout is None:  # it was closed before we started
        yield
        return
    stream = _PrintableStream(sys.stdout)
    try:
        with contextlib.redirect_stdout(cast(TextIO, stream)):
            yield
    finally:
        stream.flush()


class _PrintableStream:
    """Passes on whole lines, because the start of a line may be written in several pieces."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def write(self, text: str) -> int:
        whole, newline, self._line = (self._line + text).rpartition("\n")
        self._stream.write(printable_text(whole) + newline)
        return len(text)

    def flush(self) -> None:
        self._stream.write(printable_text(self._line))
        self._line = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _without_commands(line: str) -> str:
    start = len(line) - len(line.lstrip())
    return f"{line[:start]}: :{line[start + 2 :]}" if line[start:].startswith("::") else line
