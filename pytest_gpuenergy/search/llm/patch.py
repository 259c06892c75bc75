"""Applies a unified diff to exactly the text that it was made for, or not at all.

Libraries that read diffs are lenient: whatthepatch 1.0.7 drops lines that do not fit a hunk's
numbers, and cuts lines at form feeds. Here every line of a hunk must be found in the text, in one
piece, and nothing is skipped. Only what says where a hunk belongs is a hint, because language
models cannot count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class PatchError(ValueError):
    """A diff does not apply; the message is a clause without a period."""


@dataclass(frozen=True)
class _Hunk:
    """Lines to find, and those that take their place.

    Attributes:
        number: of the hunk, from 1.
        old, new: the lines, without newlines.
        start: index of the line where the header says that it belongs, if the header's counts are
            those of its lines; otherwise None.
    """

    number: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    start: int | None


def apply_patch(diff: str, text: str) -> str:
    """The text after the change.

    A hunk belongs where its header says if its lines are found there, otherwise at the only place
    where they are. Names of files, and what is said of the last line's newline, do not matter.

    Args:
        diff: a unified diff of one file.
        text: the file.

    Raises:
        PatchError: it is no unified diff, or lines of it are not found, or in several places.
    """
    lines = text.split("\n")
    found: list[str] = []
    done = 0
    for hunk in _hunks(diff):
        place = _place(hunk, lines)
        if place < done:
            raise PatchError(f"hunk {hunk.number} overlaps the one before it, or precedes it")
        found += [*lines[done:place], *hunk.new]
        done = place + len(hunk.old)
    found += lines[done:]
    return "\n".join(found)


def _place(hunk: _Hunk, lines: Sequence[str]) -> int:
    old = list(hunk.old)
    places = [k for k in range(len(lines) - len(old) + 1) if lines[k : k + len(old)] == old]
    if hunk.start in places:
        return hunk.start
    if not places:
        raise PatchError(f"the lines of hunk {hunk.number} are not in the source")
    if len(places) > 1:
        raise PatchError(f"hunk {hunk.number} fits in {len(places)} places of the source")
    return places[0]


def _hunks(diff: str) -> Iterator[_Hunk]:
    lines = diff.rstrip("\n").split("\n")
    starts = [k for k, line in enumerate(lines) if line.startswith("@@")]
    if not starts:
        raise PatchError("it is not a unified diff: it has no hunk")
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(lines)], strict=True), 1):
        yield _hunk(number, lines[start], lines[start + 1 : end])


def _hunk(number: int, header: str, body: Sequence[str]) -> _Hunk:
    old: list[str] = []
    new: list[str] = []
    for line in body:
        kind, rest = line[:1] or " ", line[1:]  # editors drop the blank of an empty line
        if kind == "\\":
            continue
        if kind not in " -+":
            raise PatchError(f"hunk {number} has a line that begins with neither ' ', '-' nor '+'")
        if kind in " -":
            old.append(rest)
        if kind in " +":
            new.append(rest)
    if not old:
        raise PatchError(f"hunk {number} has no line of the source, so its place is unknown")
    return _Hunk(number, tuple(old), tuple(new), _start(header, len(old), len(new)))


def _start(header: str, old: int, new: int) -> int | None:
    match = _HEADER.match(header)
    if match is None or (int(match[2] or 1), int(match[3] or 1)) != (old, new):
        return None
    return int(match[1]) - 1
