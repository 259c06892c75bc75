"""As much of CuPy as the worker uses, with the host's memory and Python functions for kernels."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest

from pytest_gpuenergy.devices import CudaDevice, CudaRunner
from pytest_gpuenergy.devices.cuda import cuda_device as cuda

FREE_BYTES = 256 << 20
L2_BYTES = 4 << 20
LAUNCH_S = 1e-3


class Worker:
    """A worker that runs in this process."""

    pid = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        self._runner: CudaRunner | None = None

    def start(self) -> None:
        pass

    def kill(self) -> None:
        self._runner = None

    def call(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:  # noqa: ARG002
        self._runner = self._runner or CudaRunner()
        return getattr(self._runner, method)(*pickle.loads(pickle.dumps(arguments)))


def device_in_this_process(patch: pytest.MonkeyPatch, worker: type = Worker) -> CudaDevice:
    """Return the device of one card, whose worker runs in this process."""
    patch.setattr(cuda, "Worker", worker)
    patch.setattr(cuda, "find_spec", lambda _: object())
    gpu: Any = SimpleNamespace(handle=None, name="GPU", uuid="GPU-1", ordinal=0)
    return CudaDevice(nvml_of_one_card(), gpu)


def nvml_of_one_card(**more: Any) -> Any:
    """As much of NVML as a device asks when it is opened, and more."""
    return SimpleNamespace(
        nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0),
        nvmlDeviceGetComputeMode=lambda _: 0,
        NVML_COMPUTEMODE_DEFAULT=0,
        NVMLError=OSError,
        **more,
    )


class Memory(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array of the GPU's, as far as the worker uses one.

    Attributes:
        enqueue: puts an action on the GPU's stream.
    """

    enqueue: ClassVar[Callable[[Callable[[], None]], None]] = staticmethod(lambda action: action())

    @property
    def data(self) -> Any:
        return SimpleNamespace(
            ptr=self.ctypes.data,
            memset=self._set,
            memset_async=lambda value, size, _stream: self._set(value, size),
            copy_from_device=self._copy,
            copy_from_device_async=lambda *copy: self.enqueue(lambda: self._copy(*copy)),
            of=self,
        )

    def get(self) -> Any:
        return np.array(self)

    def set(self, content: Any) -> None:
        assert content.nbytes == self.nbytes
        self[:] = content

    def _set(self, value: int, size: int) -> None:
        assert size == self.nbytes
        self[:] = value

    def _copy(self, source: Any, size: int) -> None:
        assert size == self.nbytes == source.of.nbytes
        self[:] = source.of


def memory(image: Any) -> Any:
    return np.array(image).view(Memory)


class Block:
    """Memory that can be shared: ``ptr`` stands for its address."""

    def __init__(self, size: int) -> None:
        self.image = memory(np.zeros(size, np.uint8))
        self.ptr = self.image.ctypes.data


class SharedBlocks:
    """CUDA's interprocess communication, within one process.

    Attributes:
        opened: how many mappings there are.
        works: whether it does.
    """

    def __init__(self) -> None:
        self.opened = 0
        self.works = True
        self._blocks: dict[bytes, Block] = {}
        self._mapped: dict[int, Block] = {}

    def allocate(self, size: int) -> Block:
        assert size % (2 << 20) == 0, "CUDA may share more than this allocation"
        block = Block(size)
        self._blocks[str(block.ptr).encode()] = block
        return block

    def handle_of(self, pointer: int) -> bytes:
        return str(pointer).encode()

    def open(self, handle: bytes) -> int:
        if not self.works:
            raise OSError("cudaErrorMapBufferObjectFailed")
        self.opened += 1
        block = self._blocks[handle]
        self._mapped[block.ptr] = block
        return block.ptr

    def close(self, pointer: int) -> None:
        assert pointer in self._mapped
        self.opened -= 1

    def array(self, nbytes: int, dtype: type, at: Any) -> Any:
        pointer, size, _owner = at
        assert nbytes <= size
        image = self._blocks[str(pointer).encode()].image[:nbytes].view(dtype)
        image.keeps = at
        return image


class Capturing(Protocol):
    """A GPU that notes launches instead of making them, from the first call to the second."""

    def begin_capture(self) -> None: ...
    def end_capture(self) -> Callable[[], None]: ...


class HostStream:
    """A stream of such a GPU: nothing on it is ever pending."""

    ptr = 0

    def __init__(self, gpu: Capturing) -> None:
        self._gpu = gpu

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def begin_capture(self) -> None:
        self._gpu.begin_capture()

    def end_capture(self) -> Any:
        replay = self._gpu.end_capture()
        return SimpleNamespace(launch=lambda _: replay())


class Noting(Protocol):
    """A GPU with a clock."""

    now_s: float
    clock_mhz: float
    sm: int

    def enqueue_note(self, note: Callable[[], None]) -> None: ...


class NoteModule:
    """Stands for the module whose kernel notes the GPU's clock."""

    def __init__(self, gpu: Noting) -> None:
        self._gpu = gpu
        self._cycles = 0.0
        self._last_s = 0.0

    def load(self, text: bytes) -> None:
        assert b".entry note(" in text

    def get_function(self, name: str) -> Callable[..., None]:
        assert name == "note"
        return lambda _grid, _block, arguments: self._gpu.enqueue_note(
            lambda: self._note(*arguments)
        )

    def _note(self, notes: Any, count: Any) -> None:
        gpu = self._gpu
        self._cycles += 1e6 * gpu.clock_mhz * (gpu.now_s - self._last_s)
        self._last_s = gpu.now_s
        at = 3 * (int(count[0]) % (len(notes) // 3))
        # Each SM has its own counter.
        notes[at : at + 3] = (int(1e9 * gpu.now_s), int(self._cycles) + 1000 * gpu.sm, gpu.sm)
        count[0] += 1


class HostDevice:
    """One of the GPUs: the current one, or by its number.

    Attributes:
        current: the number of the current one.
        with_context: the numbers of those that have been current: CUDA gave each a context.
    """

    attributes: ClassVar[dict[str, int]] = {"L2CacheSize": L2_BYTES}
    current: ClassVar[int] = 0
    with_context: ClassVar[set[int]] = set()

    def __init__(self, ordinal: int | None = None) -> None:
        self.id = HostDevice.current if ordinal is None else ordinal

    def use(self) -> None:
        HostDevice.current = self.id
        HostDevice.with_context.add(self.id)

    def synchronize(self) -> None:
        pass


class HostGpu:
    """Runs ``kernel`` with its arguments' bytes; a launch takes `LAUNCH_S` of its time.

    Attributes:
        loaded: how many modules have been, from files: the variables of each begin afresh.
    """

    def __init__(self, kernel: Callable[..., object]) -> None:
        self.loaded = 0
        self.now_s = 0.0
        self.clock_mhz, self.sm = 1000.0, 0
        self._kernel = kernel
        self._captured: list[Callable[[], None]] | None = None
        self.blocks = SharedBlocks()
        self.accelerators = [1]
        cuda = SimpleNamespace(
            set_allocator=lambda _: None,
            Device=HostDevice,
            UnownedMemory=lambda pointer, size, owner: (pointer, size, owner),
            MemoryPointer=lambda memory, offset: memory if offset == 0 else None,
            Event=self._event,
            Stream=self._stream,
            get_current_stream=lambda: HostStream(self),
            get_elapsed_time=lambda begin, end: 1e3 * (end.at_s - begin.at_s),
            runtime=SimpleNamespace(
                CUDARuntimeError=OSError,
                getDeviceCount=lambda: 1,
                memGetInfo=lambda: (FREE_BYTES, 1 << 40),
                ipcGetMemHandle=self.blocks.handle_of,
                ipcOpenMemHandle=self.blocks.open,
                ipcCloseMemHandle=self.blocks.close,
            ),
            driver=SimpleNamespace(CUDADriverError=OSError),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError, Memory=self.blocks.allocate),
            function=SimpleNamespace(Module=lambda: HostModule(self)),
        )
        self.module = SimpleNamespace(
            cuda=cuda,
            asarray=lambda image: image if isinstance(image, Memory) else memory(image),
            array=memory,
            ndarray=self.blocks.array,
            asnumpy=np.array,
            _core=SimpleNamespace(
                get_reduction_accelerators=lambda: self.accelerators,
                set_reduction_accelerators=lambda some: setattr(self, "accelerators", some),
            ),
            get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
            empty=lambda size, dtype: memory(np.zeros(size, dtype)),
            uint8=np.uint8,
        )

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> Callable[[], None]:
        launches, self._captured = self._captured, None
        assert launches is not None

        def replay() -> None:
            for launch in launches:
                launch()

        return replay

    def enqueue_note(self, note: Callable[[], None]) -> None:
        self._enqueue(note)

    def _launch(self, _grid: Any, _block: Any, arguments: Any, **_: Any) -> None:
        def launch() -> None:
            self.now_s += LAUNCH_S
            self._kernel(*arguments)

        self._enqueue(launch)

    def _enqueue(self, action: Callable[[], None]) -> None:
        if self._captured is None:
            action()
        else:
            self._captured.append(action)

    def _event(self, *, block: bool = False) -> Any:  # noqa: ARG002
        event = SimpleNamespace(at_s=0.0, synchronize=lambda: None)
        event.record = lambda _: setattr(event, "at_s", self.now_s)
        return event

    def _stream(self, *, non_blocking: bool) -> Any:
        assert non_blocking
        return HostStream(self)


class HostModule(NoteModule):
    """Stands for the module of a file, too."""

    def __init__(self, gpu: HostGpu) -> None:
        super().__init__(gpu)
        self._host = gpu
        self._has_file = False

    def load_file(self, path: str) -> None:
        assert path
        self._has_file = True
        self._host.loaded += 1

    def get_function(self, name: str) -> Callable[..., None]:
        return self._host._launch if self._has_file else super().get_function(name)


@contextmanager
def host_gpu(kernel: Callable[..., object]) -> Iterator[HostGpu]:
    """A process whose CuPy has one."""
    gpu = HostGpu(kernel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", gpu.module)
        patch.setattr(Memory, "enqueue", staticmethod(gpu._enqueue))
        patch.delitem(sys.modules, "torch", raising=False)
        patch.setattr(HostDevice, "current", 0)
        patch.setattr(HostDevice, "with_context", set())
        patch.setattr(CudaDevice, "_array_kernels", None)  # this GPU runs ``kernel`` only
        yield gpu
