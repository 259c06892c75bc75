"""The runner that compiles CUDA text for the host CPU and runs it in processes with limits."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pytest_gpuenergy.devices import Arena, FileMemory
from pytest_gpuenergy.emulator.card.profiles import DEFAULT_PROFILE, GpuProfile
from pytest_gpuenergy.emulator.host.access_profile import LaunchProfile, read_profile
from pytest_gpuenergy.emulator.host.compiler import find_compiler
from pytest_gpuenergy.emulator.host.host_protocol import (
    Sampling,
    address_bytes,
    kernel_entries,
    used_arenas,
    write_plan,
)
from pytest_gpuenergy.emulator.host.kernel_limits import check_limits
from pytest_gpuenergy.emulator.host.kernel_process import KernelProcess
from pytest_gpuenergy.emulator.host.toolchain import Compiled, Toolchain
from pytest_gpuenergy.emulator.translation.outline import is_offered
from pytest_gpuenergy.emulator.translation.translate import KernelText
from pytest_gpuenergy.kernels import HOST_HEADER, Kernel, reachable
from pytest_gpuenergy.support import DeviceError, KernelFault, build_folder, is_file
from pytest_gpuenergy.workloads import Scalar

_T = TypeVar("_T")

# What a compiler says about a name that a missing header may declare.
_MISSING = re.compile(
    r"declared|does not name|not a namespace|no (?:member|type) named|unknown type"
)
# Errors that a second try would meet again, unlike an interruption or a time limit of the caller.
_LASTING = (KernelFault, DeviceError)
# How much of a kernel a check runs.
_SAMPLING = Sampling(profiled_blocks=8, profiled_accesses=20_000_000, accesses=8_000_000)


_needed = functools.lru_cache(maxsize=16)(reachable)
_translated = functools.lru_cache(maxsize=16)(KernelText)


class HostRunner:
    """Compiles kernels with the host's C++ compiler and runs them in processes of their own.

    Args:
        cache: the folder of programs and runtime; processes may share it, and everything in it can
            be rebuilt.
        compiler: the path of the compiler, by default the result of `find_compiler`.
        jobs: the number of compilers that run at the same time, by default the number of CPUs.
        profile: the GPU on which the kernels run.
    """

    def __init__(
        self,
        cache: Path,
        *,
        compiler: str | None = None,
        jobs: int | None = None,
        profile: GpuProfile = DEFAULT_PROFILE,
    ) -> None:
        self._profile = profile
        self._cache = cache
        self._compiler = compiler
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._translating = threading.Lock()
        self._made: dict[object, Future[Any]] = {}  # the toolchain and the programs
        self._pool: ThreadPoolExecutor | None = None
        self._folders = contextlib.ExitStack()
        self._running: set[KernelProcess] = set()
        self._closed = False

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Begin to compile what kernels share, ``kernels`` and their checked builds, in threads."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="host-compiler")
            self._pool.submit(self._toolchain)
        for kernel in kernels:
            for variant in ("plain", "checked"):
                # A fault is raised again by the call that needs the program.
                self._pool.submit(self._program_path, kernel, variant)

    def compile(self, kernel: Kernel) -> Path:
        """Return the program that runs ``kernel``, from the cache if its text was compiled before.

        Raises:
            KernelFault: ``compile``, with the first error and its line, or ``constraints``.
            DeviceError: there is no working compiler.
        """
        return self._program_path(kernel, "plain")

    @contextlib.contextmanager
    def open(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
        inspecting: bool = False,
    ) -> Iterator[KernelProcess]:
        """Start a process in which ``kernel`` can be run repeatedly, in place on the arenas' files.

        Device variables and workspaces keep their contents from run to run. With ``inspecting``,
        each run works on a copy of the arenas' present contents and checks them as `check_races`
        does.

        Raises:
            KernelFault: the kernel did not compile, does not fit a GPU, crashed, hung, diverged
                at a barrier, or wrote to an input or beyond a workspace.
        """
        check_limits(kernel)
        path = self._program_path(kernel, "checked" if inspecting else "plain")
        sampling = _SAMPLING if inspecting else None
        with self._program(
            path, kernel, arenas, scalars, timeout_s, sampling, on_request=inspecting
        ) as program:
            yield program
            if not inspecting:
                program.finish()

    def run(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
        order_seed: int = 0,
    ) -> None:
        """Run all launches once in a process of their own.

        Threads and blocks run in ascending order with an ``order_seed`` of 0, in descending order
        with 1, and shuffled with any other.

        Raises:
            KernelFault: see `open`.
        """
        with self.open(kernel, arenas, scalars, timeout_s=timeout_s) as program:
            program.run(order_seed=order_seed)

    def check_races(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
    ) -> tuple[LaunchProfile, ...]:
        """Run a sample of the blocks with every access checked, on a copy of the arenas.

        Raises:
            KernelFault: ``correctness`` when two threads race or an access lies outside the
                tensors' elements; otherwise see `run`.
        """
        check_limits(kernel)
        path = self._program_path(kernel, "checked")
        with self._program(path, kernel, arenas, scalars, timeout_s, _SAMPLING) as program:
            return read_profile(kernel, program.finish())

    def close(self) -> None:
        """Stop compiling and end all programs. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        with self._lock:
            self._closed = True
        for program in tuple(self._running):
            program.end()
        self._folders.close()

    def _toolchain(self) -> Toolchain:
        def prepare() -> Toolchain:
            self._cache.mkdir(parents=True, exist_ok=True)
            return Toolchain.prepare(self._cache, self._compiler or find_compiler(), self._jobs)

        return self._once("tools", prepare)

    def _program_path(self, kernel: Kernel, variant: str) -> Path:
        return self._once((kernel.digest, variant), lambda: self._build(kernel, variant))

    def _once(self, key: object, make: Callable[[], _T]) -> _T:
        """Return what ``make`` has made for the key, in whichever thread came first."""
        with self._lock:
            future, first = self._made.get(key), key not in self._made
            if future is None:
                future = self._made[key] = Future()
        if first:
            try:
                future.set_result(make())
            except BaseException as error:
                if not isinstance(error, _LASTING):
                    del self._made[key]
                future.set_exception(error)
        result: _T = future.result()
        return result

    def _build(self, kernel: Kernel, variant: str) -> Path:
        entries = kernel_entries(kernel)
        # Threads begin the builds of a kernel together, and these share its translation.
        with self._translating:
            needed = _needed(kernel.source, entries, is_offered)
        try:
            with self._translating:
                text = _translated(needed, entries)
            return self._build_text(kernel, text, variant)
        except KernelFault as fault:
            if needed == kernel.source:
                raise
            try:  # `reachable` may have left out too much
                return self._build_text(kernel, KernelText(kernel.source, entries), variant)
            except KernelFault as of_whole:
                # A header that does not exist explains the names that are missing without it.
                missing = re.search(r"#include <([^>]+)>", str(of_whole))
                if missing is not None and not HOST_HEADER.fullmatch(missing[1]):
                    raise of_whole from None
                left_out = [
                    header
                    for header in re.findall(
                        r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)', kernel.source, re.MULTILINE
                    )
                    if not is_offered(header) and not HOST_HEADER.fullmatch(header)
                ]
                if not left_out or not _MISSING.search(str(fault)):
                    raise fault from None
                raise KernelFault(
                    "compile",
                    f"{fault}; {left_out[0]}, which it includes, was left out: if it is a header "
                    "of the project, name its folder in load_kernel(include=...)",
                ) from None

    def _build_text(self, kernel: Kernel, text: KernelText, variant: str) -> Path:
        tools = self._toolchain()
        # The check of several launches runs the blocks that it does not sample in a plain build.
        several = len(kernel.launches) > 1
        variants = ["checked", "plain"] if several and variant == "checked" else [variant]
        content = "\0".join([tools.key, *variants, text.marked])
        name = hashlib.sha256(content.encode()).hexdigest()
        program = self._cache / f"{name[:32]}-{variant}"
        if not is_file(program):
            tools.compile(text, variants, program, self._kept if several else None)
        return program

    def _kept(self, text: str, make: Callable[[Path], Compiled]) -> Compiled:
        """Return the plain object of a text, which both programs of a kernel have."""
        folder = self._once("objects", self._objects_folder)
        digest = hashlib.sha256(text.encode()).digest()
        return self._once(("object", digest), lambda: make(folder))

    def _objects_folder(self) -> Path:
        with self._lock:
            if self._closed:  # by another thread, and then nobody would remove the folder
                raise DeviceError("The emulated GPU was closed before the kernel was compiled.")
            return self._folders.enter_context(build_folder(self._cache))

    @contextlib.contextmanager
    def _program(
        self,
        path: Path,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        timeout_s: float,
        sampling: Sampling | None,
        *,
        on_request: bool = False,
    ) -> Iterator[KernelProcess]:
        """Start the program and send it its plan; end it on leaving."""
        with contextlib.ExitStack() as stack:
            files = {}
            for name, arena in used_arenas(kernel, arenas).items():
                in_place = sampling is None and arena.tensor.role != "input"
                assert isinstance(arena.memory, FileMemory)  # the device offers no other
                files[name] = os.open(arena.memory.path, os.O_RDWR if in_place else os.O_RDONLY)
                stack.callback(os.close, files[name])
            plan = write_plan(
                kernel,
                arenas,
                files,
                scalars,
                sampling=sampling,
                profile=self._profile,
                on_request=on_request,
            )
            tools = self._toolchain()
            program = KernelProcess(
                path,
                files.values(),
                sandbox=tools.sandbox,
                readable=tools.libraries,
                entry=kernel.launches[0].entry,
                address_bytes=address_bytes(kernel, arenas, self._profile),
                timeout_s=timeout_s,
            )
        self._running.add(program)
        try:
            if self._closed:  # by another thread, which did not see this process
                raise DeviceError("The emulated GPU was closed before the kernel had run.")
            program.tell(plan)
            yield program
        finally:
            program.close()
            self._running.discard(program)
