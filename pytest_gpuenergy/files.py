"""Writing files so that nobody ever reads half of one."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``path`` whole or not at all, text as UTF-8.

    Half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes a question mark.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}.tmp")
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def keep_for_later(path: Path, content: str | bytes) -> None:
    """Write what can be made again; where that is not possible, it will be made again."""
    with suppress(OSError):
        write_atomically(path, content)


def written_to(path: Path) -> Path:
    """The file that somebody means who wants ``path`` written: links are followed.

    Replacing a device such as ``/dev/null`` by a file would break the machine for everybody.

    Raises:
        OSError: it is there and no file, or its links lead in a circle.
    """
    try:
        target = path.resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is no file but a device or the like", str(path))
    return target
