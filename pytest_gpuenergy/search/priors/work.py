"""What a state's kernel does in one launch, counted in its text."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.search.spec import KernelSpec
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.support import InputError

WARP = 32


@dataclass(frozen=True)
class Work:
    """What an average block of a launch does, with the first set of sizes.

    Attributes:
        blocks: of the launch.
        threads: of a block.
        shared_bytes: of a block.
        private_words: in a thread's own arrays, of 4 bytes.
        instructions: of all warps.
        tensor_flops: by tensor cores.
        functions: results of special functions, of all threads.
        loads: of tensors by a warp.
        sectors: of 32 bytes that its loads and stores of tensors touch, summed over them.
        l2_bytes: of these sectors, each once.
        wavefronts: parts that its accesses to shared memory take, each without bank conflicts.
        atomics: updates of tensors by all threads.
        places: different elements that all blocks update.
        barriers: that it passes.
        rounds: how often a warp waits for loads.
        serial: instructions of the warp that has most to do.
        guessed: loops that data ends, as they begin in the text.
    """

    blocks: int
    threads: int
    shared_bytes: int = 0
    private_words: int = 0
    instructions: float = 0.0
    tensor_flops: float = 0.0
    functions: float = 0.0
    loads: float = 0.0
    sectors: float = 0.0
    l2_bytes: float = 0.0
    wavefronts: float = 0.0
    atomics: float = 0.0
    places: float = 1.0
    barriers: float = 0.0
    rounds: float = 0.0
    serial: float = 0.0
    guessed: frozenset[str] = frozenset()

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // WARP)


_MOST_THREADS = 1024
_NO_NUMBERS = (ArithmeticError, ValueError, RecursionError, InputError)
"""What counting a text raises whose numbers no kernel can have."""


def work_of(state: State, spec: KernelSpec) -> Work | None:
    """The work of a state; None if its text is not understood.

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    try:
        return _cuda(state, spec) if state.language == "cuda" else _triton(state, spec)
    except _NO_NUMBERS:
        return None


def _cuda(state: State, spec: KernelSpec) -> Work | None:
    from pytest_gpuenergy.search.priors.cuda_work import work_of_cuda
    from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel

    kernel = CudaKernel.of(state, spec)
    known = kernel is not None and 0 < kernel.threads <= _MOST_THREADS
    return work_of_cuda(kernel) if kernel is not None and known else None


def _triton(state: State, spec: KernelSpec) -> Work | None:
    from pytest_gpuenergy.search.priors.triton_work import work_of_triton
    from pytest_gpuenergy.search.source.triton_function import TritonFunction

    kernel = TritonFunction.of(state, spec)
    return None if kernel is None else work_of_triton(kernel)
