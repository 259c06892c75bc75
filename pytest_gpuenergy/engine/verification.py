"""Verifies that a kernel computes what its workload specifies, and changes nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pytest_gpuenergy.devices import (
    GUARD_BYTES,
    Arena,
    Device,
    DeviceArrays,
    Loaded,
    Memory,
    arena_bytes,
)
from pytest_gpuenergy.engine.arena_check import ArenaCheck, check_again
from pytest_gpuenergy.engine.comparison import Reference, places
from pytest_gpuenergy.engine.references import (
    Case,
    Drawing,
    KeptCases,
    case_of,
    is_large,
    ordinary_inputs,
)
from pytest_gpuenergy.engine.seeds import SEEDS, drawings_of, drawn_seed
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import (
    DeviceError,
    FormError,
    KernelFault,
    cache_dir,
    decode,
    encode,
    enough_memory,
    keep_for_later,
    scratch_folder,
    watched,
)
from pytest_gpuenergy.workloads import (
    Array,
    ErrorBound,
    IoContract,
    Tensor,
    Workload,
    is_floating,
    rounded_to,
    stored_as,
)

_FORMAT = 8
"""The version of cached results, to be increased when verification changes."""

_STALE_TURN = 1
"""The run whose outputs are not poisoned: they still hold the results of the run before."""


def verify_on_device(
    device: Device,
    kernel: AnyKernel,
    workload: Workload,
    *,
    seeds: Sequence[int] | None = None,
    drawn: int | None = None,
    timeout_s: float = 60.0,
    kept: KeptCases | None = None,
    measured: bool = True,
    near_literals: bool = True,
) -> Correctness:
    """Run ``kernel`` once for each drawing and compare its outputs with the float64 reference.

    All runs are made in one process, on the same buffers. The inputs are ordinary for the first
    seed, and have edges for the others, see `drawings_of`. Outputs are poisoned before the first
    run, see `arenas_for`, but not before the second one: they still hold the results of other
    inputs, which catches kernels that skip work where the outputs look right. The inputs, and the
    guard bands around every buffer, must be unchanged afterwards. The workload's twins are
    verified on the ordinary inputs of the first seed. Tensor cores are refused where the workload
    does not allow them. An emulated device is deterministic, so a success there is cached by
    content.

    Args:
        device: the device that runs the kernel.
        kernel: the kernel to verify.
        workload: what it must compute.
        seeds: the seeds of the inputs; by default `SEEDS` and a random one.
        drawn: that random seed, to repeat a verification; by default `drawn_seed`.
        timeout_s: the time limit of each run.
        kept: the inputs and references of earlier verifications; new ones are added to it.
        measured: whether the kernel will be measured on this workload. If not, an emulated device
            launches it four times instead of the many times that stand for a measurement.
        near_literals: whether inputs are also drawn near the numbers in the kernel's text, for
            which this kernel needs references of its own.

    Raises:
        KernelFault: the kernel is wrong or fails. The message says how and where.
        InputError: the reference is not finite.
    """
    check_precision(device, kernel, workload)
    is_cached = measured and device.emulated and workload.digest is not None
    requested = [*(SEEDS if seeds is None else seeds), *([] if drawn is None else [drawn])]
    path = _cache_path(device, kernel, workload, requested) if is_cached else None
    if path is not None:
        with contextlib.suppress(OSError, FormError):
            return decode(path.read_bytes(), Correctness)
    used = requested if seeds is not None or drawn is not None else [*SEEDS, drawn_seed(workload)]
    errors = []
    for subject in (workload, *workload.twins):
        seeds = used if subject is workload else used[:1]
        drawings = drawings_of(seeds, subject, kernel if near_literals else None)
        subject_errors = _errors(device, kernel, subject, drawings, timeout_s, kept, measured)
        errors += subject_errors if subject is workload else []
    bound = workload.error_bound
    result = Correctness(
        max(error.max_relative for error in errors),
        max(error.normwise for error in errors),
        bound.max_relative,
        bound.normwise,
        tuple(used),
    )
    if path is not None:
        keep_for_later(path, encode(result))
    return result


def _errors(
    device: Device,
    kernel: AnyKernel,
    workload: Workload,
    drawings: Sequence[Drawing],
    timeout_s: float,
    kept: KeptCases | None,
    measured: bool,
) -> list[ErrorBound]:
    job = Job.of(kernel, workload, seed=drawings[0].seed, timeout_s=timeout_s)
    errors = []
    with (
        _cases(device, workload, drawings, kept) as cases,
        arenas_for(workload, job.seed, device.arrays) as arenas,
        device.load(job, arenas) as loaded,
    ):
        for turn, (drawing, case) in enumerate(zip(drawings, cases, strict=True)):
            if turn:
                _refill(arenas, case.result().inputs, poisoned=turn != _STALE_TURN)
            check = ArenaCheck(arenas, _reference_of(case), job.io.bounds, drawing.seed)
            loaded.run(order_seed=turn)
            try:
                errors.append(check())
            except KernelFault as fault:
                explained = None if turn else _reads_what_it_writes(loaded, arenas, case.result())
                raise fault if explained is None else explained from None
        check_again(loaded, check, once=not measured)
    return errors


def _reads_what_it_writes(
    loaded: Loaded, arenas: Mapping[str, Arena], case: Case
) -> KernelFault | None:
    """Return the fault of a kernel whose outputs depend on their contents before the launch.

    The first run was wrong. The kernel runs again on other contents of the outputs, and once more
    on the poison, to show whether the contents make the difference.
    """
    outputs = {name: arena for name, arena in arenas.items() if arena.tensor.role == "output"}

    def results(contents: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
        """Run the kernel; return the bits of each output's elements before and after."""
        before = {}
        for name, arena in arenas.items():
            if arena.tensor.is_read:
                arena.fill(case.inputs[name])
            else:
                arena.fill(contents.get(name))
                before[name] = arena.bits()
        loaded.run()
        return {name: (before[name], arena.bits()) for name, arena in outputs.items()}

    now = {name: arena.bits() for name, arena in outputs.items()}
    try:
        others = results({name: _ones(arena.tensor) for name, arena in outputs.items()})
        if all(
            (now[n] == after).all() or (ones == after).all() for n, (ones, after) in others.items()
        ):
            return None  # no output depends on its contents
        again = results({})
    except KernelFault:
        return None
    for name, (poison, repeated) in again.items():
        ones, other = others[name]
        unwritten = (repeated == poison) & (other == ones)
        mask = (now[name] == repeated) & (other != repeated) & ~unwritten
        if mask.any():
            return KernelFault(
                "correctness",
                f"{places(name, mask.reshape(outputs[name].tensor.shape))} computed from what "
                f"{name} held before the launch, which nothing has written: write {name} before "
                "reading it, or give it the role inout, whose contents are drawn like an input's "
                "and restored before each launch.",
            )
    return None


def _ones(tensor: Tensor) -> Array:
    """Return the beginning of a tensor of ones; `Arena.fill` repeats it."""
    one = np.ones((1,), stored_as(tensor.dtype))
    if is_floating(tensor.dtype):
        one = rounded_to(np.ones(1), tensor.dtype)
    return np.resize(one, tensor.shape) if tensor.size == 1 else one


def _refill(arenas: Mapping[str, Arena], inputs: Mapping[str, Array], *, poisoned: bool) -> None:
    """Write other inputs to the arenas, and the second kind of poison to their outputs."""
    for name, arena in arenas.items():
        if name in inputs:
            arena.fill(inputs[name])
        elif poisoned:
            arena.fill(_extremes(arena.tensor))


def _reference_of(case: Future[Case]) -> Callable[[], Reference]:
    return lambda: case.result().reference


@contextlib.contextmanager
def _cases(
    device: Device,
    workload: Workload,
    drawings: Sequence[Drawing],
    kept: KeptCases | None,
) -> Iterator[list[Future[Case]]]:
    """Yield the future case of each drawing; they are made one after another while kernels run."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="verify")
    # A workload without a digest has a user's function as its reference, which may not end.
    with watched() if workload.digest is None else contextlib.nullcontext():
        try:
            make_case = case_of if kept is None else kept.case_of
            yield [pool.submit(make_case, workload, drawing, device.arrays) for drawing in drawings]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def check_of(
    device: Device,
    workload: Workload,
    arenas: Mapping[str, Arena],
    seed: int,
    kept: KeptCases | None = None,
) -> ArenaCheck:
    """Return the check of ``arenas`` that contain the inputs of ``seed``, for after a run."""

    def reference() -> Reference:
        make_case = case_of if kept is None else kept.case_of
        return make_case(workload, Drawing(seed), device.arrays).reference

    return ArenaCheck(arenas, reference, workload.io.bounds, seed)


@contextlib.contextmanager
def arenas_for(
    workload: Workload, seed: int, arrays: DeviceArrays | None = None, *, turn: int = 0
) -> Iterator[dict[str, Arena]]:
    """Make temporary arenas, by tensor name: seeded inputs, and outputs full of poison.

    The arenas of a large workload are in the memory of ``arrays`` if possible, otherwise in files.

    Poison is NaN in turn 0 (in integers -1 or, if unsigned, the largest value); in all other turns
    the largest and smallest values of the type alternate, infinities included. An element that is
    never written is therefore wrong in at least one turn, whatever the kernel combines it with.
    """
    contents = dict(ordinary_inputs(workload, seed))
    if turn:
        contents |= {t.name: _extremes(t) for t in workload.outputs if t.role == "output"}
    with arenas_in(workload.io, contents, arrays) as arenas:
        yield arenas


@contextlib.contextmanager
def arenas_in(
    io: IoContract, values: Mapping[str, Array], arrays: DeviceArrays | None
) -> Iterator[dict[str, Arena]]:
    """Make arenas in the memory of ``arrays`` if they are large and fit; else see `arenas_of`."""
    memories: dict[str, Memory] | None = None
    if arrays is not None and is_large(io):
        with contextlib.suppress(DeviceError):
            memories = {tensor.name: arrays.memory(arena_bytes(tensor)) for tensor in io.tensors}
    if memories is not None:
        yield {
            tensor.name: Arena.within(memories[tensor.name], tensor, values.get(tensor.name))
            for tensor in io.tensors
        }
        return
    with arenas_of(io, values) as arenas:
        yield arenas


@contextlib.contextmanager
def arenas_of(io: IoContract, values: Mapping[str, Array]) -> Iterator[dict[str, Arena]]:
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
        yield arenas


def _extremes(tensor: Tensor) -> Array:
    """Return the beginning of a tensor of largest and smallest values in turn."""
    dtype = stored_as(tensor.dtype)
    if is_floating(tensor.dtype):
        pair = rounded_to(np.array([np.inf, -np.inf]), tensor.dtype)
    elif dtype.kind == "i":
        pair = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    else:  # turn 0 has the largest value
        pair = np.zeros(2, dtype)
    return pair if tensor.size > len(pair) else np.resize(pair, tensor.shape)


def _cache_path(
    device: Device, kernel: AnyKernel, workload: Workload, seeds: Sequence[int]
) -> Path:
    key = [_FORMAT, kernel.digest, workload.digest, list(seeds), sorted(device.describe().items())]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return cache_dir("verified") / f"{digest}.json"


def check_precision(device: Device, kernel: AnyKernel, workload: Workload) -> None:
    """Refuse tensor cores where the workload does not allow them.

    A library's machine code cannot be searched, so the library is trusted to comply.

    Raises:
        KernelFault: the machine code uses tensor cores, or the kernel does not compile.
    """
    if workload.allows_tensor_cores:
        return
    if instructions := device.tensor_core_instructions(Job.of(kernel, workload)):
        raise KernelFault(
            "correctness",
            "The machine code has instructions for tensor cores "
            f"({', '.join(sorted(instructions))}), but {workload.name} is "
            "declared as float32: declare mode=3xtf32 if it is as exact, or "
            "else mode=tf32.",
        )
