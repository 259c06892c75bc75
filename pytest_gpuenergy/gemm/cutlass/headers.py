"""Finds the headers of CUTLASS."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pytest_gpuenergy.kernels import Headers
from pytest_gpuenergy.support import InputError, UnavailableError, is_file, is_folder

_PARTS = ("cutlass", "cute")
_VERSION_FILE = Path("cutlass", "version.h")
_VERSION = re.compile(r"#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)")
_LEAST_MAJOR = 3
# Where packages of Python have the headers. That of TVM lacks the files of the builders.
_PACKAGES = {
    "cutlass_library": Path("source", "include"),
    "tvm": Path("3rdparty", "cutlass", "include"),
}


def find_headers(given: Path | None) -> Headers:
    """The headers of CUTLASS.

    Args:
        given: a checkout of CUTLASS, or its folder ``include``; None: those in the package
            nvidia-cutlass, or else in that of TVM, neither of which is imported.

    Raises:
        InputError: there are none in the given folder, or they are too old.
        UnavailableError: no package has them.
    """
    folders = _installed() if given is None else iter([given, given / "include"])
    for folder in folders:
        if is_file(folder / _VERSION_FILE):
            return _headers(folder.resolve())
    if given is not None:
        raise InputError(
            f"{given} has no headers of CUTLASS (include/{_VERSION_FILE}): give --cutlass a "
            "checkout of CUTLASS, or its folder include."
        )
    raise UnavailableError(
        "CUTLASS needs its headers: pip install --no-deps nvidia-cutlass, or give --cutlass a "
        "checkout of it."
    )


def has_builders(headers: Headers) -> bool:
    """Whether the headers are complete enough for the kernels of CUTLASS 3.x."""
    builders = Path(headers.folder, "cutlass", "gemm", "collective", "builders")
    return is_file(builders / "sm90_gmma_builder.inl")


def _installed() -> Iterator[Path]:
    for package, inside in _PACKAGES.items():
        spec = find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location) / inside


@functools.cache
def _headers(folder: Path) -> Headers:
    text = (folder / _VERSION_FILE).read_text(errors="replace")
    numbers = dict(_VERSION.findall(text))
    version = ".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))
    if int(numbers.get("MAJOR", 0)) < _LEAST_MAJOR:
        raise InputError(
            f"{folder} has CUTLASS {version}, but {_LEAST_MAJOR}.0 or later is needed: give "
            "--cutlass a newer checkout."
        )
    digest = hashlib.sha256()
    for part in _PARTS:
        for path in sorted((folder / part).rglob("*")):
            if not is_folder(path):
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
                digest.update(content)
    return Headers(f"CUTLASS {version}", digest.hexdigest(), str(folder))
