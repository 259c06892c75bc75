"""The host's C++ compiler: which one, its version, and running it within limits."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuenergy.support import DeviceError, KernelFault

TIMEOUT_S = 300.0
"""Wall time that one run of the compiler may take."""

MEMORY_BYTES = 8 << 30
"""Address space that each of the compiler's processes may use."""

_GUARD = Path(__file__).with_name("guard.sh")
_CANNOT_START = (126, 127)
"""Exit codes of a shell that cannot start a program."""

# GCC frees the same large blocks and requests them again; keeping them halves its system time.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "67108864",
}


def find_compiler() -> str:
    """The C++ compiler: ``$CXX``, else ``g++``, else ``clang++``.

    Raises:
        DeviceError: there is none.
    """
    if named := os.environ.get("CXX"):
        if found := shutil.which(named):
            return found
        raise DeviceError(
            f"The emulated GPU needs a C++ compiler, but $CXX names {named!r}, which does not "
            "exist: unset CXX or correct it."
        )
    for name in ("g++", "clang++"):
        if found := shutil.which(name):
            return found
    raise DeviceError(
        "The emulated GPU runs CUDA text with a C++ compiler, and none was found: install g++ or "
        "clang++, or name one in $CXX."
    )


def version_of(compiler: str) -> str:
    """The first line of what ``compiler --version`` prints.

    Raises:
        DeviceError: it does not work.
    """
    try:
        done = subprocess.run(
            [compiler, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            timeout=60,
            check=False,
        )
    except OSError as error:
        raise DeviceError(
            f"{compiler} cannot be started ({error.strerror}): set $CXX to g++ or clang++."
        ) from None
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode or not done.stdout.strip():
        raise DeviceError(f"{compiler} is not a working C++ compiler: set $CXX to g++ or clang++.")
    return done.stdout.splitlines()[0].strip()


def run_compiler(compiler: str, *arguments: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run ``compiler`` within `TIMEOUT_S` and `MEMORY_BYTES`; it ends when this process ends.

    Args:
        compiler: its path.
        arguments: of the command line.
        scratch: folder of its temporary files.

    Raises:
        KernelFault: ``compile``, when it takes too long.
        DeviceError: it cannot be started.
    """
    process, lifeline = _start(compiler, arguments, scratch)
    with process:
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise KernelFault(
                "compile", f"The host compiler did not finish within {TIMEOUT_S:g} s."
            ) from None
        finally:
            os.close(lifeline)  # ends the compiler if it still runs
    if process.returncode in _CANNOT_START:
        _, _, reason = stderr.strip().rpartition(": ")
        raise DeviceError(f"The compiler {compiler} cannot be started ({reason}): set $CXX.")
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def _start(
    compiler: str, arguments: Sequence[str], scratch: Path
) -> tuple[subprocess.Popen[str], int]:
    """The compiler under its guard, and the descriptor that keeps both alive while it is open."""
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", _GUARD, str(MEMORY_BYTES >> 10), compiler, *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Its temporary files are removed with the folder, however it ends.
            env={**os.environ, **_MALLOC, "LC_ALL": "C", "TMPDIR": str(scratch)},
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, ours
