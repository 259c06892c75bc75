"""Writing files so that nobody ever reads half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``path`` whole or not at all, text as UTF-8.

    Half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes a question mark.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
