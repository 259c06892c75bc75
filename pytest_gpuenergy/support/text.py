"""Formats text for people (columns, wrapped lines, durations) and makes untrusted text safe."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO, cast

_MIN_COLUMNS = 20
_LARGE = re.compile(r"\b[0-9](?:\.[0-9]+)?e\+[0-9]{2}\b")
"""Matches a number with an exponent for which it is written out: those above have three digits."""


def printable(line: str) -> str:
    """Return ``line`` without line breaks, terminal controls and commands of GitHub Actions.

    GitHub's runner takes lines of a step's output for commands if they begin with ``::``, possibly
    after blanks.
    """
    return _without_commands(without_controls(line))


def printable_text(text: str) -> str:
    """Return ``text`` with each line made `printable`; newlines and tabs are kept."""
    return "\n".join(
        _without_commands("\t".join(map(without_controls, line.split("\t"))))
        for line in text.split("\n")
    )


def without_controls(text: str) -> str:
    """Return ``text`` on one line, with blanks in place of unprintable characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def terminal_width(*, is_terminal: bool) -> int | None:
    """Return COLUMNS or the width of the terminal; None where lines may have any length."""
    columns = os.environ.get("COLUMNS", "")
    given = columns.isascii() and columns.isdecimal() and len(columns) < 6 and int(columns) > 0
    if not (is_terminal or given):
        return None
    return max(_MIN_COLUMNS, int(columns) if given else shutil.get_terminal_size().columns)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and a noun, which has an ``s`` or is ``plural`` unless the number is 1."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def plain_numbers(text: str) -> str:
    """Return a text with ``1.8e+03``, as format makes of a large number, written as ``1800``."""
    return _LARGE.sub(lambda found: f"{float(found[0]):.0f}", text)


def show_section(terminalreporter: Any, title: str, lines: Iterable[str]) -> None:
    """Write a section of pytest's summary; nothing if it has no lines."""
    for number, line in enumerate(lines):
        if number == 0:
            terminalreporter.section(title)
        terminalreporter.write_line(printable(line))


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Pass everything printed to stdout in this context through `printable_text`."""
    if sys.stdout is None:  # closed before this process started
        yield
        return
    stream = _PrintableStream(sys.stdout)
    try:
        with contextlib.redirect_stdout(cast(TextIO, stream)):
            yield
    finally:
        stream.flush()


class _PrintableStream:
    """A stream that buffers lines, because a line may be written in several pieces."""

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


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row: left-aligned columns, two spaces apart, no trailing blanks.

    Raises:
        ValueError: the rows differ in length.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def fitted(table: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Yield the lines of the `aligned` table if they fit ``width``, otherwise a block for each row.

    A block begins with the row's first cell; each other cell has a line with its column's title.
    """
    lines = list(aligned(table))
    if width is None or max(map(len, lines), default=0) <= width:
        yield from lines
        return
    titles, *rows = table
    space = max(map(len, titles[1:]), default=0)
    for name, *cells in rows:
        yield from wrapped(name, width)
        for title, cell in zip(titles[1:], cells, strict=True):
            yield from wrapped(f"  {title.ljust(space)}  {cell}".rstrip(), width, 4)


def wrapped(
    line: str, width: int | None, indent: int = 2, *, whole_words: bool = False
) -> Iterator[str]:
    """Yield ``line`` broken into lines of at most ``width`` characters, at blanks if possible.

    Args:
        line: the line, which may be indented.
        width: the limit; None for none.
        indent: how much further the lines after the first one are indented.
        whole_words: whether to leave longer words whole, such as a path to be copied.
    """
    if width is None or len(line) <= width:
        yield line
        return
    own = min(len(line) - len(line.lstrip()), width // 4)
    yield from textwrap.wrap(
        line.strip(),
        width,
        initial_indent=" " * own,
        subsequent_indent=" " * min(own + indent, width // 2),
        break_on_hyphens=False,
        break_long_words=not whole_words,
    )


def shortened(text: str, length: int) -> str:
    """Return ``text``, with its middle left out if it has more than ``length`` characters."""
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def emulated_mark(emulated: bool) -> str:
    """Return what to append to a title or a name: `` (emulated)``, or nothing for a real GPU."""
    return " (emulated)" if emulated else ""


def span(seconds: float) -> str:
    """Return a span of time in words: ``0.53 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


_LONGEST_JOINED = 32
"""The most characters that `joined_or_hashed` joins."""


def joined_or_hashed(words: Iterable[object]) -> str:
    """Return words with dots, such as ``512.0.128``, for names of files and items.

    Where these would be long, it is their number and the beginning of their SHA-256, such as
    ``64h1a2b3c4d5e6f``.
    """
    parts = [str(word) for word in words]
    text = ".".join(parts)
    if len(text) <= _LONGEST_JOINED:
        return text
    return f"{len(parts)}h{hashlib.sha256(text.encode()).hexdigest()[:12]}"
