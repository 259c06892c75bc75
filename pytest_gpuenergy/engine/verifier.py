"""Verifies the kernels of a run on one device, also ahead of the item that measures them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.references import case_of, draw_ahead, is_large
from pytest_gpuenergy.engine.verification import (
    CASES_AT_ONCE,
    expected_drawings,
    shared_drawings,
    verify_on_device,
)
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.workloads import Workload

_MAX_AHEAD = 4
"""The most kernels that are verified ahead at a time: each takes several copies of its tensors."""

_YIELDING = 5
"""The increase of the nice value of verifying ahead, which leaves the processors to the item."""

_FEW_PROCESSORS = 3
"""With so many or fewer, the first kernel is verified alone: others would only delay its result."""

_Key = tuple[str, Workload]


@dataclass(frozen=True)
class _Outcome:
    """A kernel that was right when it was verified ahead.

    Attributes:
        correctness: what the verification found.
        printed: what the kernel printed meanwhile.
    """

    correctness: Correctness
    printed: str


class Verifier:
    """Verifies on one device; on an emulated one, each kernel of a workload only once.

    That holds even for workloads without a digest, which the cache on disk cannot identify.

    Args:
        device: the device that runs the kernels.
        timeout_s: the time limit of one run of a kernel.
        seed: the seed of the last inputs; by default a random one.
    """

    def __init__(self, device: Device, timeout_s: float, seed: int | None) -> None:
        self._device = device
        self._timeout_s = timeout_s
        self._seed = seed
        self._verified: dict[_Key, Correctness] = {}
        self._lock = threading.Lock()
        self._begun: dict[_Key, Future[_Outcome | None] | None] = {}
        self._pool: ThreadPoolExecutor | None = None
        count = 1 if device.arrays is None else CASES_AT_ONCE
        self._references = ThreadPoolExecutor(count, "references")
        self._arrays_begun: Future[None] | None = None
        self._closed = False
        self._first_done = threading.Event()
        if len(os.sched_getaffinity(0)) > _FEW_PROCESSORS:
            self._first_done.set()

    def begin(self, kernel: AnyKernel, workload: Workload) -> None:
        """Begin to compute the references that `verify` will need, while a kernel is compiled.

        On a real GPU nothing is done, since whoever calls may be timing something there, see
        `begin_on_device`.
        """
        if (key := self._key(kernel, workload)) is None or workload.digest is None:
            return
        with self._lock:
            if key in self._verified or key in self._begun:
                return
        for drawing in shared_drawings(self._device, kernel, workload, self._seed):
            self._references.submit(case_of, workload, drawing)

    def begin_on_device(self, workload: Workload) -> None:
        """Begin to compute references in the memory of a real GPU, if they are computed there.

        Nothing that is timed may run on it before the kernel has been verified.
        """
        if self._device.arrays is not None and is_large(workload):
            for subject, drawing in expected_drawings(workload, self._seed):
                self._references.submit(case_of, subject, drawing, self._device.arrays)

    def expect_workload(self, workload: Workload) -> None:
        """Prepare on the host what a later kernel will be verified on, in the background.

        These are references or, where a real GPU computes them, the inputs.
        """
        on_device = self._device.arrays is not None and is_large(workload)
        for subject, drawing in expected_drawings(workload, self._seed):
            self._ahead.submit(draw_ahead if on_device else case_of, subject, drawing)

    def begin_arrays(self, workload: Workload) -> None:
        """Begin to use the memory of a real GPU if a later kernel is verified there.

        Nothing that is timed may run on it until `settle` has returned.
        """
        arrays = self._device.arrays
        if arrays is not None and is_large(workload) and self._arrays_begun is None:
            self._arrays_begun = self._references.submit(arrays.begin)

    def settle(self) -> None:
        """Wait for what `begin_arrays` has begun."""
        if self._arrays_begun is not None:
            wait([self._arrays_begun])  # whoever needs the arrays meets an error again

    def expect(self, make: Callable[[], tuple[AnyKernel, Workload]]) -> None:
        """Verify a kernel in the background, if that makes no difference to anything but the time.

        A success is kept for `verify`, with what the kernel printed. After anything else, `verify`
        verifies the kernel as if nothing had happened.

        Args:
            make: makes the kernel and its workload, in another thread.
        """
        if self._device.aside() is None:
            return
        self._ahead.submit(self._verify_ahead, make)

    @property
    def _ahead(self) -> ThreadPoolExecutor:
        """The threads that prepare later items."""
        if self._pool is None:
            count = min(_MAX_AHEAD, len(os.sched_getaffinity(0)))
            self._pool = ThreadPoolExecutor(count, "verify-ahead", initializer=_yield_to_others)
        return self._pool

    def verify(self, kernel: AnyKernel, workload: Workload) -> Correctness:
        """Verify a kernel, see `verify_on_device`.

        Raises:
            KernelFault: the kernel is wrong or fails; it will be verified again next time.
            InputError: the reference is not finite.
        """
        try:
            return self._verify(kernel, workload)
        finally:
            self._first_done.set()

    def _verify(self, kernel: AnyKernel, workload: Workload) -> Correctness:
        if (key := self._key(kernel, workload)) is None:
            return self._now(kernel, workload)
        if (earlier := self._verified.get(key)) is not None:
            return earlier
        with self._lock:
            ahead = self._begun.get(key)
            self._begun[key] = None  # whoever has not begun yet needs not begin
        found = None if ahead is None else ahead.result()
        if found is None or self._device.aside() is None:
            correctness = self._now(kernel, workload)
        else:
            correctness = found.correctness
            sys.stderr.write(found.printed)
        self._verified[key] = correctness
        return correctness

    def close(self) -> None:
        """Stop verifying ahead; what has begun ends in the background. Idempotent."""
        self._closed = True
        self._first_done.set()
        self._references.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _key(self, kernel: AnyKernel, workload: Workload) -> _Key | None:
        """Return the key of a kernel that is verified only once; None for any other."""
        with contextlib.suppress(TypeError):  # which a workload raises that cannot be hashed
            hash(workload)
            return (kernel.digest, workload) if self._device.emulated else None
        return None

    def _now(self, kernel: AnyKernel, workload: Workload) -> Correctness:
        return verify_on_device(
            self._device, kernel, workload, drawn=self._seed, timeout_s=self._timeout_s
        )

    def _verify_ahead(self, make: Callable[[], tuple[AnyKernel, Workload]]) -> None:
        kernel, workload = make()
        if workload.digest is None:  # a user's function, which runs in the main thread only
            return
        key, future = (kernel.digest, workload), Future[_Outcome | None]()
        self._first_done.wait()
        with self._lock:
            if self._closed or key in self._begun or (aside := self._device.aside()) is None:
                return
            self._begun[key] = future
        found = None
        try:
            with aside as printed:
                correctness = self._now(kernel, workload)
            found = _Outcome(correctness, "".join(printed))
        finally:
            future.set_result(found)


def _yield_to_others() -> None:
    """Make this thread, and the processes that it starts, nicer than the rest of this process."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _YIELDING)
