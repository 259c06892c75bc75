"""Changes of a text at places of it, made in one go so that everything else stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """Bytes ``begin`` to ``end`` of a text, the second one excluded, become ``text``."""

    begin: int
    end: int
    text: str


def edited(source: bytes, edits: Iterable[Edit], begin: int = 0, end: int | None = None) -> str:
    """The bytes ``begin`` to ``end`` of ``source`` with the edits that lie within them.

    Raises:
        ValueError: two edits overlap.
    """
    end = len(source) if end is None else end
    inside = [edit for edit in edits if begin <= edit.begin and edit.end <= end]
    parts, at = [], begin
    for edit in sorted(inside, key=lambda edit: edit[:2]):
        if edit.begin < at:
            raise ValueError(f"two edits change byte {edit.begin}")
        parts += [source[at : edit.begin], edit.text.encode()]
        at = edit.end
    return b"".join([*parts, source[at:end]]).decode()
