"""A folder for which there is no permission, also for root."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_OS = ("stat", "lstat", "open", "scandir", "listdir", "mkdir", "rename", "replace", "unlink")


def close(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deny everything that is in ``folder`` to this process from now on."""
    inside = f"{folder}{os.sep}"

    def closed(call: Callable[..., Any], whole: bool) -> Callable[..., Any]:
        def denied(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            is_path = isinstance(path, str | os.PathLike)
            name = str(Path(os.fsdecode(path)).absolute()) if is_path else ""
            if f"{name}{os.sep * whole}".startswith(inside):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            return call(path, *arguments, **named)

        return denied

    for name in _OS:
        lists = name in ("scandir", "listdir")
        monkeypatch.setattr(os, name, closed(getattr(os, name), lists))
    for module in (io, builtins):
        monkeypatch.setattr(module, "open", closed(open, whole=False))
