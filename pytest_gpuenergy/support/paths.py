"""Finds folders and settings: this package's files, caches and state, and a project's table."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support.errors import DeviceError, InputError
from pytest_gpuenergy.support.files import is_file, is_there, own_folder

_COMPILED = "COMPILE_CACHE_DIR"
CACHE_FOLDERS = (
    *("charts", "chosen", "cooling", "cubin", "cutlass", "emulated/host", "emulated/traffic"),
    *("lowered", "programs", "references", "seeds", "triton", "verified"),
)
"""Folders that this package creates in its cache."""
CACHE_ENTRY = re.compile(
    r"(host-)?[0-9a-f]{12,64}([-.][\w.-]+)?|\.(gpuenergy-)?[0-9a-f]{16,64}[\w.-]*\.tmp|"
    r"\.(host|build)-[\w-]+"
)
"""Names in these folders: the hash of what an entry was made from, or an unfinished build.

The user can choose the cache folder, so the name of a folder in it alone proves nothing.
"""


def cache_dir(*parts: str) -> Path:
    """Return a folder for files that can be made again, such as compiled kernels and references.

    It is under ``$GPUENERGY_CACHE``, else ``$XDG_CACHE_HOME/pytest-gpuenergy`` if that is absolute,
    else ``~/.cache/pytest-gpuenergy``, and is created if missing. Its contents may be executed.

    Raises:
        InputError: the folder cannot be created, or other users can change its contents.
    """
    return _made("GPUENERGY_CACHE", "XDG_CACHE_HOME", ".cache", *parts)


def compiled_dir(*parts: str) -> Path:
    """Return a folder for compiled kernels, under ``$COMPILE_CACHE_DIR`` if set, else `cache_dir`.

    Raises:
        InputError: the folder cannot be created or written, or other users can change its contents.
    """
    if not os.environ.get(_COMPILED):
        return cache_dir(*parts)
    folder = _made(_COMPILED, "", "", *parts)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"The folder {folder} cannot be written: set {_COMPILED} to one in which you, and only "
            "you, can write."
        )
    return folder


def compiled_variable() -> str:
    """Return the name of the variable that determines the folder of compiled kernels."""
    return _COMPILED if os.environ.get(_COMPILED) else "GPUENERGY_CACHE"


def settle_places() -> None:
    """Make the paths in these variables absolute, before the working directory changes."""
    for variable in ("GPUENERGY_CACHE", "GPUENERGY_STATE", _COMPILED):
        if own := os.environ.get(variable):
            os.environ[variable] = str(Path(own).absolute())


@contextmanager
def written_to_cache(folder: Path) -> Iterator[None]:
    """Report a failed write of a compiled kernel, which cannot run without its file.

    Raises:
        DeviceError: a file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise DeviceError(
            f"{folder} cannot be written ({error.strerror}): free some space, or set "
            f"{compiled_variable()} to another folder."
        ) from None


def state_dir(*parts: str) -> Path:
    """Return a folder for what must survive a crash, such as prior power limits.

    It is under ``$GPUENERGY_STATE``, else ``$XDG_STATE_HOME/pytest-gpuenergy``, else
    ``~/.local/state/pytest-gpuenergy``, and is created if missing.

    Raises:
        InputError: the folder cannot be created, or other users can change its contents.
    """
    return _made("GPUENERGY_STATE", "XDG_STATE_HOME", ".local/state", *parts)


def _made(variable: str, xdg: str, home: str, *parts: str) -> Path:
    if own := os.environ.get(variable):
        settle_places()  # a child process may work in another folder
        base = Path(own).absolute()
    elif Path(root := os.environ.get(xdg, "")).is_absolute():  # XDG: ignore relative paths
        base = Path(root) / "pytest-gpuenergy"
    else:
        try:
            base = Path.home() / home / "pytest-gpuenergy"
        except RuntimeError:
            raise InputError(
                f"Your home folder is unknown ($HOME is not set): set {variable} to a writable "
                "folder."
            ) from None
    try:
        return own_folder(base.joinpath(*parts))
    except OSError as error:
        raise InputError(
            f"The folder {base.joinpath(*parts)} cannot be used ({error.strerror}): "
            f"set {variable} to a folder in which only you can write."
        ) from None


def cuda_dir() -> Path:
    """Return ``<checkout>/cuda`` or, in an installed wheel, ``pytest_gpuenergy/_cuda``.

    Raises:
        DeviceError: neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "cuda", package / "_cuda"):
        if is_file(folder / "host" / "kernel.h"):
            return folder
    raise DeviceError(f"The CUDA sources beside {package} are missing: reinstall pytest-gpuenergy.")


_TABLES = ("powercaps", "workloads")
"""What ``[tool.gpuenergy]`` of a pyproject.toml contains."""


def project_table(start: Path, name: str, of: str) -> tuple[Path, dict[str, Any]]:
    """Return ``[tool.gpuenergy.NAME]`` of the pyproject.toml in ``start`` or a folder above it.

    Args:
        start: the project's folder, or one inside it.
        name: the table's name.
        of: what the table contains, for messages.

    Returns:
        The file, and the table, which is empty if there is no such file or table.

    Raises:
        InputError: the file cannot be read, the entry is not a table, or ``[tool.gpuenergy]`` has
            another entry than the `_TABLES`.
    """
    path = nearest(start, "pyproject.toml")
    if path is None:
        return start.resolve() / "pyproject.toml", {}
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
    for key in ("tool", "gpuenergy", name):
        if key == name and (unknown := sorted({*table} - {*_TABLES})):
            raise InputError(
                f"{path}: [tool.gpuenergy] has {unknown[0]!r:.40}, but only takes the tables "
                f"{' and '.join(_TABLES)}: correct the name, or write options of pytest to "
                "[tool.pytest.ini_options]."
            )
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise InputError(f"{path}: [tool.gpuenergy.{name}] must be a table of {of}.")
    return path, table


def nearest(start: Path, name: str | Path) -> Path | None:
    """Return ``name`` in ``start`` or the nearest folder above that has it; None if none has it.

    Folders above ``start`` that may not be searched are skipped.

    Raises:
        InputError: there is no permission for ``start`` itself.
    """
    folder = start.resolve()
    if is_there(folder / name):
        return folder / name
    for parent in folder.parents:
        with suppress(InputError):  # another user's folder
            if is_there(parent / name):
                return parent / name
    return None
