"""The host compiler and what is built once for all kernels: precompiled header and runtime."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.devices.emulated import guard as guard_script
from pytest_gpuenergy.devices.emulated.outline import CANNOT
from pytest_gpuenergy.support.cuda_sources import cuda_dir
from pytest_gpuenergy.support.errors import DeviceError, KernelFault
from pytest_gpuenergy.support.paths import written_to_cache

_COMPILE_TIMEOUT_S = 300.0
_COMPILE_BYTES = 8 << 30
# -O1: a kernel's text is unrolled already, and -O2 takes up to twenty times as long to compile.
# Multiply-adds are fused where the host can (-ffp-contract=fast with -march=native), as nvcc does
# by default (-fmad=true). Addresses are fixed (-no-pie) for cheap access to shared variables.
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-pie",
    "-fno-stack-protector",
    "-fmax-errors=5",
    "-w",
)
# A GPU compiler unrolls more than -O1 does, and what indexes a thread's own array by a loop's
# variable is several times as fast unrolled. clang unrolls as it is.
_GCC_UNROLL = (
    "-fpeel-loops",
    "--param=max-completely-peel-times=32",
    "--param=max-completely-peeled-insns=400",
)
# GCC frees and asks for the same large blocks again and again; keeping them halves its system time.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "67108864",
}
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fno-pie", "-w")
_VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    # Only the compiler's half of the sanitizers: races.cpp is what they call.
    "checked": (
        "-fsanitize=thread,alignment",
        "-fno-sanitize-recover=alignment",
        "-DCUHOST_CHECKED",
    ),
}
_ALL_FLAGS = (_FLAGS, _GCC_UNROLL, _RUNTIME_FLAGS, _VARIANTS)
_LAYOUT = "2"
"""Of the folder of what is prepared."""
_RUNTIME = ("main", "memory", "report", "scheduler")
_CHECKED_RUNTIME = ("races", "warps")
_ERROR = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$")
_PLACE = re.compile(r"^\S*kernel\.cu:(\d+):")
_REFUSED = re.compile(
    r"(?:attribute error|'error' attribute): (.*)$|#error (cannot run on the emulated GPU.*)$"
)

# A name that only CUDA can mean, and that nothing declares here; in GCC's words, then in clang's.
_CUDA_NAME = r"'(__\w+|clock(?:64)?|half2?)'"
_UNKNOWN = re.compile(rf"{_CUDA_NAME} was not declared|undeclared identifier {_CUDA_NAME}")


@functools.cache
def build_version() -> str:
    """What identifies how kernels are built, whatever the compiler: verdicts hold for this only.

    Raises:
        DeviceError: as `cuda_dir`.
    """
    digest = hashlib.sha256(repr(_ALL_FLAGS).encode())
    for path in sorted((cuda_dir() / "host").iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def find_compiler() -> str:
    """The C++ compiler: ``$CXX``, else ``g++``, else ``clang++``.

    Raises:
        DeviceError: there is none.
    """
    if named := os.environ.get("CXX"):
        if found := shutil.which(named):
            return found
        raise DeviceError(
            f"The emulated GPU needs a C++ compiler and $CXX names {named!r}, which is not there: "
            "unset CXX or correct it."
        )
    for name in ("g++", "clang++"):
        if found := shutil.which(name):
            return found
    raise DeviceError(
        "The emulated GPU runs CUDA text with a C++ compiler and found none: install g++ or "
        "clang++, or name one in $CXX."
    )


@dataclass(frozen=True)
class Toolchain:
    """A compiler with the folder of its precompiled headers and runtime objects."""

    compiler: str
    version: str
    key: str
    folder: Path

    @classmethod
    def prepare(cls, cache: Path, compiler: str, jobs: int) -> Toolchain:
        """Build what is missing in ``cache``; a few seconds once per compiler and version.

        Of several processes that need it at the same time one builds, and the others wait.

        Raises:
            DeviceError: the compiler cannot build it.
        """
        version = _version(compiler)
        content = [_LAYOUT, compiler, version, _processor(), build_version()]
        key = hashlib.sha256("\0".join(content).encode()).hexdigest()
        tools = cls(compiler, version, key, cache / f"host-{key[:16]}")
        if not tools._is_built():
            with _locked(cache):
                if not tools.folder.is_dir():
                    tools._build(cache, jobs)
                tools._precompile_headers(cache)
        return tools

    def compile(self, text: str, variants: Sequence[str], program: Path) -> None:
        """Compile ``text`` in each of ``variants`` and link them to ``program``, atomically.

        Raises:
            KernelFault: ``compile``, with the first error and its line.
            DeviceError: what was prepared is gone.
        """
        if not self.folder.is_dir():
            raise DeviceError(f"{self.folder} was removed while it was needed: start again.")
        units = _RUNTIME + (_CHECKED_RUNTIME if "checked" in variants else ())
        runtime = [f"{self.folder / name}.o" for name in units]
        with tempfile.TemporaryDirectory(dir=program.parent, prefix=".build-") as name:
            folder = Path(name)
            source = folder / "kernel.cpp"
            with written_to_cache(folder):
                source.write_text(text)
            objects = []
            for variant in variants:
                objects.append(str(folder / f"{variant}.o"))
                header = str(self.folder / variant / "kernel.h")
                done = self._call(
                    folder,
                    *self._flags(variant),
                    "-include",
                    header,
                    "-c",
                    str(source),
                    "-o",
                    objects[-1],
                )
                if done.returncode:
                    raise KernelFault("compile", _first_error(done.stderr))
            done = self._call(folder, "-no-pie", *objects, *runtime, "-o", str(folder / "program"))
            if done.returncode:
                raise KernelFault("compile", _first_error(done.stderr))
            (folder / "program").replace(program)

    def _is_built(self) -> bool:
        return all(path.exists() for path in self._precompiled())

    def _precompiled(self) -> list[Path]:
        """The precompiled header of each variant, which are made last."""
        suffix = "pch" if "clang" in self.version else "gch"
        return [self.folder / variant / f"kernel.h.{suffix}" for variant in _VARIANTS]

    def _flags(self, variant: str) -> list[str]:
        # Few blocks of the checked build are run: there it would cost more than it saves.
        own = _GCC_UNROLL if variant == "plain" and "clang" not in self.version else ()
        return [*_FLAGS, *own, *_VARIANTS[variant]]

    def _call(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        lifeline, ours = os.pipe()
        guard = [sys.executable, "-I", "-S", guard_script.__file__, str(lifeline)]
        try:
            process = subprocess.Popen(
                [*guard, str(_COMPILE_BYTES), self.compiler, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # Its temporary files are removed with the folder, however it ends.
                env={**os.environ, **_MALLOC, "LC_ALL": "C", "TMPDIR": str(folder)},
                pass_fds=[lifeline],
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(lifeline)
        with process:
            try:
                said = process.communicate(timeout=_COMPILE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise KernelFault(
                    "compile", f"The host compiler did not finish within {_COMPILE_TIMEOUT_S:g} s."
                ) from None
            finally:
                os.close(ours)  # now the compiler ends, if it has not
        if process.returncode == guard_script.CANNOT_START:
            raise DeviceError(
                f"The compiler {self.compiler} cannot be started ({said[1].strip()}): set $CXX."
            )
        return subprocess.CompletedProcess(arguments, process.returncode, *said)

    def _build(self, cache: Path, jobs: int) -> None:
        with tempfile.TemporaryDirectory(dir=cache, prefix=".host-") as name:
            folder = Path(name) / "built"
            with written_to_cache(cache):
                for variant in _VARIANTS:
                    (folder / variant).mkdir(parents=True)
                    for path in (cuda_dir() / "host").glob("*.h"):
                        shutil.copyfile(path, folder / variant / path.name)
            commands = []
            for unit in _RUNTIME + _CHECKED_RUNTIME:
                source = str(cuda_dir() / "host" / f"{unit}.cpp")
                commands.append([*_RUNTIME_FLAGS, "-c", source, "-o", f"{folder / unit}.o"])
            self._run_all(Path(name), commands, jobs)
            try:
                folder.rename(self.folder)
            except OSError:
                if not self.folder.is_dir():  # another process was first
                    raise

    def _precompile_headers(self, cache: Path) -> None:
        """In place, as clang's hold the path of what they were made from."""
        if self._is_built():
            return
        made = self._precompiled()
        headers = [path.with_suffix("") for path in made]
        with tempfile.TemporaryDirectory(dir=cache, prefix=".host-") as name:
            drafts = [Path(name) / variant for variant in _VARIANTS]
            commands = [
                [*self._flags(variant), "-x", "c++-header", str(header), "-o", str(draft)]
                for variant, header, draft in zip(_VARIANTS, headers, drafts, strict=True)
            ]
            self._run_all(Path(name), commands, len(commands))
            for draft, path in zip(drafts, made, strict=True):
                draft.replace(path)

    def _run_all(self, folder: Path, commands: Sequence[Sequence[str]], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(lambda command: self._call(folder, *command), commands))
        for done in results:
            if done.returncode:
                raise DeviceError(
                    f"{self.compiler} cannot build the emulated GPU "
                    f"({_first_error(done.stderr)}): set $CXX to g++ 11 or later, or clang++."
                )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; several on a file system that cannot lock a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _first_error(stderr: str) -> str:
    lines = stderr.splitlines()
    for number, line in enumerate(lines):
        if match := _ERROR.match(line):
            refused = _REFUSED.search(match["text"])
            text = (refused[1] or refused[2]).rstrip('"') if refused else match["text"]
            if "inline_ptx_cannot_run" in text:  # assembler text from a macro, see kernel.h
                text = f"{CANNOT}: inline PTX"
            if unknown := _UNKNOWN.search(text):
                text = f"{CANNOT}: {unknown[1] or unknown[2]}"
            if match["file"] == "launch":
                return f"the launch does not fit the text: {text}"
            if match["file"].endswith("kernel.cu"):
                return f"line {match['line']}: {text}"
            # The error is in our headers: tell the first place in the text that led there.
            places = map(_PLACE.match, lines[number + 1 :])
            place = next((found for found in places if found), None)
            return f"line {place[1]}: {text}" if place else text
    for words in (["out of memory"], ["undefined reference", "error"]):
        for line in lines:
            if any(word in line for word in words):
                return line.strip()
    return lines[-1] if lines else "the compiler died without a message"


def _version(compiler: str) -> str:
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
        raise DeviceError(f"{compiler} is no working C++ compiler: set $CXX to g++ or clang++.")
    return done.stdout.splitlines()[0].strip()


def _processor() -> str:
    """What -march=native means here: a shared cache must not mix processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("model\t", "flags", "Features"))]
    return "\n".join([platform.machine(), platform.processor(), *sorted(set(features))])
