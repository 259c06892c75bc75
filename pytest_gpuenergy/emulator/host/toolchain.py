"""Compiles and links kernels for the host, and builds the headers and runtime that they share.

Most of what a linker does is the same for all kernels: it searches the C++ library, and joins the
runtime with those parts of the library that the runtime needs. A partial link does that once for
all, and merges a thousand sections into a few. The linker is then started without the compiler's
driver. A kernel that needs more of the C++ library is linked in the slower way.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.emulator.host.compiler import compiler_version, first_error, run_compiler
from pytest_gpuenergy.emulator.host.flags import (
    MATRIX_FLAGS,
    PRECOMPILED,
    RUNTIME_FLAGS,
    build_version,
    fills_locals,
    kernel_flags,
)
from pytest_gpuenergy.emulator.translation.marks import conversions_in, with_conversions
from pytest_gpuenergy.emulator.translation.outline import OWN_SHARED, SHARED
from pytest_gpuenergy.emulator.translation.sums import with_vectors
from pytest_gpuenergy.emulator.translation.translate import KernelText
from pytest_gpuenergy.emulator.translation.uninitialized import needs_zeros
from pytest_gpuenergy.support import (
    DeviceError,
    KernelFault,
    build_folder,
    compiled_variable,
    cuda_dir,
    is_file,
    is_folder,
    is_there,
    lock,
    run_captured,
    sweep,
    written_to_cache,
)

_NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")
"""The words by which a compiler says that it could not write its output."""
_TEXT_BEGINS = '#line 1 "kernel.cu"\n'
"""The line before the kernel's own text in its translation."""
_ORDINARY_INLINE = (
    "#undef __forceinline__\n#define __forceinline__ inline\n"
    "#define always_inline unused\n#define __always_inline__ __unused__\n"
)
"""Lets GCC decide where the text forces it to inline; what follows has no effect on the headers."""
_LAYOUT = "17"
"""The version of the layout of the prepared folder; another one is built when it changes."""
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

# The units of ``cuda/host``, in groups that are compiled as one text each, because they share their
# headers, which take half of a unit's time. More groups would only pay on more than four cores.
_RUNTIME_GROUPS = {
    "launches": (
        *("grid", "guards", "heap", "lanes", "main", "memory", "outcomes", "report"),
        *("shared", "undefined"),
    ),
    "scheduling": (
        *("bulk_copies", "copies", "named_barriers", "phases", "resident", "stacks", "scheduler"),
        "teams",
    ),
}
# Those that only checked builds need.
_CHECKED_GROUPS = {
    "accesses": ("accesses", "comparisons", "races", "shadow", "tentative", "views", "visibility"),
    "orders": ("interruptions", "order", "warps"),
}
# What only kernels with matrices need; it is compiled with the first of them. If a text needs it
# without one of these words, its first link fails, and it is linked again.
_MATRICES = "matrices"
_MATRIX_UNITS = ("matrices", "products", "warpgroups")
_WITH_MATRICES = re.compile(r"\b(?:w?g?mma|nvcuda)|(?:ld|st|mov)matrix")
_LACKS_MATRICES = re.compile(r"undefined (?:reference|symbol).*\bcuhost_")
_TRACED = "runtime"
"""The name of a program that is the runtime alone, whose loader can list its libraries."""

_RunCompiler = Callable[..., subprocess.CompletedProcess[str]]

Compiled = tuple[str, str]
"""The path of an object, and the warnings of the compiler."""
Keep = Callable[[str, Callable[[Path], Compiled]], Compiled]
"""Returns the object of a text, which a function compiles in a folder that stays for a while."""

# The ways to link; the first that works is taken. A static C++ library takes a third of the time of
# a shared one, and gold, which not every system has, half the time of the usual linker.
_STATIC = ("-static-libstdc++", "-static-libgcc")
_GOLD = "-fuse-ld=gold"
_WAYS_TO_LINK = (
    (_GOLD, "-fno-use-linker-plugin", *_STATIC),  # there is nothing to optimize at link time
    (_GOLD, *_STATIC),
    _STATIC,
    (),
)
# The runtime alone loads the mathematical library too: it tells which files kernels may read.
_WITH_MATH = ("-Wl,--no-as-needed", "-lm")
_OPTIONS = "link-options"
"""The name of the file of the prepared folder that says how to link."""
_PARTS_OF_LIBRARIES = ("-Wl,-Bstatic", "-lstdc++", "-lgcc_eh", "-lgcc")
_OTHER_LIBRARIES = ("-nodefaultlibs", "-lm", "-lgcc", "-lc")
# Only GNU's own linker merges sections that way. Nothing is thrown, so that nothing is unwound.
_MERGED = """SECTIONS {
  .text : { *(.text .text.*) }
  .rodata : { *(.rodata .rodata.*) }
  .data.rel.ro : { *(.data.rel.ro .data.rel.ro.*) }
  .data : { *(.data .data.*) }
  .bss : { *(.bss .bss.* COMMON) }
  /DISCARD/ : { *(.eh_frame) *(.gcc_except_table .gcc_except_table.*) *(.note.stapsdt) }
}
"""
_MERGING = ("-fuse-ld=bfd", "-Wl,-d", "-Wl,--force-group-allocation")
_COMMAND = "link-command"
"""The name of the file of the prepared folder with the words that start the linker itself."""
_LINKED = "(objects)"
"""The word of that command that stands for the objects of a kernel and its runtime."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler with the folder of its precompiled headers and runtime objects.

    Attributes:
        compiler: the path of the compiler.
        version: the version of the compiler, see `compiler_version`.
        key: a digest of everything that the objects depend on.
        folder: the prepared folder.
    """

    compiler: str
    version: str
    key: str
    folder: Path

    @classmethod
    def locate(cls, cache: Path, compiler: str) -> Toolchain:
        """Return the toolchain of ``compiler`` in ``cache``, whose folder may not be built yet."""
        version = compiler_version(compiler)
        content = [_LAYOUT, compiler, version, _processor(), build_version()]
        key = hashlib.sha256("\0".join(content).encode()).hexdigest()
        return cls(compiler, version, key, cache / f"host-{key[:16]}")

    @classmethod
    def prepare(cls, cache: Path, compiler: str, jobs: int) -> Toolchain:
        """Build what is missing in ``cache``; this takes a few seconds once per compiler version.

        When several processes need it at the same time, one builds it and the others wait.

        Raises:
            DeviceError: the compiler cannot build the runtime.
        """
        tools = cls.locate(cache, compiler)
        sweep(cache)
        if not tools._is_precompiled(PRECOMPILED):
            with _lock_folder(cache):
                if not is_folder(tools.folder):
                    tools._build(cache, jobs)
                tools._precompile_headers(PRECOMPILED)
        return tools

    def compile(
        self, text: KernelText, variants: Sequence[str], program: Path, keep: Keep | None = None
    ) -> None:
        """Compile ``text`` in each of ``variants`` and link them to ``program``, atomically.

        Args:
            text: the text of the kernel.
            variants: the variants, the one for checks first.
            program: the file to write.
            keep: what keeps the plain object, if other programs have it too.

        Raises:
            KernelFault: ``compile``, with the first error and its line.
            DeviceError: the prepared headers and runtime are gone.
        """
        if not is_folder(self.folder):
            raise DeviceError(f"{self.folder} was removed while it was in use: start again.")
        with build_folder(program.parent) as folder:
            try:
                objects = self._objects(folder, variants, text.marked, text.source, keep)
            except KernelFault:
                # Without marks the errors are those of the text's author, and there may be none.
                if text.unmarked == text.marked:
                    raise
                objects = self._objects(folder, variants, text.unmarked, text.source, keep)
            if _TAKES_MEMORY.search(text.source):
                objects = [self._wrap_heap_calls(folder, path) for path in objects]
            linked = folder / "program"
            run = functools.partial(run_compiler, self.compiler, scratch=folder)
            link = functools.partial(_link, run, self.folder, checked="checked" in variants)
            if _WITH_MATRICES.search(text.source):
                objects.append(self._matrices())
            done = link(objects, linked)
            if done.returncode and _LACKS_MATRICES.search(done.stderr):
                done = link([*objects, self._matrices()], linked)
            self._checked_output(done, folder)
            linked.replace(program)

    def _objects(
        self, folder: Path, variants: Sequence[str], text: str, source: str, keep: Keep | None
    ) -> list[str]:
        def compiled(variant: str, text: str) -> Compiled:
            if keep is None or variant != "plain":
                return self._compile_text(folder, variant, text)
            return keep(text, lambda lasting: self._compile_text(lasting, variant, text))

        objects = []
        for variant in variants:
            made, warnings = compiled(variant, text)
            if places := conversions_in(warnings):
                # If a mark makes a call ambiguous, keep the first object.
                with contextlib.suppress(KernelFault):
                    again = with_conversions(text, places)
                    made, _ = compiled(variant, again)
                    text = again
            objects.append(made)
            runs = list(variants) == ["plain"] and fills_locals(self.version)
            if runs and needs_zeros(source, warnings):
                if not self._is_precompiled(["zeroed"]):  # few kernels need it
                    with _lock_folder(self.folder.parent):
                        self._precompile_headers(["zeroed"])
                objects.append(self._compile_text(folder, "zeroed", text)[0])
        return objects

    def _matrices(self) -> str:
        """Return the object of the runtime that multiplies matrices; the first call compiles it."""
        made = self.folder / f"{_MATRICES}.o"
        if not is_file(made):
            with _lock_folder(self.folder.parent), build_folder(self.folder.parent) as scratch:
                if not is_file(made):
                    command = self._group_command(scratch, _MATRICES, _MATRIX_UNITS, MATRIX_FLAGS)
                    self._run_all(scratch, [command], 1)
                    (scratch / made.name).replace(made)
        return str(made)

    @property
    def sandbox(self) -> Path:
        """The program that starts compiled programs, see sandbox.cpp."""
        return self.folder / _SANDBOX

    @functools.cached_property
    def libraries(self) -> tuple[str, ...]:
        """The files that a compiled program reads when it starts: the loader and its libraries.

        These are the libraries that the loader lists for the runtime alone, or the folders that
        usually hold them if it lists none.
        """
        listed = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            variables = {"LC_ALL": "C", "LD_TRACE_LOADED_OBJECTS": "1"}
            traced = run_captured([self.folder / _TRACED], environment=variables, timeout_s=60)
            listed = traced.stdout
        return (_LOADER_CACHE, *(_LOADED.findall(listed) or _LIBRARY_FOLDERS))

    def _wrap_heap_calls(self, folder: Path, compiled: str) -> str:
        """Replace `new` and `delete` in an object by calls of heap.cpp; return the new object."""
        made = str(folder / f"{Path(compiled).name}.heap.o")
        self._run_compiler(folder, "-no-pie", "-nostdlib", "-r", *_WRAPPED, compiled, "-o", made)
        return made

    def _compile_text(self, folder: Path, variant: str, text: str) -> Compiled:
        """Compile ``text``; return the object and the warnings of the compiler."""
        if variant == "plain" and "clang" not in self.version:
            vectors = with_vectors(text)
            if vectors != text:
                with contextlib.suppress(KernelFault):
                    made, warnings = self._compile_as_it_is(folder, variant, vectors)
                    if not conversions_in(warnings):  # their places would be others
                        return made, warnings
        try:
            return self._compile_as_it_is(folder, variant, text)
        except KernelFault as fault:
            # Local classes, lambdas that capture nothing and jumps need variables that are static.
            if variant == "checked" and OWN_SHARED in text:
                return self._compile_text(folder, variant, text.replace(OWN_SHARED, SHARED))
            # GCC cannot inline a recursive function, nor one that a pointer turns out to be late.
            if "inlining failed" not in str(fault):
                raise
            own = text.replace(_TEXT_BEGINS, _ORDINARY_INLINE + _TEXT_BEGINS, 1)
            return self._compile_as_it_is(folder, variant, own)

    def _compile_as_it_is(self, folder: Path, variant: str, text: str) -> Compiled:
        with (
            written_to_cache(folder),
            tempfile.NamedTemporaryFile(
                "w", dir=folder, prefix="kernel-", suffix=".cpp", delete=False
            ) as source,
        ):
            source.write(text)
        made = f"{source.name}.{variant}.o"
        headers = self.folder / variant
        flags = kernel_flags(variant, self.version)
        command = [*flags, f"-I{headers}", "-include", str(headers / "kernel.h")]
        return made, self._run_compiler(folder, *command, "-c", source.name, "-o", made)

    def _run_compiler(self, scratch: Path, *arguments: str) -> str:
        return self._checked_output(
            run_compiler(self.compiler, *arguments, scratch=scratch), scratch
        )

    def _checked_output(self, done: subprocess.CompletedProcess[str], scratch: Path) -> str:
        """Return the output of the compiler; raise if it failed."""
        if done.returncode:
            if full := next((words for words in _NO_ROOM if words in done.stderr), None):
                raise DeviceError(
                    f"{scratch.parent} cannot be written ({full}): free some space, or set "
                    f"{compiled_variable()} to another folder."
                )
            raise KernelFault("compile", first_error(done.stderr))
        return done.stderr

    def _is_precompiled(self, variants: Sequence[str]) -> bool:
        return all(is_there(self._precompiled_header(variant)) for variant in variants)

    def _precompiled_header(self, variant: str) -> Path:
        """Return the path of the precompiled header of a variant; it is built last."""
        suffix = "pch" if "clang" in self.version else "gch"
        return self.folder / variant / f"kernel.h.{suffix}"

    def _build(self, cache: Path, jobs: int) -> None:
        with build_folder(cache) as scratch:
            folder = scratch / "built"
            with written_to_cache(cache):
                zeroed = ["zeroed"] if fills_locals(self.version) else []
                for variant in [*PRECOMPILED, *zeroed]:
                    (folder / variant).mkdir(parents=True)
                    for path in (cuda_dir() / "host").glob("*.h"):
                        shutil.copyfile(path, folder / variant / path.name)
            groups = {**_RUNTIME_GROUPS, **_CHECKED_GROUPS, _SANDBOX: (_SANDBOX,)}
            commands = [
                self._group_command(folder, group, units) for group, units in groups.items()
            ]
            self._run_all(scratch, commands, jobs)
            run = functools.partial(run_compiler, self.compiler, scratch=scratch)
            self._raise_if_failed(_build_runtime(run, folder))
            started = ["-no-pie", f"{folder / _SANDBOX}.o", "-o", str(folder / _SANDBOX)]
            self._run_all(scratch, [started], 1)
            try:
                folder.rename(self.folder)
            except OSError:
                if not is_folder(self.folder):  # another process was faster
                    raise

    def _group_command(
        self, folder: Path, group: str, units: Sequence[str], flags: Sequence[str] = ()
    ) -> list[str]:
        """Write the text of a group of units; return the command that compiles it in ``folder``."""
        source = folder / f"group-{group}.cpp"
        with written_to_cache(self.folder.parent):
            source.write_text("".join(f'#include "{unit}.cpp"\n' for unit in units))
        headers = f"-I{cuda_dir() / 'host'}"
        output = f"{folder / group}.o"
        return [*RUNTIME_FLAGS, *flags, headers, "-c", str(source), "-o", output]

    def _precompile_headers(self, variants: Sequence[str]) -> None:
        """Precompile in place, because clang's results hold the path of the header."""
        if self._is_precompiled(variants):
            return
        with build_folder(self.folder.parent) as scratch:
            drafts = {scratch / variant: self._precompiled_header(variant) for variant in variants}
            commands = []
            for variant, (draft, path) in zip(variants, drafts.items(), strict=True):
                header = ("-x", "c++-header", str(path.with_suffix("")), "-o", str(draft))
                commands.append([*kernel_flags(variant, self.version), *header])
            self._run_all(scratch, commands, len(commands))
            for draft, path in drafts.items():
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
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let in one process at a time, except on a file system that cannot lock a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _processor() -> str:
    """Return what -march=native stands for here: different processors may share a cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("model\t", "flags", "Features"))]
    return "\n".join([platform.machine(), platform.processor(), *sorted(set(features))])


def _build_runtime(run: _RunCompiler, folder: Path) -> subprocess.CompletedProcess[str]:
    """Link the runtime, alone and for kernels, in the quickest way that the compiler has.

    If no way works, the result is that of the last one.
    """
    command = [*_objects(folder, checked=False), *_WITH_MATH, "-o", str(folder / _TRACED)]
    for options in _WAYS_TO_LINK:
        done = run("-no-pie", *options, *command)
        if not done.returncode:
            break
    (folder / _OPTIONS).write_text(" ".join(options))
    if set(_STATIC) <= set(options):
        for checked in (False, True):
            _link_runtime(run, folder, options, checked=checked)
        _write_link_command(run, folder, options)
    return done


def _link(
    run: _RunCompiler, folder: Path, objects: Sequence[str], program: Path, *, checked: bool
) -> subprocess.CompletedProcess[str]:
    """Link the objects of a kernel to ``program``."""
    options = (folder / _OPTIONS).read_text().split()
    if is_file(runtime := _runtime_object(folder, checked=checked)):
        together = [*objects, str(runtime)]
        if is_file(folder / _COMMAND):
            done = _start_linker(folder, together, program)
        else:
            done = _link_quickly(run, options, together, program)
        if not done.returncode:
            return done
    separate = _objects(folder, checked=checked)
    return run("-no-pie", *options, *objects, *separate, "-o", str(program))


def _link_quickly(
    run: _RunCompiler, options: Sequence[str], objects: Sequence[str], program: Path
) -> subprocess.CompletedProcess[str]:
    return run("-no-pie", *options, *objects, *_OTHER_LIBRARIES, "-o", str(program))


def _start_linker(
    folder: Path, objects: Sequence[str], program: Path
) -> subprocess.CompletedProcess[str]:
    """Link objects to a program by the command that `_write_link_command` has written down."""
    linker, *words = (folder / _COMMAND).read_text().split("\n")
    at = words.index(_LINKED)
    words[at : at + 1] = objects
    return run_compiler(linker, *words, "-o", str(program), scratch=program.parent)


def _link_runtime(
    run: _RunCompiler, folder: Path, options: Sequence[str], *, checked: bool
) -> None:
    """Link the runtime with the parts of the C++ library that it needs, if the linker can."""
    runtime = _runtime_object(folder, checked=checked)
    objects = _objects(folder, checked=checked)
    linker = [option for option in options if option not in _STATIC]
    (script := folder / "merged.ld").write_text(_MERGED)
    trial = folder / "trial"
    for way in ([*_MERGING, f"-Wl,-T,{script}"], linker):
        together = [*way, "-r", "-nostdlib", *objects, *_PARTS_OF_LIBRARIES, "-o", str(runtime)]
        done = run("-no-pie", *together)
        if not done.returncode:
            done = _link_quickly(run, options, [str(runtime)], trial)
        if not done.returncode:
            break
        runtime.unlink(missing_ok=True)
    trial.unlink(missing_ok=True)


def _write_link_command(run: _RunCompiler, folder: Path, options: Sequence[str]) -> None:
    """Write down how the compiler's driver starts the linker, if it can be started without it."""
    runtime, trial = str(_runtime_object(folder, checked=False)), folder / "trial"
    shown = run("-###", "-no-pie", *options, runtime, *_OTHER_LIBRARIES).stderr
    linker = shutil.which(run("-print-prog-name=ld.gold").stdout.strip())
    words = shlex.split(next((line for line in shown.splitlines() if "/collect2 " in line), ""))
    if _GOLD not in words or runtime not in words or linker is None:
        return
    words = [_LINKED if word == runtime else word for word in words[1:] if word != _GOLD]
    (folder / _COMMAND).write_text("\n".join([linker, *words]))
    if _start_linker(folder, [runtime], trial).returncode:
        (folder / _COMMAND).unlink()
    trial.unlink(missing_ok=True)


def _runtime_object(folder: Path, *, checked: bool) -> Path:
    return folder / f"{'checked' if checked else 'plain'}-runtime.o"


def _objects(folder: Path, *, checked: bool) -> list[str]:
    groups = [*_RUNTIME_GROUPS, *(_CHECKED_GROUPS if checked else ())]
    return [f"{folder / group}.o" for group in groups]
