"""A project's settings in ``[tool.gpuenergy]`` of its pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support.errors import InputError


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
    folders = (start.resolve(), *start.resolve().parents)
    paths = [folder / "pyproject.toml" for folder in folders]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return paths[0], {}
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
    for key in ("tool", "gpuenergy", name):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise InputError(f"{path}: [tool.gpuenergy.{name}] must be a table of {of}.")
    return path, table
