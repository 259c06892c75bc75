"""A project's settings in ``[tool.gpuenergy]`` of its pyproject.toml."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_there


def project_table(start: Path, name: str, of: str) -> tuple[Path, dict[str, Any]]:
    """``[tool.gpuenergy.NAME]`` of the nearest pyproject.toml in ``start`` or a folder above it.

    Args:
        start: the project's folder, or one inside it.
        name: of the table.
        of: what the table holds, for messages.

    Returns:
        The file, and the table, which is empty if there is no such file or table.

    Raises:
        InputError: the file cannot be read, or has something other than a table there.
    """
    path = nearest(start, "pyproject.toml")
    if path is None:
        return start.resolve() / "pyproject.toml", {}
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
    for key in ("tool", "gpuenergy", name):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise InputError(f"{path}: [tool.gpuenergy.{name}] must be a table of {of}.")
    return path, table


def nearest(start: Path, name: str | Path) -> Path | None:
    """``name`` in ``start`` or the nearest folder above it that can be looked into; else None.

    Raises:
        InputError: there is no permission for ``start`` itself.
    """
    folder = start.resolve()
    if is_there(folder / name):
        return folder / name
    for parent in folder.parents:
        with suppress(InputError):  # a folder of another user's above this one
            if is_there(parent / name):
                return parent / name
    return None
