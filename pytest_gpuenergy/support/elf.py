"""The sections of an ELF file: a program, or the machine code of a GPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Executable and Linkable Format, version 1.2, "ELF Header" and "Section Header", for 64 bits.
_MAGIC = b"\x7fELF\x02"
_TABLE = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<IIQQQQ")
_NO_BITS = 8


def sections(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each section; nothing if the file is damaged.

    Args:
        content: the bytes of a little-endian file.
    """
    for name, header in _headers(content):
        yield name, _content(content, header)


def section_sizes(content: bytes) -> Iterator[tuple[str, int]]:
    """Yield the name and size in memory of each section, including those without content.

    Args:
        content: see `sections`.
    """
    for name, header in _headers(content):
        yield name, header[5]


def _headers(content: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        if not content.startswith(_MAGIC):
            return
        at, size, count, names_at = _TABLE.unpack_from(content)
        headers = [_SECTION.unpack_from(content, at + size * number) for number in range(count)]
        names = _content(content, headers[names_at])
    except (struct.error, IndexError, OverflowError):
        return
    for header in headers:
        yield names[header[0] :].partition(b"\0")[0].decode(errors="replace"), header


def _content(content: bytes, header: tuple[int, ...]) -> bytes:
    _, kind, _, _, at, size = header
    return b"" if kind == _NO_BITS else content[at : at + size]
