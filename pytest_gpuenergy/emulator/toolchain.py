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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.emulator import linking
from pytest_gpuenergy.emulator.compiler import run_compiler, version_of
from pytest_gpuenergy.emulator.conversions import conversions_in, with_conversions
from pytest_gpuenergy.emulator.diagnostics import first_error
from pytest_gpuenergy.emulator.flags import (
    MATRIX_FLAGS,
    PRECOMPILED,
    RUNTIME_FLAGS,
    build_version,
    fills_locals,
    kernel_flags,
)
from pytest_gpuenergy.emulator.translate import KernelText
from pytest_gpuenergy.emulator.uninitialized import needs_zeros
from pytest_gpuenergy.support import (
    DeviceError,
    KernelFault,
    build_folder,
    compiled_variable,
    cuda_dir,
    is_folder,
    is_there,
    lock,
    sweep,
    written_to_cache,
)

_NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")
_LAYOUT = "13"  # version of the layout of the prepared folder
_VECTORIZED = ("matrices", "products", "warpgroups")
_SANDBOX = "sandbox"
_TAKES_MEMORY = re.compile(r"\b(?:new|delete)\b")
# Mangled `new`, `new[]`, and forms of `delete` and `delete[]`. The runtime needs the usual ones,
# and GCC crashes where a text itself renames them.
_WRAPPED = tuple(
    f"-Wl,--wrap=_Z{name}" for name in ("nwm", "nam", "dlPv", "daPv", "dlPvm", "daPvm")
)
_LOADER_CACHE = "/etc/ld.so.cache"
_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_LOADED = re.compile(r"(/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)


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

    def compile(self, text: KernelText, variants: Sequence[str], program: Path) -> None:
        """Compile ``text`` in each of ``variants`` and link them to ``program``, atomically.

        Raises:
            KernelFault: ``compile``, with the first error and its line.
            DeviceError: the prepared headers and runtime are gone.
        """
        if not is_folder(self.folder):
            raise DeviceError(f"{self.folder} was removed while it was in use: start again.")
        with build_folder(program.parent) as folder:
            try:
                objects = self._objects(folder, variants, text.marked, text.source)
            except KernelFault:
                # Without marks the errors are those of the text's author, and there may be none.
                if text.unmarked == text.marked:
                    raise
                objects = self._objects(folder, variants, text.unmarked, text.source)
            if _TAKES_MEMORY.search(text.source):
                objects = [self._with_heap(folder, one) for one in objects]
            linked = folder / "program"
            run = functools.partial(run_compiler, self.compiler, scratch=folder)
            checked = "checked" in variants
            self._said(linking.link(run, self.folder, objects, linked, checked=checked), folder)
            linked.replace(program)

    def _objects(self, folder: Path, variants: Sequence[str], text: str, source: str) -> list[str]:
        objects = []
        for variant in variants:
            made, said = self._compiled(folder, variant, text)
            if places := conversions_in(said):
                # Where a mark makes a call ambiguous, the first object is what there is.
                with contextlib.suppress(KernelFault):
                    again = with_conversions(text, places)
                    made, _ = self._compiled(folder, variant, again)
                    text = again
            objects.append(made)
            runs = list(variants) == ["plain"] and fills_locals(self.version)
            if runs and needs_zeros(source, said):
                objects.append(self._compiled(folder, "zeroed", text)[0])
        return objects

    @property
    def sandbox(self) -> Path:
        """The program that starts compiled programs, see sandbox.cpp."""
        return self.folder / _SANDBOX

    @functools.cached_property
    def libraries(self) -> tuple[str, ...]:
        """What a compiled program reads when it starts: the loader and its libraries.

        They are those of the runtime alone, as its loader lists them; where it does not, the
        folders that usually hold them.
        """
        told = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run(
                [self.folder / linking.TRACED],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env={"LC_ALL": "C", "LD_TRACE_LOADED_OBJECTS": "1"},
                timeout=60,
                check=False,
            ).stdout
        return (_LOADER_CACHE, *(_LOADED.findall(told) or _LIBRARY_FOLDERS))

    def _with_heap(self, folder: Path, compiled: str) -> str:
        """The object with calls of heap.cpp for its `new` and `delete`."""
        made = f"{compiled}.heap.o"
        self._run(folder, "-no-pie", "-nostdlib", "-r", *_WRAPPED, compiled, "-o", made)
        return made

    def _compiled(self, folder: Path, variant: str, text: str) -> tuple[str, str]:
        """The object of ``text`` as it is, and what the compiler says."""
        with (
            written_to_cache(folder),
            tempfile.NamedTemporaryFile(
                "w", dir=folder, prefix="kernel-", suffix=".cpp", delete=False
            ) as source,
        ):
            source.write(text)
        made = f"{source.name}.{variant}.o"
        headers = self.folder / variant
        command = [*self._flags(variant), f"-I{headers}", "-include", str(headers / "kernel.h")]
        return made, self._run(folder, *command, "-c", source.name, "-o", made)

    def _run(self, scratch: Path, *arguments: str) -> str:
        return self._said(run_compiler(self.compiler, *arguments, scratch=scratch), scratch)

    def _said(self, done: subprocess.CompletedProcess[str], scratch: Path) -> str:
        """What the compiler said, unless it failed."""
        if done.returncode:
            if full := next((words for words in _NO_ROOM if words in done.stderr), None):
                raise DeviceError(
                    f"{scratch.parent} cannot be written ({full}): free some space, or set "
                    f"{compiled_variable()} to another folder."
                )
            raise KernelFault("compile", first_error(done.stderr))
        return done.stderr

    def _is_built(self) -> bool:
        return all(is_there(path) for path in self._precompiled())

    def _precompiled(self) -> list[Path]:
        """The precompiled header of each variant; they are built last."""
        suffix = "pch" if "clang" in self.version else "gch"
        return [self.folder / variant / f"kernel.h.{suffix}" for variant in self._variants]

    @property
    def _variants(self) -> tuple[str, ...]:
        """Those that the compiler has."""
        return (*PRECOMPILED, "zeroed") if fills_locals(self.version) else PRECOMPILED

    def _flags(self, variant: str) -> list[str]:
        return kernel_flags(variant, self.version)

    def _build(self, cache: Path, jobs: int) -> None:
        with build_folder(cache) as scratch:
            folder = scratch / "built"
            with written_to_cache(cache):
                for variant in self._variants:
                    (folder / variant).mkdir(parents=True)
                    for path in (cuda_dir() / "host").glob("*.h"):
                        shutil.copyfile(path, folder / variant / path.name)
            commands = []
            for unit in (*linking.RUNTIME, *linking.CHECKED_RUNTIME, _SANDBOX):
                source = str(cuda_dir() / "host" / f"{unit}.cpp")
                flags = [*RUNTIME_FLAGS, *(MATRIX_FLAGS if unit in _VECTORIZED else ())]
                commands.append([*flags, "-c", source, "-o", f"{folder / unit}.o"])
            self._run_all(scratch, commands, jobs)
            run = functools.partial(run_compiler, self.compiler, scratch=scratch)
            self._raise_if_failed(linking.build_runtime(run, folder))
            started = ["-no-pie", f"{folder / _SANDBOX}.o", "-o", str(folder / _SANDBOX)]
            self._run_all(scratch, [started], 1)
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
            drafts = [scratch / variant for variant in self._variants]
            commands = [
                [
                    *self._flags(variant),
                    "-x",
                    "c++-header",
                    str(header),
                    "-o",
                    str(draft),
                ]
                for variant, header, draft in zip(self._variants, headers, drafts, strict=True)
            ]
            self._run_all(scratch, commands, len(commands))
            for draft, path in zip(drafts, made, strict=True):
                draft.replace(path)

    def _run_all(self, folder: Path, commands: Sequence[Sequence[str]], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            run = functools.partial(run_compiler, self.compiler, scratch=folder)
            results = list(pool.map(lambda command: run(*command), commands))
        for done in results:
            self._raise_if_failed(done)

    def _raise_if_failed(self, done: subprocess.CompletedProcess[str]) -> None:
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
