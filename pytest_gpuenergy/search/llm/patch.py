"""Applies unified diffs as language models write them, with inexact headers."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HUNK_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class PatchError(ValueError):
    """The diff does not apply; the message is a clause without a period."""


def apply_patch(diff: str, text: str) -> str:
    """Return the text after applying a diff.

    A hunk is applied where its header says if its lines are found there, and otherwise at the only
    place where they are. The names of files and notes about the last newline are ignored.

    Args:
        diff: a unified diff of one file.
        text: the content of the file.

    Raises:
        PatchError: ``diff`` is not a unified diff, or the lines of a hunk are not found, or are
            found in several places.
    """
    lines, diff_lines = text.split("\n"), diff.rstrip("\n").split("\n")
    starts = [k for k, line in enumerate(diff_lines) if line.startswith("@@")]
    if not starts:
        raise PatchError("it is not a unified diff: it has no hunk")
    patched: list[str] = []
    consumed = 0
    ends = [*starts[1:], len(diff_lines)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        old, new = _hunk(number, diff_lines[start + 1 : end])
        places = [k for k in range(len(lines) - len(old) + 1) if lines[k : k + len(old)] == old]
        header = _HUNK_HEADER.match(diff_lines[start])
        if header and (int(header[2] or 1), int(header[3] or 1)) == (len(old), len(new)):
            stated = int(header[1]) - 1  # relied on only if the header's counts are right
            places = [stated] if stated in places else places
        if not places:
            raise PatchError(f"the lines of hunk {number} are not in the source")
        if len(places) > 1:
            raise PatchError(f"hunk {number} fits in {len(places)} places of the source")
        if places[0] < consumed:
            raise PatchError(f"hunk {number} overlaps the one before it, or precedes it")
        patched += [*lines[consumed : places[0]], *new]
        consumed = places[0] + len(old)
    return "\n".join([*patched, *lines[consumed:]])


def _hunk(number: int, body: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lines that a hunk finds, and those that replace them."""
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
    return old, new
