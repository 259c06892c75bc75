"""Makes the arenas that a kernel runs on: seeded inputs, and outputs full of poison."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np

from pytest_gpuenergy.devices import (
    GUARD_BYTES,
    Arena,
    DeviceArrays,
    FileMemory,
    Memory,
    arena_bytes,
)
from pytest_gpuenergy.engine.references import is_large, ordinary_inputs
from pytest_gpuenergy.support import DeviceError, enough_memory, scratch_folder
from pytest_gpuenergy.workloads import (
    Array,
    IoContract,
    Tensor,
    Workload,
    is_floating,
    rounded_to,
    stored_as,
)


@contextlib.contextmanager
def seeded_arenas(
    workload: Workload, seed: int, arrays: DeviceArrays | None = None, *, second: bool = False
) -> Iterator[dict[str, Arena]]:
    """Make temporary arenas, by tensor name: seeded inputs, and outputs full of poison.

    The arenas of a large workload are in the memory of ``arrays`` if possible, otherwise in files.

    The first poison is NaN (in integers -1 or, if unsigned, the largest value). In the second one,
    the largest and smallest values of the type alternate, infinities included; unsigned integers
    are zeros. An element that is never written is therefore wrong after one of them, whatever the
    kernel combines it with.

    Args:
        workload: the workload.
        seed: the seed of the inputs.
        arrays: the memory of the device; None if kernels run on files.
        second: whether outputs get the second poison instead of the first.
    """
    contents = dict(ordinary_inputs(workload, seed))
    if second:
        contents |= {t.name: second_poison(t) for t in workload.outputs if t.role == "output"}
    with memory_or_file_arenas(workload.io, contents, arrays) as arenas:
        yield arenas


@contextlib.contextmanager
def memory_or_file_arenas(
    io: IoContract, values: Mapping[str, Array], arrays: DeviceArrays | None
) -> Iterator[dict[str, Arena]]:
    """Make arenas in the memory of ``arrays`` if they are large and fit; else see `file_arenas`."""
    memories: dict[str, Memory] | None = None
    if arrays is not None and is_large(io):
        with contextlib.suppress(DeviceError):
            memories = {tensor.name: arrays.memory(arena_bytes(tensor)) for tensor in io.tensors}
        if memories is not None:
            with arrays.used():  # waits once, at its end
                arenas = {
                    tensor.name: Arena.within(
                        memories[tensor.name], tensor, values.get(tensor.name)
                    )
                    for tensor in io.tensors
                }
            yield arenas
            return
    with file_arenas(io, values) as arenas:
        yield arenas


@contextlib.contextmanager
def file_arenas(io: IoContract, values: Mapping[str, Array]) -> Iterator[dict[str, Arena]]:
    """Make arenas in a temporary folder, by tensor name, with ``values``, see `Arena.fill`.

    Raises:
        DeviceError: there is no room for the files.
        InputError: there is not enough memory.
    """
    size = sum(tensor.nbytes + 3 * GUARD_BYTES for tensor in io.tensors)
    largest = max(tensor.nbytes for tensor in io.tensors)
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder(size))
            with enough_memory(f"A buffer of {io.name}", largest):
                arenas = {
                    tensor.name: Arena.create(folder / str(index), tensor, values.get(tensor.name))
                    for index, tensor in enumerate(io.tensors)
                }
        except OSError as error:
            raise DeviceError(
                f"The buffers of {io.name}, {size} bytes, cannot be written "
                f"({error.strerror}): make room in /dev/shm or $TMPDIR."
            ) from None
        try:
            yield arenas
        finally:
            for arena in arenas.values():
                assert isinstance(arena.memory, FileMemory)
                arena.memory.unmap()


def second_poison(tensor: Tensor) -> Array:
    """Return the beginning of a tensor of largest and smallest values, or of zeros if unsigned."""
    dtype = stored_as(tensor.dtype)
    if is_floating(tensor.dtype):
        pair = rounded_to(np.array([np.inf, -np.inf]), tensor.dtype)
    elif dtype.kind == "i":
        pair = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    else:  # the first poison is the largest value
        pair = np.zeros(2, dtype)
    return pair if tensor.size > len(pair) else np.resize(pair, tensor.shape)
