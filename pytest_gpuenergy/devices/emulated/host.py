"""Runs CUDA text on the host CPU: compiled for the host, in a child process with limits."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pytest_gpuenergy.devices.device import Arena
from pytest_gpuenergy.devices.emulated import sandbox
from pytest_gpuenergy.devices.emulated.timing.plan import (
    AccessProfile,
    LaunchProfile,
    Sampling,
    address_bytes,
    check_limits,
    entries_of,
    read_profile,
    used_arenas,
    write_plan,
)
from pytest_gpuenergy.devices.emulated.toolchain import Toolchain, find_compiler
from pytest_gpuenergy.devices.emulated.translate import translate
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import DeviceError, KernelFault, Outcome
from pytest_gpuenergy.workloads.workload import Scalar

__all__ = ["AccessProfile", "HostRunner", "LaunchProfile", "find_compiler"]

_SAMPLING = Sampling(blocks=8, accesses=20_000_000)
_OUTCOMES: dict[str, Outcome] = {
    "correctness": "correctness",
    "runtime": "runtime",
    "timeout": "timeout",
    "constraints": "constraints",
}
_ANSWER_BYTES = 1 << 16
_PRINTED_BYTES = 2 << 20


class HostRunner:
    """Compiles kernels with the host's C++ compiler and runs them, each run in its own process.

    Args:
        cache: folder for programs and runtime; shared by processes, everything in it can be
            made again.
        compiler: instead of `find_compiler`'s.
        jobs: compilers at a time in the background; the number of CPUs by default.
    """

    def __init__(
        self, cache: Path, *, compiler: str | None = None, jobs: int | None = None
    ) -> None:
        self._cache = cache
        self._compiler = compiler
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._tools: Future[Toolchain] | None = None
        self._programs: dict[tuple[str, str], Future[Path]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Begin compiling ``kernels``, and their checked builds, in the background."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="host-compiler")
        for kernel in kernels:
            for variant in ("plain", "checked"):
                self._pool.submit(self._quietly, kernel, variant)

    def compile(self, kernel: Kernel) -> Path:
        """The program that runs ``kernel``; from the cache when its text was compiled before.

        Raises:
            KernelFault: ``compile``, with the first error and its line, or ``constraints``.
            DeviceError: there is no working compiler.
        """
        return self._program(kernel, "plain")

    def run(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
        order_seed: int = 0,
    ) -> None:
        """Run all launches once, in place on the arenas' files.

        ``order_seed`` orders threads and blocks: 0 ascending, 1 descending, others shuffled.

        Raises:
            KernelFault: the kernel did not compile, does not fit a GPU, crashed, hung, diverged
                at a barrier, or wrote to an input or beside a workspace.
        """
        check_limits(kernel)
        program = self.compile(kernel)
        self._execute(program, kernel, arenas, scalars, timeout_s, order_seed, None)

    def check_races(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
    ) -> AccessProfile:
        """Run a sample of the blocks with every access checked, on a copy of the arenas.

        Raises:
            KernelFault: ``correctness`` when two threads race or an access lies outside the
                tensors' elements; else as `run`.
        """
        check_limits(kernel)
        program = self._program(kernel, "checked")
        answers = self._execute(program, kernel, arenas, scalars, timeout_s, 0, _SAMPLING)
        return read_profile(kernel, answers)

    def close(self) -> None:
        """Stop compiling and end what runs. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._closed = True
        for process in tuple(self._running):
            _kill(process)

    def _quietly(self, kernel: Kernel, variant: str) -> None:
        with contextlib.suppress(KernelFault, DeviceError, OSError):
            self._program(kernel, variant)  # the fault is kept for the call that needs it

    def _toolchain(self) -> Toolchain:
        with self._lock:
            future, first = self._tools, self._tools is None
            if future is None:
                future = self._tools = Future()
        if first:
            with _result_to(future):
                self._cache.mkdir(parents=True, exist_ok=True)
                compiler = self._compiler or find_compiler()
                future.set_result(Toolchain.prepare(self._cache, compiler, self._jobs))
        return future.result()

    def _program(self, kernel: Kernel, variant: str) -> Path:
        key = (kernel.digest, variant)
        with self._lock:
            future, first = self._programs.get(key), key not in self._programs
            if future is None:
                future = self._programs[key] = Future()
        if first:
            with _result_to(future):
                future.set_result(self._build(kernel, variant))
        return future.result()

    def _build(self, kernel: Kernel, variant: str) -> Path:
        if kernel.language != "cuda":
            raise KernelFault(
                "compile", f"{kernel.language} text cannot run on the emulated GPU: give CUDA C++."
            )
        entries = entries_of(kernel)
        text = translate(kernel.source, entries)
        tools = self._toolchain()
        # The check of several launches needs the blocks it does not sample run as they are.
        several = variant == "checked" and len(kernel.launches) > 1
        variants = [variant, "plain"] if several else [variant]
        content = "\0".join([tools.key, *variants, text])
        name = hashlib.sha256(content.encode()).hexdigest()
        program = self._cache / f"{name[:32]}-{variant}"
        if not program.is_file():
            tools.compile(text, variants, program)
        return program

    def _execute(
        self,
        program: Path,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        timeout_s: float,
        order_seed: int,
        sampling: Sampling | None,
    ) -> list[str]:
        """Start the program, give it the plan, return the lines it answers."""
        with _opened(used_arenas(kernel, arenas), writing=sampling is None) as files:
            plan = write_plan(
                kernel, arenas, files, scalars, order_seed=order_seed, sampling=sampling
            )
            limits = [str(math.ceil(timeout_s) + 1), str(address_bytes(kernel, arenas))]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", sandbox.__file__, *limits, str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=list(files.values()),
                env={"LC_ALL": "C"},
                start_new_session=True,
            )
        self._running.add(process)
        try:
            if self._closed:  # by a thread that does not wait for this one
                raise DeviceError("The emulated GPU was closed before the kernel had run.")
            answer, printed, in_time = _converse(process, plan.encode(), timeout_s)
        finally:
            _kill(process)
            self._running.discard(process)
        if printed:
            sys.stderr.write(printed.decode(errors="replace"))
        if not in_time:
            raise KernelFault(
                "timeout", f"{kernel.launches[0].entry} did not finish within {timeout_s:g} s."
            )
        return _judge(process.returncode, answer.decode(errors="replace").splitlines(), printed)


@contextlib.contextmanager
def _result_to(future: Future[Path] | Future[Toolchain]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        future.set_exception(error)


@contextlib.contextmanager
def _opened(arenas: Mapping[str, Arena], *, writing: bool) -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack:
        files = {}
        for name, arena in arenas.items():
            in_place = writing and arena.tensor.role != "input"
            files[name] = os.open(arena.path, os.O_RDWR if in_place else os.O_RDONLY)
            stack.callback(os.close, files[name])
        yield files


def _converse(
    process: subprocess.Popen[bytes], plan: bytes, timeout_s: float
) -> tuple[bytes, bytes, bool]:
    """Send the plan, read both streams up to their limits; False when time ran out."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout_s
    read = {process.stdout: bytearray(), process.stderr: bytearray()}
    limits = {process.stdout: _ANSWER_BYTES, process.stderr: _PRINTED_BYTES}
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(plan)
    in_time = True
    with selectors.DefaultSelector() as selector:
        for stream in read:
            selector.register(stream, selectors.EVENT_READ)
        while in_time and selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            in_time = bool(ready)
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                stream = process.stdout if key.fd == process.stdout.fileno() else process.stderr
                if not piece:
                    selector.unregister(stream)
                # What is over the limit is read, so that the program goes on, and dropped.
                read[stream] += piece[: max(0, limits[stream] - len(read[stream]))]
            in_time = in_time and time.monotonic() < deadline
    if in_time:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
        in_time = process.returncode is not None
    return bytes(read[process.stdout]), bytes(read[process.stderr]), in_time


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _judge(code: int, answers: list[str], printed: bytes) -> list[str]:
    last = answers[-1] if answers else ""
    if code == 0 and last == "done":
        return answers
    if last.startswith("fault "):
        _, word, message = last.split(" ", 2)
        raise KernelFault(_OUTCOMES.get(word, "runtime"), message)
    if code < 0:
        raise KernelFault("runtime", f"The kernel was ended by {signal.Signals(-code).name}.")
    tail = printed.decode(errors="replace").strip().splitlines()
    raise KernelFault(
        "runtime",
        f"The kernel ended its process with {code}{': ' + tail[-1] if tail else ''}.",
    )
