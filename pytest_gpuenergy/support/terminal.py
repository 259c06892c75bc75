"""What may reach a terminal, or the log of a CI job, whatever is in a name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast


def printable(line: str) -> str:
    """``line`` without what could end it, move the cursor, or command GitHub's runner.

    The runner obeys lines of a step's output that begin with ``::``, blanks left aside.
    """
    return _without_commands(without_controls(line))


def printable_text(text: str) -> str:
    """Each line of ``text`` likewise; its newlines and tabs stay."""
    return "\n".join(
        _without_commands("\t".join(map(without_controls, line.split("\t"))))
        for line in text.split("\n")
    )


def without_controls(text: str) -> str:
    """``text`` in one line, with blanks for what cannot be printed."""
    return "".join(c if c.isprintable() else " " for c in text)


def show_section(terminalreporter: Any, title: str, lines: Iterable[str]) -> None:
    """A section of pytest's summary with each as one line; none without any."""
    for number, line in enumerate(lines):
        if number == 0:
            terminalreporter.section(title)
        terminalreporter.write_line(printable(line))


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Whatever is printed meanwhile is `printable_text`."""
    if sys.stdout is None:  # it was closed before we began
        yield
        return
    stream = _PrintableStream(sys.stdout)
    try:
        with contextlib.redirect_stdout(cast(TextIO, stream)):
            yield
    finally:
        stream.flush()


class _PrintableStream:
    """Hands whole lines on: what a line begins with may come in several pieces."""

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
