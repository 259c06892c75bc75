"""Whether a kernel computes what its workload says, everywhere and nothing else."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.device import GUARD_BYTES, Arena, Device
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.record.correctness import Correctness
from pytest_gpuenergy.support.errors import DeviceError, InputError, KernelFault
from pytest_gpuenergy.support.files import keep_for_later
from pytest_gpuenergy.support.json_input import FormError, decode
from pytest_gpuenergy.support.json_output import encode
from pytest_gpuenergy.support.paths import cache_dir
from pytest_gpuenergy.support.scratch import scratch_folder
from pytest_gpuenergy.workloads.workload import Array, ErrorBound, Tensor, Workload

SEEDS = (0, 1)
_FORMAT = 3
_PIECE = 8192  # elements
Reference = Mapping[str, npt.NDArray[np.float64]]


def verify(
    device: Device,
    kernel: Kernel,
    workload: Workload,
    *,
    seeds: Sequence[int] = SEEDS,
    timeout_s: float = 60.0,
) -> Correctness:
    """Run ``kernel`` once for each seed and compare with the float64 reference.

    Outputs are poisoned beforehand, see `arenas_for`; guard bands around every buffer, and the
    inputs, must be unchanged afterwards. An emulated device is deterministic, so what passed there
    is remembered by content.

    Raises:
        KernelFault: how and where the kernel fails.
        InputError: the reference is not finite.
    """
    remembered = device.emulated and workload.digest is not None
    memory = _memory_path(device, kernel, workload, seeds) if remembered else None
    if memory is not None and (known := _recall(memory)) is not None:
        return known
    bound = workload.error_bound
    bounds = {tensor.name: workload.bound_of(tensor) for tensor in workload.outputs}

    def errors_of(turn: int, seed: int) -> ErrorBound:
        outputs = _run(device, kernel, workload, seed, timeout_s, turn)
        return compare(outputs, cached_reference(workload, seed), bounds, seed)

    if device.emulated:  # on the host each seed can have a core of its own
        pool = ThreadPoolExecutor(len(seeds), thread_name_prefix="verify")
        try:
            runs = [pool.submit(errors_of, *order) for order in enumerate(seeds)]
            wait(runs)  # all of them, so that nothing runs on after a fault
            errors = [run.result() for run in runs]
        finally:  # an interrupt does not wait for kernels: the device ends them when it closes
            pool.shutdown(wait=False, cancel_futures=True)
    else:
        errors = [errors_of(*order) for order in enumerate(seeds)]
    result = Correctness(
        max(error.max_relative for error in errors),
        max(error.normwise for error in errors),
        bound.max_relative,
        bound.normwise,
        tuple(seeds),
    )
    if memory is not None:
        keep_for_later(memory, encode(result))
    return result


@contextlib.contextmanager
def arenas_for(workload: Workload, seed: int, turn: int = 0) -> Iterator[dict[str, Arena]]:
    """A temporary folder of arenas, by tensor name: seeded inputs, and outputs full of poison.

    Poison is NaN in turn 0, the largest or -1 in integers; in every other turn the largest and the
    smallest value of the type alternate, infinities included. So no value is right in all turns
    where nothing was written, whatever a kernel combines it with.
    """
    values = dict(_seeded_inputs(workload, seed))
    if turn:
        values |= {tensor.name: _extremes(tensor) for tensor in workload.outputs}
    size = sum(tensor.nbytes + 3 * GUARD_BYTES for tensor in workload.tensors)
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder(size))
            arenas = {
                tensor.name: Arena.create(folder / str(index), tensor, values.get(tensor.name))
                for index, tensor in enumerate(workload.tensors)
            }
        except OSError as error:
            raise DeviceError(
                f"The buffers of {workload.name}, {size} bytes, cannot be written "
                f"({error.strerror}): make room in /dev/shm or $TMPDIR."
            ) from None
        yield arenas


def _extremes(tensor: Tensor) -> Array:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        pair = np.array([np.inf, -np.inf], dtype)
    elif dtype.kind == "i":
        pair = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    else:  # the largest has been there in turn 0
        pair = np.zeros(2, dtype)
    values = np.empty(tensor.size, dtype)
    for turn, value in enumerate(pair):
        values[turn :: len(pair)] = value
    return values.reshape(tensor.shape)


@dataclass(frozen=True)
class _Draw:
    digest: str
    seed: int
    workload: Workload = field(compare=False)


@functools.lru_cache(maxsize=len(SEEDS))
def _drawn(draw: _Draw) -> dict[str, Array]:
    return draw.workload.make_inputs(draw.seed)


def _seeded_inputs(workload: Workload, seed: int) -> dict[str, Array]:
    """`Workload.make_inputs`; the kernels of a case share what is drawn."""
    if workload.digest is None:
        return workload.make_inputs(seed)
    return _drawn(_Draw(workload.digest, seed, workload))


def compare(
    outputs: Mapping[str, Array], reference: Reference, bounds: Mapping[str, ErrorBound], seed: int
) -> ErrorBound:
    """The errors of ``outputs``, as fractions of the reference's largest value and norm.

    Raises:
        InputError: the reference is not finite.
        KernelFault: an element was not written, is not finite or is too far off; or all together
            are too far off. The message gives the number of wrong elements and the place and
            size of the worst.
    """
    worst = ErrorBound(0.0, 0.0)
    for name, expected in reference.items():
        bound = bounds[name]
        largest, norm, scale, expected_norm = _distance(outputs[name], expected)
        if not math.isfinite(scale):
            first = np.argwhere(~np.isfinite(expected))[0].tolist()
            raise InputError(
                f"The reference is NaN or infinite, first in {name}{first} of seed {seed}, and "
                "nothing can be compared with that: give inputs for which it is finite, such as "
                "init={'x': (0.1, 1.0)} of a Contract."
            )
        largest, norm = largest / scale, norm / expected_norm
        if not largest <= bound.max_relative:
            raise KernelFault(
                "correctness", _tell_wrong(name, outputs[name], expected, scale, bound, seed)
            )
        if not norm <= bound.normwise:
            raise KernelFault(
                "correctness",
                f"{name} is off by {norm:.2e} of its norm (bound {bound.normwise:.1e}, "
                f"seed {seed}).",
            )
        worst = ErrorBound(max(worst.max_relative, largest), max(worst.normwise, norm))
    return worst


def _distance(
    output: Array, expected: npt.NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """The error's largest absolute value and norm (NaN where it is), and those of ``expected``.

    Those of ``expected`` are 1 instead of 0. Piece by piece, as these arrays are the largest there
    are: a piece stays in the processor's cache and is too short for BLAS to start threads.
    """
    values, references = output.reshape(-1), expected.reshape(-1)
    starts = range(0, values.size, _PIECE)
    extremes, squares = np.zeros((len(starts), 4)), np.zeros((len(starts), 2))
    with np.errstate(invalid="ignore", over="ignore"):
        for row, start in enumerate(starts):
            error = values[start : start + _PIECE].astype(np.float64)
            right = references[start : start + _PIECE]
            error -= right
            extremes[row] = error.max(), -error.min(), right.max(), -right.min()
            squares[row] = error @ error, right @ right
        peaks = extremes.max(axis=0, initial=0.0).reshape(2, 2).max(axis=1)
        norms = np.sqrt(squares.sum(axis=0))
    return float(peaks[0]), float(norms[0]), float(peaks[1]) or 1.0, float(norms[1]) or 1.0


def _tell_wrong(
    name: str,
    output: Array,
    expected: npt.NDArray[np.float64],
    scale: float,
    bound: ErrorBound,
    seed: int,
) -> str:
    values = output.astype(np.float64)
    unset = np.isnan(values)
    if unset.any():
        return f"{_places(name, unset)} never written or NaN."
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(values - expected) / scale
    place = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    found, right = float(output[place]), float(expected[place])
    digits = 6 if f"{found:.6g}" != f"{right:.6g}" else 17
    return (
        f"{_places(name, error > bound.max_relative)} wrong (seed {seed}); the worst is "
        f"{name}{list(place)} = {found:.{digits}g} instead of {right:.{digits}g}, off "
        f"by {float(error[place]):.2e} of the largest value (bound {bound.max_relative:.1e})."
    )


def cached_reference(workload: Workload, seed: int) -> Reference:
    """`Workload.reference` of the inputs of ``seed``, kept on disk by the workload's content."""
    if workload.digest is None:
        return workload.reference(workload.make_inputs(seed))
    key = hashlib.sha256(f"{_FORMAT} {workload.digest} {seed}".encode()).hexdigest()
    path = cache_dir("references") / f"{key}.npz"
    if (known := _load_reference(path, workload)) is not None:
        return known
    reference = workload.reference(workload.make_inputs(seed))
    archive = io.BytesIO()
    np.savez(archive, **reference)  # type: ignore[arg-type]
    keep_for_later(path, archive.getvalue())
    return reference


def _load_reference(path: Path, workload: Workload) -> Reference | None:
    try:
        state = path.stat()
        known = _read_archive(path, state.st_mtime_ns, state.st_size)
        good = all(known[tensor.name].shape == tensor.shape for tensor in workload.outputs)
    except Exception:  # a damaged archive raises almost anything, and can be made again
        return None
    return known if good else None


@functools.lru_cache(maxsize=len(SEEDS))
def _read_archive(path: Path, _mtime_ns: int, _size: int) -> Reference:
    """The arrays of an archive, whose checksums are verified; the kernels of a case share them."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return dict(stored.items())


def _run(
    device: Device, kernel: Kernel, workload: Workload, seed: int, timeout_s: float, turn: int
) -> dict[str, Array]:
    scalars = {scalar.name: scalar for scalar in workload.scalars}
    with arenas_for(workload, seed, turn) as arenas:
        inputs = {t.name: np.array(arenas[t.name].image()) for t in workload.inputs}
        device.run_once(kernel, arenas, scalars, timeout_s=timeout_s, order_seed=turn)
        for arena in arenas.values():
            _check_guards(arena)
        for tensor in workload.inputs:
            image = arenas[tensor.name].image()
            if (inputs[tensor.name].view(np.uint64) != image.view(np.uint64)).any():
                changed = inputs[tensor.name] != image
                payload = changed[GUARD_BYTES : GUARD_BYTES + tensor.nbytes]
                mask = payload.reshape(*tensor.shape, -1).any(axis=-1)
                raise KernelFault(
                    "correctness", f"{_places(tensor.name, mask)} changed, and it is an input."
                )
        return {tensor.name: arenas[tensor.name].value() for tensor in workload.outputs}


def _check_guards(arena: Arena) -> None:
    image, tensor = arena.image(), arena.tensor
    size = np.dtype(tensor.dtype).itemsize
    end = GUARD_BYTES + tensor.nbytes
    for start, stop, where in ((0, GUARD_BYTES, "before the start"), (end, None, "past the end")):
        written = np.flatnonzero(image[start:stop] != 0xFF) + start
        if written.size:
            first, last = ((int(i) - GUARD_BYTES) // size for i in written[[0, -1]])
            raise KernelFault(
                "correctness",
                f"The kernel writes {where} of {tensor.name}, which has {tensor.size} elements: "
                f"between elements {first} and {last}.",
            )


def _places(name: str, mask: npt.NDArray[np.bool_]) -> str:
    """``3 of 100 elements of output (first output[0, 1]) are``."""
    first = [int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape)]
    count = int(mask.sum())
    verb = "is" if count == 1 else "are"
    return f"{count} of {mask.size} elements of {name} (first {name}{first}) {verb}"


def _memory_path(device: Device, kernel: Kernel, workload: Workload, seeds: Sequence[int]) -> Path:
    key = [_FORMAT, kernel.digest, workload.digest, list(seeds), sorted(device.describe().items())]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return cache_dir("verified") / f"{digest}.json"


def _recall(path: Path) -> Correctness | None:
    try:
        return decode(path.read_bytes(), Correctness)
    except (OSError, FormError):
        return None
