"""The judges of `corpus`: this project's verification, and what people use without it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
from corpus_child import MARK, command, kernel_of, workload_of
from entries import Entry

from pytest_gpuenergy.devices import Arena, Binary, Device, NvrtcCompilers
from pytest_gpuenergy.emulator import HostRunner
from pytest_gpuenergy.engine import file_arenas, verify_on_device
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.support import InputError, KernelFault, cache_dir
from pytest_gpuenergy.workloads import numbers, stored_as

Ending = Literal["refused", "passed", "not judged"]
SANITIZER = "compute-sanitizer"
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TOLERANCES = {"float16": 1e-2, "bfloat16": 1e-2, "float32": 1e-4, "float64": 1e-8}
"""Of ``allclose``, relative and absolute. Those of half and single precision are KernelBench's;
integers must be equal."""
DRAWINGS = 3
_NOT_JUDGED = ("compile", "constraints")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
_PRINTED = 500


@dataclass(frozen=True)
class Judgement:
    """What a judge says of a kernel.

    Attributes:
        ending: ``not judged`` if the kernel does not compile here, its time is over, or its
            reference fits no inputs.
        why: the judge's message.
    """

    ending: Ending
    why: str


class _TimeIsOverError(Exception):
    pass


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise an error in this thread, the main one, when the time is over."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _TimeIsOverError

    former = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


class Judges:
    """The judges on one device, in one process.

    Args:
        device: where kernels run.
        folder: for programs of the emulated GPU.
        seed: of the inputs that verification would otherwise draw unpredictably.
        limit_s: wall time for a kernel and judge.
        launch_limit_s: wall time for one launch; a third of ``limit_s`` if it is None.
    """

    def __init__(
        self,
        device: Device,
        folder: Path,
        *,
        seed: int,
        limit_s: float,
        launch_limit_s: float | None = None,
    ) -> None:
        self._device = device
        self._host = HostRunner(folder, jobs=1) if device.emulated else None
        self._seed = seed
        self._limit_s = limit_s
        self._launch_limit_s = limit_s / 3 if launch_limit_s is None else launch_limit_s
        self._judges: dict[str, Callable[[Entry], Judgement]] = {
            "verify": self._verify,
            "allclose": self._allclose,
            "sanitizer": self._sanitizer,
        }

    def __call__(self, judge: str, entry: Entry) -> Judgement:
        """Return what a judge says of an entry."""
        try:
            with time_limit(self._limit_s):
                return self._judges[judge](entry)
        except KernelFault as fault:
            if fault.outcome in _NOT_JUDGED:
                return Judgement("not judged", f"{fault.outcome}: {fault}")
            return Judgement("refused", f"{fault.outcome}: {fault}")
        except InputError as error:
            return Judgement("not judged", str(error))
        except _TimeIsOverError:
            return Judgement("not judged", f"not finished after {self._limit_s:g} s")
        except Exception as error:  # an error of ours about one kernel shall not end a long run
            return Judgement("not judged", f"{type(error).__name__}: {error}")

    def _verify(self, entry: Entry) -> Judgement:
        kernel, workload = kernel_of(entry), workload_of(entry)
        verify_on_device(
            self._device, kernel, workload, drawn=self._seed, timeout_s=self._launch_limit_s
        )
        return Judgement("passed", "")

    def _allclose(self, entry: Entry) -> Judgement:
        """Run on a few ordinary inputs, in buffers that hold zeros and later earlier results."""
        kernel, workload = kernel_of(entry), workload_of(entry)
        job = Job.of(kernel, workload, timeout_s=self._launch_limit_s)
        blank = {one.name: np.zeros(one.shape, stored_as(one.dtype)) for one in entry.outputs}
        drawings = [workload.make_inputs(seed) for seed in range(DRAWINGS)]
        with (
            file_arenas(job.io, {**drawings[0], **blank}) as arenas,
            self._plainly_loaded(job, arenas) as loaded,
        ):
            for inputs in drawings:
                for name, value in inputs.items():
                    arenas[name].fill(value)
                loaded.run(order_seed=0)
                expected = workload.reference(inputs)
                for output in (*entry.inouts, *entry.outputs):
                    seen = numbers(arenas[output.name].value(), output.dtype)
                    if seen.dtype.kind == "f":
                        seen = seen.astype(np.float64)
                    else:  # double precision lacks most integers of 64 bits
                        seen = seen.astype(np.longdouble)
                    tolerance = TOLERANCES.get(output.dtype, 0.0)
                    with np.errstate(all="ignore"):
                        close = np.allclose(seen, expected[output.name], tolerance, tolerance)
                    if not close:
                        return Judgement("refused", f"{output.name} is not close")
        return Judgement("passed", "")

    def _plainly_loaded(
        self, job: Job, arenas: Mapping[str, Arena]
    ) -> contextlib.AbstractContextManager[Any]:
        """Load a kernel to run without the emulated GPU's checks of accesses."""
        if self._host is None:
            return self._device.load(job, arenas)
        return self._host.open(job.kernel, arenas, job.scalars, timeout_s=job.timeout_s)

    @cached_property
    def _compilers(self) -> NvrtcCompilers:
        return NvrtcCompilers(self._device.architecture, cache_dir("cubin"), processes=1)

    def _sanitizer(self, entry: Entry) -> Judgement:
        """Run once under each tool of compute-sanitizer, on ordinary inputs."""
        binary: Binary = self._compilers.submit(kernel_of(entry)).result()
        unfinished = ""
        for tool in SANITIZER_TOOLS:
            process = subprocess.run(
                [SANITIZER, "--tool", tool, *command(entry, binary)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            counts = [int(count) for count in _SUMMARY.findall(process.stdout)]
            if any(counts):
                at = process.stdout.find("========= ", process.stdout.find(MARK))
                return Judgement("refused", f"{tool}: {process.stdout[at : at + _PRINTED]}")
            if not counts or process.returncode:
                unfinished = f"{tool} failed: {(process.stdout + process.stderr)[-_PRINTED:]}"
        return Judgement("not judged", unfinished) if unfinished else Judgement("passed", "")
