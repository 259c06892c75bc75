"""Compiles host programs in CUDA C++ with nvcc, in child processes, and caches them by content."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

from pytest_gpuenergy.devices.cuda.compilers import Binary, Compilers
from pytest_gpuenergy.kernels.program import CudaProgram
from pytest_gpuenergy.support.errors import KernelFault
from pytest_gpuenergy.support.files import is_folder, is_there, write_atomically
from pytest_gpuenergy.support.paths import written_to_cache

_OPTIONS = (
    "-shared",
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-w",
    "-no-compress",  # the machine code is searched for instructions
    # With unique symbols, programs would share variables that have the same name in both.
    "-Xcompiler=-fPIC,-fno-gnu-unique",
)
_FIRST_WITH_OWN_FEATURES = 90
_FORMAT = 1
_TIMEOUT_S = 900.0  # templates take a minute on a busy machine
_RELEASE = re.compile(r"release [\d.]+, V[\d.]+")


def find_nvcc() -> str | None:
    """The path of nvcc; None where there is none on the PATH."""
    return shutil.which("nvcc")


def target_of(architecture: str) -> str:
    """The option that makes machine code for ``sm_90`` and the like.

    From sm_90 on, it may use the instructions that only this architecture has (sm_90a).
    """
    number = architecture.removeprefix("sm_")
    suffix = "a" if int(number) >= _FIRST_WITH_OWN_FEATURES else ""
    return f"-gencode=arch=compute_{number}{suffix},code=sm_{number}{suffix}"


class Nvcc:
    """The child's side: runs nvcc. Needs no GPU."""

    def compile(self, nvcc: str, source: str, options: list[str]) -> bytes:
        """A shared object.

        Raises:
            KernelFault: the text does not compile.
        """
        with tempfile.TemporaryDirectory(prefix="gpuenergy-nvcc-") as folder:
            text, library = Path(folder, "program.cu"), Path(folder, "program.so")
            text.write_text(source)
            done = subprocess.run(
                [nvcc, *options, text, "-o", library],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            if done.returncode == 0 and library.exists():
                return library.read_bytes()
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines()]
        said = [line for line in lines if "error" in line or "fatal" in line] or lines
        raise KernelFault("compile", f"nvcc: {next(filter(None, said), 'it failed')}".rstrip())


class ProgramCompilers(Compilers[CudaProgram, Binary]):
    """Compiles programs, those of equal text once, and caches the shared objects on disk."""

    def __init__(self, architecture: str, cache: Path, processes: int | None = None) -> None:
        super().__init__(f"{__name__}:Nvcc", processes, timeout_s=_TIMEOUT_S)
        self._target = target_of(architecture)
        self._cache = cache

    @cached_property
    def version(self) -> str:
        """What nvcc says of itself, such as ``release 13.0, V13.0.48``.

        Raises:
            KernelFault: there is no nvcc, or it does not work.
        """
        nvcc = _required()
        try:
            done = subprocess.run(
                [nvcc, "--version"], capture_output=True, text=True, errors="replace", check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise KernelFault("compile", f"{nvcc} does not work: {error}.") from None
        found = _RELEASE.search(done.stdout)
        return found[0] if found else done.stdout.strip()

    def _key(self, kernel: CudaProgram) -> str:
        return json.dumps(kernel.compiled)

    def _compile(self, kernel: CudaProgram) -> Binary:
        key = [_FORMAT, self._target, _OPTIONS, self.version, self._key(kernel)]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        library = self._cache / f"{digest}.so"
        if not is_there(library):
            options = [self._target, *_OPTIONS]
            if kernel.headers is not None:
                if not is_folder(folder := Path(kernel.headers.folder)):
                    raise KernelFault(
                        "compile", f"{kernel.label} needs the headers in {folder}, which is gone."
                    )
                options.append(f"-I{folder}")
            code = self._call("compile", _required(), kernel.source, options)
            assert isinstance(code, bytes)
            with written_to_cache(self._cache):
                write_atomically(library, code)
        return Binary(library, {})


def _required() -> str:
    nvcc = find_nvcc()
    if nvcc is None:
        raise KernelFault("compile", "nvcc is not on the PATH: install the CUDA toolkit.")
    return nvcc
