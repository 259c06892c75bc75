"""The C++ compiler of the host: finding it, running it within limits, and reading its errors."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuenergy.emulator.translation.ptx.statements import CANNOT
from pytest_gpuenergy.support import DeviceError, KernelFault, run_captured

TIMEOUT_S = 300.0
"""The limit for the wall time of one run of the compiler."""

MEMORY_BYTES = 8 << 30
"""The limit for the address space of each process of the compiler."""

_GUARD = Path(__file__).with_name("guard.sh")
_CANNOT_START = (126, 127)  # exit codes of a shell that cannot start a program

# GCC frees the same large blocks and requests them again; keeping them halves its system time.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "67108864",
}

_ERROR = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$")
_PLACE = re.compile(r"^\S*kernel\.cu:(\d+):")
_REQUIRED = re.compile(r"^\S*kernel\.cu:(\d+):(?:\d+:)?\s+required from")
_SEVERAL = re.compile(
    r"unable to deduce '\S*auto\S*' from '& (.*)'|reference to overloaded function '(.*)'"
)
_REFUSED = re.compile(
    rf"(?:attribute error|'error' attribute): (.*)$|(?:#error|assertion failed:?) \"?({CANNOT}.*)$"
)
# A name that only CUDA defines and the host's headers do not; in GCC's words, then in clang's.
_CUDA_NAME = r"'(__\w+|clock(?:64)?|half2?)'"
_UNKNOWN = re.compile(rf"{_CUDA_NAME} was not declared|undeclared identifier {_CUDA_NAME}")
# In CUDA's own namespaces.
_NAMESPACE = r"'(?:cuda_device::)?(?:\{anonymous\}::)?(cuda|cooperative_groups|cg)'"
_NO_MEMBER = re.compile(
    rf"'(\w+)' is not a member of {_NAMESPACE}"
    rf"|no (?:\w+ named|template named) '(\w+)' in namespace {_NAMESPACE}"
    r"|'(cuda::\w+)' has not been declared"
)


def find_compiler() -> str:
    """Return the path of the C++ compiler: ``$CXX``, else ``g++``, else ``clang++``.

    Raises:
        DeviceError: there is no compiler.
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


def compiler_version(compiler: str) -> str:
    """Return the first line of the output of ``compiler --version``.

    Raises:
        DeviceError: the compiler does not work.
    """
    try:
        status = Path(compiler).stat()
    except OSError:
        return _version(compiler, 0, 0)
    return _version(compiler, status.st_ino, status.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _version(compiler: str, _inode: int, _changed_ns: int) -> str:
    """Return what a compiler says of its version; each compiler is asked only once."""
    try:
        variables = {**os.environ, "LC_ALL": "C"}
        done = run_captured([compiler, "--version"], environment=variables, timeout_s=60)
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

    Its temporary files are in ``scratch``.

    Raises:
        KernelFault: ``compile``, when the compiler takes too long.
        DeviceError: the compiler cannot be started.
    """
    theirs, lifeline = os.pipe()  # the compiler and its guard live while ours is open
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
        os.close(lifeline)
        raise
    finally:
        os.close(theirs)
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


def first_error(stderr: str) -> str:
    """Return the first error in a compiler's output, with its line in the text if known."""
    lines = stderr.splitlines()
    for number, line in enumerate(lines):
        if match := _ERROR.match(line):
            return _error_with_line(match, lines[:number], lines[number + 1 :])
    for words in (["out of memory"], ["undefined reference", "error"]):
        for line in lines:
            if any(word in line for word in words):
                return line.strip()
    return lines[-1] if lines else "the compiler died without a message"


def _error_with_line(error: re.Match[str], before: Sequence[str], following: Sequence[str]) -> str:
    text = _plain_words(error["text"])
    if error["file"] == "launch":
        if several := _SEVERAL.search(text):
            name = re.sub(r"cuda_device::|\{anonymous\}::", "", several[1] or several[2])
            text = (
                f"{name} is no kernel of it, or one of several: give all template arguments, and "
                "overloads names of their own"
            )
        return f"the launch does not fit the text: {text}"
    if error["file"].endswith("kernel.cu"):
        return f"line {error['line']}: {text}"
    # The error is in our headers: name the first line of the kernel's text that led there.
    places = [*map(_REQUIRED.match, reversed(before)), *map(_PLACE.match, following)]
    place = next((found for found in places if found), None)
    return f"line {place[1]}: {text}" if place else text


def _plain_words(error: str) -> str:
    refused = _REFUSED.search(error)
    text = (refused[1] or refused[2]).rstrip('"') if refused else error
    if "cuhost_shared_in_a_macro" in text:  # see refused.h
        return f"{CANNOT}: __shared__ in a macro; write it in the kernel"
    if "inline_ptx_cannot_run" in text:  # inline assembler from a macro, see kernel.h
        return f"{CANNOT}: inline PTX"
    if unknown := _UNKNOWN.search(text):
        return f"{CANNOT}: {unknown[1] or unknown[2]}"
    if missing := _NO_MEMBER.search(text):
        name = f"{missing[2] or missing[4]}::{missing[1] or missing[3]}"
        return f"{CANNOT}: {missing[5] or name}"
    return text
