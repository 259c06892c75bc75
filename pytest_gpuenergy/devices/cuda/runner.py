"""Runs untrusted kernels in a worker process that owns a CUDA context, and that may die."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from itertools import cycle
from typing import Concatenate, ParamSpec, TypeVar

from pytest_gpuenergy.devices.arena import GUARD_BYTES, Arena
from pytest_gpuenergy.devices.buffer_sets import placements, sets_needed
from pytest_gpuenergy.devices.cuda._compat import hash_triton
from pytest_gpuenergy.devices.cuda.array_kernels import KernelMath
from pytest_gpuenergy.devices.cuda.arrays import Handle, can_open
from pytest_gpuenergy.devices.cuda.binders import Launcher, bind, offered, triton_machine_code
from pytest_gpuenergy.devices.cuda.buffers import BufferSet, CudaBuffers
from pytest_gpuenergy.devices.cuda.compilers import Binary
from pytest_gpuenergy.devices.cuda.driver import reset_persisting_l2
from pytest_gpuenergy.devices.cuda.graphs import GraphRepeater
from pytest_gpuenergy.devices.cuda.relaunch import CudaRelaunch, HostLaunches
from pytest_gpuenergy.devices.device import Launches, Timeline
from pytest_gpuenergy.kernels import Job, LibraryCall
from pytest_gpuenergy.support import KernelFault, Outcome
from pytest_gpuenergy.workloads import IoContract

_T = TypeVar("_T")
_P = ParamSpec("_P")

_CONSTRAINTS = (
    "INVALID_CONFIGURATION",
    "INVALIDCONFIGURATION",
    "OUT_OF_RESOURCES",
    "OUTOFRESOURCES",
    "INVALID_VALUE",
    "INVALIDVALUE",
    "OUT_OF_MEMORY",
    "MEMORYALLOCATION",
)


def _guarded(
    method: Callable[Concatenate[CudaRunner, _P], _T],
) -> Callable[Concatenate[CudaRunner, _P], _T]:
    """Convert CUDA's errors in a method of `CudaRunner` to a KernelFault."""

    @wraps(method)
    def guarded(runner: CudaRunner, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        cuda = runner._cupy.cuda
        errors: tuple[type[Exception], ...] = (
            cuda.runtime.CUDARuntimeError,
            cuda.driver.CUDADriverError,
            cuda.memory.OutOfMemoryError,
        )
        try:
            return method(runner, *arguments, **named)
        except errors as error:
            text = str(error).upper().replace("CUDAERROR", "")
            constrained = isinstance(error, cuda.memory.OutOfMemoryError) or any(
                word in text for word in _CONSTRAINTS
            )
            outcome: Outcome = "constraints" if constrained else "runtime"
            raise KernelFault(outcome, f"CUDA: {error}.") from None

    return guarded


@dataclass(frozen=True)
class _Single:
    """A kernel that is open on one set of buffers."""

    buffers: CudaBuffers
    buffer_set: BufferSet
    launch: Launcher
    relaunch: CudaRelaunch | None = None


class CudaRunner:
    """Runs kernels on the first GPU that this process sees. Every method may raise KernelFault.

    Args:
        modules: the Python modules that the kernels need, imported at once; see `prepare`.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        import cupy

        self._cupy = cupy
        # Free blocks immediately: a kernel must not read what an earlier kernel left behind.
        cupy.cuda.set_allocator(None)
        self._repeater: GraphRepeater | None = None
        self._relaunch: CudaRelaunch | None = None
        self._single: _Single | None = None
        self._math: KernelMath | None = None
        # Begins with the driver, for 0.03 s and more, but not with a context.
        with suppress(cupy.cuda.runtime.CUDARuntimeError):  # which the first call then meets
            cupy.cuda.runtime.getDeviceCount()
        self.prepare(modules)

    def prepare(self, modules: Sequence[str]) -> None:
        """Import modules that kernels need, without creating a context.

        What cannot be imported is told where a kernel is bound that needs it.
        """
        for name in modules:
            with suppress(Exception):  # DeepGEMM raises others than ImportError
                importlib.import_module(name)
        if "triton" in modules:
            hash_triton()

    @_guarded
    def open(self, job: Job, binary: Binary | None, arenas: Mapping[str, Arena]) -> None:
        """Prepare a kernel for `run`, on buffers that stay where they are until `shut`."""
        self.shut()
        buffers = CudaBuffers(self._cupy, job.kernel, arenas)
        buffer_set = buffers.upload()
        (launch,) = self._bind(job, binary, [buffer_set], arenas)
        self._single = _Single(buffers, buffer_set, launch)

    @_guarded
    def run(self) -> None:
        """Run the open kernel once, in place on the arenas; check its workspaces for overruns.

        Its device variables keep what earlier runs have left in them.
        """
        if self._single is None:
            raise RuntimeError("no kernel is open")
        buffers, buffer_set = self._single.buffers, self._single.buffer_set
        buffers.refill(buffer_set)
        self._single.launch()
        self._cupy.cuda.Device().synchronize()
        buffers.store(buffers.read(buffer_set))
        buffers.check_workspaces(buffer_set)

    def shut(self) -> None:
        """Free what `open` created."""
        self._single = None

    @_guarded
    def begin_context(self) -> None:
        """Create this process's context on the GPU, which takes up to two seconds."""
        self._cupy.cuda.runtime.free(0)

    def can_open(self, handle: Handle) -> bool:
        """Return whether this process can open another process's memory."""
        return can_open(handle)

    def run_once(self, job: Job, binary: Binary | None, arenas: Mapping[str, Arena]) -> None:
        """`open`, `run` and `shut`."""
        self.open(job, binary, arenas)
        self.run()
        self.shut()

    @_guarded
    def load(self, job: Job, binary: Binary | None, arenas: Mapping[str, Arena]) -> None:
        """Load a kernel and its buffers, ready for `start`; free what was loaded before."""
        self.unload()
        buffers = CudaBuffers(self._cupy, job.kernel, arenas)
        if job.cache == "cold":
            l2_bytes = int(self._cupy.cuda.Device().attributes["L2CacheSize"])
            sets = buffers.side_by_side(sets_needed(buffers.set_bytes, l2_bytes))
        elif job.apart:
            sets = buffers.scattered(placements(buffers.set_bytes))
        else:
            sets = buffers.side_by_side(1)
        turns = self._bind(job, binary, sets, arenas)
        if initial := buffers.staged("inout"):
            # With a cold cache, all sets are restored before the launch on the first, so that
            # what has just been written to the first has left the cache, too.
            passes = [sets, *([] for _ in sets[1:])] if job.cache == "cold" else [[s] for s in sets]
            turns = [
                _restoring(buffers, initial, some_sets, turn)
                for some_sets, turn in zip(passes, turns, strict=True)
            ]
        if job.cache == "cold":
            rotation = _Rotation(turns)
            self._repeater = GraphRepeater([rotation], multiple=len(sets), rewind=rotation.rewind)
            reset_persisting_l2(disable=True)
        else:
            self._repeater = GraphRepeater(turns)
        sets_of_turn = [sets] if job.cache == "cold" else [[buffer_set] for buffer_set in sets]
        self._relaunch = CudaRelaunch(self._repeater, buffers, sets_of_turn)

    @_guarded
    def start(self) -> None:
        """Start launching the loaded kernel back to back."""
        self._loaded().start()

    @_guarded
    def stop(self) -> Timeline:
        """Stop launching and return the timeline."""
        return self._loaded().stop()

    @_guarded
    def launch(self, count: int) -> Launches:
        """Launch ``count`` times from the host, and wait."""
        return self._loaded().launch(count)

    @_guarded
    def begin_relaunch(self, binary: Binary | None, are_tested: bool) -> tuple[int, bool]:
        """Call `CudaRelaunch.begin` for the loaded kernel, or else for the open kernel.

        Args:
            binary: the compiled `array_kernels`, if they compile.
            are_tested: see `KernelMath`.

        Returns:
            What it returns, and whether the `array_kernels` are used.
        """
        if binary is not None and self._math is None:
            self._math = KernelMath(lambda: binary, are_tested=are_tested)
        if self._single is not None and self._relaunch is None:
            buffers, buffer_set, launch = (
                self._single.buffers,
                self._single.buffer_set,
                self._single.launch,
            )
            if initial := buffers.staged("inout"):
                launch = _restoring(buffers, initial, [buffer_set], launch)
            again = CudaRelaunch(HostLaunches(self._cupy, launch), buffers, [[buffer_set]])
            self._single = replace(self._single, relaunch=again)
        math = self._math or KernelMath(None)
        return self._relaunching().begin(math), math.is_loaded

    @_guarded
    def relaunch(self, turn: int, once: bool) -> tuple[int, int]:
        """See `CudaRelaunch.relaunch`."""
        return self._relaunching().relaunch(turn, once=once)

    def fetch(self, number: int) -> None:
        """See `CudaRelaunch.fetch`."""
        self._relaunching().fetch(number)

    def unload(self) -> None:
        """Free what `load` created."""
        self._repeater = self._relaunch = None

    @_guarded
    def machine_code(self, job: Job) -> list[tuple[bytes, str]]:
        """See `triton_machine_code`."""
        return triton_machine_code(job)

    @_guarded
    def offered(self, call: LibraryCall, io: IoContract) -> tuple[LibraryCall, ...]:
        """See `Device.offered`."""
        return offered(self._cupy, call, io)

    def describe(self) -> dict[str, str]:
        """Return the versions of CuPy and the CUDA runtime."""
        runtime = self._cupy.cuda.runtime.runtimeGetVersion()
        return {
            "cupy": str(self._cupy.__version__),
            "cuda_runtime": f"{runtime // 1000}.{runtime % 1000 // 10}",
        }

    def _loaded(self) -> GraphRepeater:
        if self._repeater is None:
            raise RuntimeError("no kernel is loaded")
        return self._repeater

    def _relaunching(self) -> CudaRelaunch:
        single = None if self._single is None else self._single.relaunch
        relaunch = self._relaunch or single
        if relaunch is None:
            raise RuntimeError("no kernel is loaded")
        return relaunch

    def _bind(
        self,
        job: Job,
        binary: Binary | None,
        sets: Sequence[BufferSet],
        arenas: Mapping[str, Arena],
    ) -> list[Launcher]:
        """Return one function for each set, which launches the kernel once on it; see `bind`."""
        sizes = {name: arena.tensor.nbytes for name, arena in arenas.items()}
        sizes |= {space.name: space.nbytes for space in job.kernel.workspaces}
        payloads = [
            {
                name: image[GUARD_BYTES : GUARD_BYTES + sizes[name]]
                for name, image in buffer_set.items()
            }
            for buffer_set in sets
        ]
        return bind(self._cupy, job, binary, payloads)


def _restoring(
    buffers: CudaBuffers, initial: BufferSet, sets: Sequence[BufferSet], launch: Launcher
) -> Launcher:
    """Return a function that restores the inout tensors of some sets, and then launches."""

    def restore_and_launch() -> object:
        for buffer_set in sets:
            buffers.overwrite(buffer_set, initial)
        return launch()

    return restore_and_launch


class _Rotation:
    """A function that calls the next of ``actions`` in rotation."""

    def __init__(self, actions: Sequence[Launcher]) -> None:
        self._actions = actions
        self.rewind()

    def __call__(self) -> object:
        return next(self._turns)()

    def rewind(self) -> None:
        """Start again from the first action.

        A graph must not restore the inout tensors of a set on which it has launched already: it
        would replace results by initial contents.
        """
        self._turns = cycle(self._actions)
