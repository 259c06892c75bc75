"""Where things are: this package's own files, its caches and state, and a project's settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support.errors import DeviceError, InputError
from pytest_gpuenergy.support.files import is_file, is_there, own_folder

_COMPILED = "COMPILE_CACHE_DIR"


def cache_dir(*parts: str) -> Path:
    """A folder for what can be regenerated: compiled kernels, references, lowered records.

    Under ``$GPUENERGY_CACHE``, else ``$XDG_CACHE_HOME/pytest-gpuenergy`` if that is absolute, else
    ``~/.cache/pytest-gpuenergy``. It is created if missing. Its contents may be executed.

    Raises:
        InputError: it cannot be created, or other users can change its contents.
    """
    return _made("GPUENERGY_CACHE", "XDG_CACHE_HOME", ".cache", *parts)


def compiled_dir(*parts: str) -> Path:
    """As `cache_dir`, for compiled kernels: under ``$COMPILE_CACHE_DIR`` if that is set.

    Raises:
        InputError: it cannot be created or written, or other users can change its contents.
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
    """The variable to set for another folder of compiled kernels."""
    return _COMPILED if os.environ.get(_COMPILED) else "GPUENERGY_CACHE"


def settle_places() -> None:
    """Make the variables above absolute, before this process changes its working directory."""
    for variable in ("GPUENERGY_CACHE", "GPUENERGY_STATE", _COMPILED):
        if own := os.environ.get(variable):
            os.environ[variable] = str(Path(own).absolute())


@contextmanager
def written_to_cache(folder: Path) -> Iterator[None]:
    """For writes of compiled kernels, which are required, not optional: reports a failed one.

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
    """A folder for what must survive a crash: prior power limits, the emulated GPU's state.

    Under ``$GPUENERGY_STATE``, else ``$XDG_STATE_HOME/pytest-gpuenergy``, else
    ``~/.local/state/pytest-gpuenergy``. It is created if missing.

    Raises:
        InputError: it cannot be created, or other users can change its contents.
    """
    return _made("GPUENERGY_STATE", "XDG_STATE_HOME", ".local/state", *parts)


def _made(variable: str, xdg: str, home: str, *parts: str) -> Path:
    if own := os.environ.get(variable):
        settle_places()  # a child process may work in another folder
        base = Path(own).absolute()
    elif Path(root := os.environ.get(xdg, "")).is_absolute():  # others are to be ignored
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
    """``<checkout>/cuda`` in a checkout; ``pytest_gpuenergy/_cuda`` in an installed wheel.

    Raises:
        DeviceError: neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "cuda", package / "_cuda"):
        if is_file(folder / "host" / "kernel.h"):
            return folder
    raise DeviceError(f"The CUDA sources beside {package} are missing: reinstall pytest-gpuenergy.")


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
