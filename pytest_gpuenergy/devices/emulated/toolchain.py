"""Builds kernels for the host, and once for all kernels the precompiled headers and runtime."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.devices.emulated.compiler import run_compiler, version_of
from pytest_gpuenergy.devices.emulated.conversions import (
    WARNINGS,
    conversions_in,
    with_conversions,
)
from pytest_gpuenergy.devices.emulated.diagnostics import first_error
from pytest_gpuenergy.support.cuda_sources import cuda_dir
from pytest_gpuenergy.support.errors import DeviceError, KernelFault
from pytest_gpuenergy.support.files import is_folder, is_there, lock
from pytest_gpuenergy.support.paths import written_to_cache
from pytest_gpuenergy.support.scratch import build_folder, sweep

# -O1: generated kernels are unrolled already, and -O2 takes up to twenty times as long to compile.
# -ffp-contract=fast with -march=native: multiply-adds are fused where the host can, as nvcc does by
# default (-fmad=true). -fno-pie: fixed addresses make access to shared variables cheap.
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
    # undefined.cpp holds the functions that they call.
    "-fsanitize=float-cast-overflow,shift-exponent",
    *WARNINGS,
)
_GCC_ONLY = ("-fdiagnostics-column-unit=byte", "-fno-diagnostics-show-caret")
# A GPU compiler unrolls more than GCC's -O1, and a loop over a thread's own array runs several
# times as fast unrolled. clang unrolls by itself.
_GCC_UNROLL = (
    "-fpeel-loops",
    "--param=max-completely-peel-times=32",
    "--param=max-completely-peeled-insns=400",
)
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fno-pie", "-w")
_VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    # Only the compiler's half of the sanitizers: races.cpp holds the functions they call.
    "checked": (
        "-fsanitize=thread,alignment",
        "-fno-sanitize-recover=alignment",
        "-DCUHOST_CHECKED",
    ),
}
# Accesses as volatile are reported apart: they do not race with one another.
_GCC_VOLATILE = ("--param=tsan-distinguish-volatile=1",)
_CLANG_VOLATILE = ("-mllvm", "-tsan-distinguish-volatile=1")
_ALL_FLAGS = (
    *(_FLAGS, _GCC_ONLY, _GCC_UNROLL, _RUNTIME_FLAGS, _VARIANTS),
    *(_GCC_VOLATILE, _CLANG_VOLATILE),
)
_TRANSLATOR = (
    "arithmetic",
    "conversions",
    "declarations",
    "expressions",
    "kernel_text",
    "outline",
    "spin_loops",
    "tokens",
    "toolchain",
    "translate",
)
_LAYOUT = "4"  # version of the layout of the prepared folder
_RUNTIME = ("guards", "heap", "main", "memory", "report", "scheduler", "undefined")
_CHECKED_RUNTIME = ("accesses", "order", "races", "shadow", "views", "warps")
_TAKES_MEMORY = re.compile(r"\b(?:new|delete)\b")
# Mangled `new`, `new[]`, and forms of `delete` and `delete[]`. The runtime needs the usual ones,
# and GCC crashes where a text itself renames them.
_WRAPPED = tuple(
    f"-Wl,--wrap=_Z{name}" for name in ("nwm", "nam", "dlPv", "daPv", "dlPvm", "daPvm")
)
_LOADER_CACHE = "/etc/ld.so.cache"
_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_LOADED = re.compile(r"(/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)


@functools.cache
def build_version() -> str:
    """A digest of the flags and sources that kernels are built with, whatever the compiler.

    Verdicts and access counts that are kept on disk hold for one build version only.

    Raises:
        DeviceError: as `cuda_dir`.
    """
    digest = hashlib.sha256(repr(_ALL_FLAGS).encode())
    own = [Path(__file__).with_name(f"{name}.py") for name in _TRANSLATOR]
    for path in [*sorted((cuda_dir() / "host").iterdir()), *own]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Toolchain:
    """A compiler with the folder of its precompiled headers and runtime objects."""

    compiler: str
    version: str
    key: str
    folder: Path

    @classmethod
    def prepare(cls, cache: Path, compiler: str, jobs: int) -> Toolchain:
        """Build what is missing in ``cache``, which takes a few seconds once per compiler version.

        When several processes need it at the same time, one builds it and the others wait.

        Raises:
            DeviceError: the compiler cannot build it.
        """
        version = version_of(compiler)
        content = [_LAYOUT, compiler, version, _processor(), build_version()]
        key = hashlib.sha256("\0".join(content).encode()).hexdigest()
        tools = cls(compiler, version, key, cache / f"host-{key[:16]}")
        sweep(cache)
        if not tools._is_built():
            with _locked(cache):
                if not is_folder(tools.folder):
                    tools._build(cache, jobs)
                tools._precompile_headers(cache)
        return tools

    def compile(
        self, text: str, variants: Sequence[str], program: Path, *, unmarked: Callable[[], str]
    ) -> None:
        """Compile ``text`` in each of ``variants`` and link them to ``program``, atomically.

        Args:
            text: what `translate` makes.
            variants: of the build.
            program: the file to write.
            unmarked: gives the text without marks, whose errors are those of the kernel's author.

        Raises:
            KernelFault: ``compile``, with the first error and its line.
            DeviceError: the prepared headers and runtime are gone.
        """
        if not is_folder(self.folder):
            raise DeviceError(f"{self.folder} was removed while it was in use: start again.")
        units = _RUNTIME + (_CHECKED_RUNTIME if "checked" in variants else ())
        runtime = [f"{self.folder / name}.o" for name in units]
        with build_folder(program.parent) as folder:
            try:
                objects = [self._object(folder, variant, text) for variant in variants]
            except KernelFault:
                if (plain := unmarked()) == text:
                    raise
                objects = [self._object(folder, variant, plain) for variant in variants]
            if _TAKES_MEMORY.search(text):
                objects = [self._with_heap(folder, one) for one in objects]
            linked = folder / "program"
            self._run(folder, "-no-pie", *objects, *runtime, "-o", str(linked))
            linked.replace(program)

    @functools.cached_property
    def libraries(self) -> tuple[str, ...]:
        """What a compiled program reads when it starts: the loader and its libraries.

        They are those of the runtime alone, as its loader lists them; where it does not, the
        folders that usually hold them.
        """
        told = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run(
                [self.folder / "runtime"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env={"LC_ALL": "C", "LD_TRACE_LOADED_OBJECTS": "1"},
                timeout=60,
                check=False,
            ).stdout
        return (_LOADER_CACHE, *(_LOADED.findall(told) or _LIBRARY_FOLDERS))

    def _object(self, folder: Path, variant: str, text: str) -> str:
        """The object of ``text``, in which implicit conversions are those of a GPU."""
        made, warnings = self._compiled(folder, variant, text)
        if places := conversions_in(warnings):
            # Where a mark makes a call ambiguous, the first object is what there is.
            with contextlib.suppress(KernelFault):
                made, _ = self._compiled(folder, variant, with_conversions(text, places))
        return made

    def _with_heap(self, folder: Path, compiled: str) -> str:
        """The object with calls of heap.cpp for its `new` and `delete`."""
        made = f"{compiled}.heap.o"
        self._run(folder, "-no-pie", "-nostdlib", "-r", *_WRAPPED, compiled, "-o", made)
        return made

    def _compiled(self, folder: Path, variant: str, text: str) -> tuple[str, str]:
        """The object of ``text`` as it is, and what the compiler says."""
        with (
            written_to_cache(folder),
            tempfile.NamedTemporaryFile("w", dir=folder, suffix=".cpp", delete=False) as source,
        ):
            source.write(text)
        made = f"{source.name}.{variant}.o"
        header = str(self.folder / variant / "kernel.h")
        command = [*self._flags(variant), "-include", header]
        return made, self._run(folder, *command, "-c", source.name, "-o", made)

    def _run(self, scratch: Path, *arguments: str) -> str:
        done = run_compiler(self.compiler, *arguments, scratch=scratch)
        if done.returncode:
            raise KernelFault("compile", first_error(done.stderr))
        return done.stderr

    def _is_built(self) -> bool:
        return all(is_there(path) for path in self._precompiled())

    def _precompiled(self) -> list[Path]:
        """The precompiled header of each variant; they are built last."""
        suffix = "pch" if "clang" in self.version else "gch"
        return [self.folder / variant / f"kernel.h.{suffix}" for variant in _VARIANTS]

    def _flags(self, variant: str) -> list[str]:
        checked = variant == "checked"
        if "clang" in self.version:
            return [*_FLAGS, *_VARIANTS[variant], *(_CLANG_VOLATILE if checked else ())]
        # The checked build runs only a sample: unrolling would cost more than it saves.
        own = _GCC_VOLATILE if checked else _GCC_UNROLL
        return [*_FLAGS, *_GCC_ONLY, *own, *_VARIANTS[variant]]

    def _build(self, cache: Path, jobs: int) -> None:
        with build_folder(cache) as scratch:
            folder = scratch / "built"
            with written_to_cache(cache):
                for variant in _VARIANTS:
                    (folder / variant).mkdir(parents=True)
                    for path in (cuda_dir() / "host").glob("*.h"):
                        shutil.copyfile(path, folder / variant / path.name)
            commands = []
            for unit in _RUNTIME + _CHECKED_RUNTIME:
                source = str(cuda_dir() / "host" / f"{unit}.cpp")
                commands.append([*_RUNTIME_FLAGS, "-c", source, "-o", f"{folder / unit}.o"])
            self._run_all(scratch, commands, jobs)
            objects = [f"{folder / unit}.o" for unit in _RUNTIME]
            self._run_all(scratch, [["-no-pie", *objects, "-o", f"{folder}/runtime"]], 1)
            try:
                folder.rename(self.folder)
            except OSError:
                if not is_folder(self.folder):  # another process was faster
                    raise

    def _precompile_headers(self, cache: Path) -> None:
        """In place, because clang's hold the path of the header that they were built from."""
        if self._is_built():
            return
        made = self._precompiled()
        headers = [path.with_suffix("") for path in made]
        with build_folder(cache) as scratch:
            drafts = [scratch / variant for variant in _VARIANTS]
            commands = [
                [*self._flags(variant), "-x", "c++-header", str(header), "-o", str(draft)]
                for variant, header, draft in zip(_VARIANTS, headers, drafts, strict=True)
            ]
            self._run_all(scratch, commands, len(commands))
            for draft, path in zip(drafts, made, strict=True):
                draft.replace(path)

    def _run_all(self, folder: Path, commands: Sequence[Sequence[str]], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            run = functools.partial(run_compiler, self.compiler, scratch=folder)
            results = list(pool.map(lambda command: run(*command), commands))
        for done in results:
            if done.returncode:
                raise DeviceError(
                    f"{self.compiler} cannot build the emulated GPU "
                    f"({first_error(done.stderr)}): set $CXX to g++ 11 or later, or clang++."
                )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let in one process at a time, except on a file system that cannot lock a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _processor() -> str:
    """What -march=native stands for here: a cache may be shared by different processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("model\t", "flags", "Features"))]
    return "\n".join([platform.machine(), platform.processor(), *sorted(set(features))])
