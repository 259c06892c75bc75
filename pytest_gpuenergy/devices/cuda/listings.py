"""A kernel's machine code as text that people can read."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from pytest_gpuenergy.support import scratch_folder

_TIMEOUT_S = 60.0
_HEADER_BYTES = 64


def sass_of(cubin: Path) -> str | None:
    """The instructions in a cubin; None where nvdisasm is not on the PATH or cannot read it."""
    nvdisasm = shutil.which("nvdisasm")
    if nvdisasm is None:
        return None
    try:
        content = _whole(cubin.read_bytes())
        with scratch_folder(len(content)) as folder:
            copy = folder / "kernel.cubin"
            copy.write_bytes(content)
            done = subprocess.run(
                [nvdisasm, "-c", str(copy)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=True,
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _whole(cubin: bytes) -> bytes:
    """A cubin with the last byte, a zero, that CuPy 14 drops and nvdisasm misses."""
    if len(cubin) < _HEADER_BYTES:
        return cubin
    (offset,) = struct.unpack_from("<Q", cubin, 32)  # of the program headers, in ELF-64
    size, count = struct.unpack_from("<HH", cubin, 54)
    return cubin + b"\0" if len(cubin) + 1 == offset + size * count else cubin
