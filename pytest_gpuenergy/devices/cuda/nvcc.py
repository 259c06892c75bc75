"""Compiles host programs in CUDA C++ with nvcc, in child processes, and caches them by content."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path

from pytest_gpuenergy.devices.cuda.compilers import Binary, Compilers
from pytest_gpuenergy.kernels import CudaProgram
from pytest_gpuenergy.support import (
    KernelFault,
    is_file,
    is_folder,
    is_there,
    run_captured,
    write_atomically,
    written_to_cache,
)

_OPTIONS = (
    "-shared",
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-w",
    "-no-compress",  # so that the machine code can be searched for instructions
    # With unique symbols, programs would share variables of the same name.
    "-Xcompiler=-fPIC,-fno-gnu-unique",
)
_FORMAT = 1
_TIMEOUT_S = 900.0  # templates take a minute on a busy machine
_RELEASE = re.compile(r"release [\d.]+, V[\d.]+")


def find_nvcc() -> str | None:
    """Return the path of nvcc, or None if it is not on the PATH."""
    return shutil.which("nvcc")


def nvcc_version(nvcc: str) -> str:
    """Return nvcc's version, such as ``release 13.0, V13.0.48``; empty if nvcc does not work."""
    try:
        done = run_captured([nvcc, "--version"])
    except OSError:
        return ""
    found = _RELEASE.search(done.stdout)
    return found[0] if found else ""


def nvcc_target(architecture: str) -> str:
    """Return nvcc's option for the machine code of an architecture such as ``sm_90a``."""
    number = architecture.removeprefix("sm_")
    return f"-gencode=arch=compute_{number},code=sm_{number}"


class Nvcc:
    """Runs nvcc in a child process; needs no GPU."""

    def compile(self, nvcc: str, source: str, options: list[str]) -> bytes:
        """Compile a program and return the shared object."""
        with tempfile.TemporaryDirectory(prefix="gpuenergy-nvcc-") as folder:
            text, library = Path(folder, "program.cu"), Path(folder, "program.so")
            text.write_text(source)
            done = run_captured([nvcc, *options, text, "-o", library])
            if done.returncode == 0 and is_file(library):
                return library.read_bytes()
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines()]
        errors = [line for line in lines if "error" in line or "fatal" in line] or lines
        raise KernelFault("compile", f"nvcc: {next(filter(None, errors), 'it failed')}".rstrip())


class NvccCompilers(Compilers[CudaProgram, Binary]):
    """Compiles host programs with nvcc, and caches the shared objects on disk."""

    def __init__(self, architecture: str, cache: Path, processes: int | None = None) -> None:
        super().__init__(f"{__name__}:Nvcc", processes=processes, timeout_s=_TIMEOUT_S)
        self._target = nvcc_target(architecture)
        self._cache = cache

    def _key(self, source: CudaProgram) -> str:
        return json.dumps(source.compiled)

    def _compile(self, source: CudaProgram) -> Binary:
        nvcc = find_nvcc()
        version = nvcc_version(nvcc) if nvcc else ""
        if nvcc is None or not version:
            raise KernelFault(
                "compile", f"{nvcc or 'nvcc'} does not work: repair the CUDA toolkit."
            )
        key = [_FORMAT, self._target, _OPTIONS, version, self._key(source)]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        library = self._cache / f"{digest}.so"
        if not is_there(library):
            options = [self._target, *_OPTIONS]
            if (headers := source.headers) is not None:
                if not is_folder(Path(headers.folder)):
                    raise KernelFault(
                        "compile",
                        f"{source.label} needs {headers.name}, which is not in {headers.folder}.",
                    )
                options.append(f"-I{headers.folder}")
            code = self._call("compile", nvcc, source.source, options)
            assert isinstance(code, bytes)
            with written_to_cache(self._cache):
                write_atomically(library, code)
        return Binary(library, {})
