"""Verifies that a kernel computes what its workload specifies, and changes nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_gpuenergy.devices import (
    Arena,
    Device,
    Loaded,
)
from pytest_gpuenergy.engine.arena_check import ArenaCheck, check_again
from pytest_gpuenergy.engine.arenas import second_poison, seeded_arenas
from pytest_gpuenergy.engine.comparison import Reference, places
from pytest_gpuenergy.engine.references import (
    Case,
    Drawing,
    KeptCases,
    case_of,
    is_large,
)
from pytest_gpuenergy.engine.seeds import (
    SEEDS,
    drawings_deciding,
    drawings_near,
    drawings_of,
    drawn_seed,
)
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    KernelFault,
    cache_dir,
    decode,
    encode,
    is_there,
    keep_for_later,
    watched,
)
from pytest_gpuenergy.workloads import (
    Array,
    ErrorBound,
    Tensor,
    Workload,
    is_floating,
    rounded_to,
    stored_as,
)

_FORMAT = 12
"""The version of cached results, to be increased when verification changes."""

CASES_AT_ONCE = 3
"""The number of cases of a large workload that the GPU computes at the same time."""

_UNPOISONED_RUN = 1
"""The index of the run whose outputs still hold the results of the run before."""


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
    run, see `seeded_arenas`, but not before the second one: they still hold the results of other
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
            launches it four times instead of as many times as a measurement would.
        near_literals: whether inputs are also drawn near the numbers in the kernel's text, for
            which this kernel needs references of its own.

    Raises:
        KernelFault: the kernel is wrong or fails. The message says how and where.
        InputError: the reference is not finite.
    """
    is_cached = measured and device.emulated and workload.digest is not None
    # A random seed is left out of the key, or no earlier success would ever be found.
    key_seeds = [*(SEEDS if seeds is None else seeds), *([] if drawn is None else [drawn])]
    path = _cache_path(device, kernel, workload, key_seeds) if is_cached else None
    if path is not None:
        with contextlib.suppress(OSError, FormError):
            return decode(path.read_bytes(), Correctness)
    check_precision(device, kernel, workload)
    is_drawn_here = seeds is None and drawn is None
    all_seeds = [*key_seeds, drawn_seed(workload)] if is_drawn_here else key_seeds
    errors = []
    for subject in (workload, *workload.twins):
        subject_seeds = all_seeds if subject is workload else all_seeds[:1]
        drawings = drawings_of(subject_seeds, subject, kernel if near_literals else None)
        subject_errors = _errors(
            device, kernel, subject, drawings, timeout_s, kept, measured, near_literals
        )
        errors += subject_errors if subject is workload else []
    bound = workload.error_bound
    result = Correctness(
        max(error.max_relative for error in errors),
        max(error.normwise for error in errors),
        bound.max_relative,
        bound.normwise,
        tuple(all_seeds),
    )
    if path is not None:
        keep_for_later(path, encode(result))
    return result


def shared_drawings(
    device: Device, kernel: AnyKernel, workload: Workload, drawn: int | None = None
) -> list[Drawing]:
    """Return the drawings of a verification whose cases are kept for other kernels.

    There are none if the cache has the result of `verify_on_device`.
    """
    if workload.digest is None:
        return []
    seeds = [*SEEDS, *([] if drawn is None else [drawn])]
    with contextlib.suppress(InputError):  # a cache that cannot be read
        if is_there(_cache_path(device, kernel, workload, seeds)):
            return []
    return _shared(workload, drawn, kernel)


def expected_drawings(
    workload: Workload, drawn: int | None = None
) -> list[tuple[Workload, Drawing]]:
    """Return the drawings on which any kernel of a workload is verified, also of its twins."""
    if workload.digest is None:
        return []
    return [
        *((workload, each) for each in _shared(workload, drawn)),
        *((twin, Drawing(SEEDS[0])) for twin in workload.twins),
    ]


def _shared(
    workload: Workload, drawn: int | None, kernel: AnyKernel | None = None
) -> list[Drawing]:
    seeds = [*SEEDS, drawn_seed(workload) if drawn is None else drawn]
    return [each for each in drawings_of(seeds, workload, kernel) if each.is_shared]


def _errors(
    device: Device,
    kernel: AnyKernel,
    workload: Workload,
    drawings: Sequence[Drawing],
    timeout_s: float,
    kept: KeptCases | None,
    measured: bool,
    near_literals: bool,
) -> list[ErrorBound]:
    make_case = case_of if kept is None else kept.case_of
    job = Job.of(kernel, workload, seed=drawings[0].seed, timeout_s=timeout_s)
    errors = []
    with (
        _cases(device, workload, drawings, kept) as cases,
        seeded_arenas(workload, job.seed, device.arrays) as arenas,
        device.load(job, arenas) as loaded,
    ):

        def runs() -> Iterator[tuple[Drawing, Future[Case]]]:
            yield from zip(drawings, cases, strict=True)
            if not near_literals:
                return
            for further in (
                drawings_near(loaded.thresholds, drawings, workload),
                drawings_deciding(loaded.unread, drawings, workload),
            ):
                for drawing in further:
                    case: Future[Case] = Future()
                    case.set_result(make_case(workload, drawing, device.arrays))
                    yield drawing, case

        check: ArenaCheck | None = None
        for run, (drawing, case) in enumerate(runs()):
            bounds = job.io.bounds
            if drawing.uniform or drawing.sparse:
                bounds = _bounds_of_one_sum(workload, bounds)
            if run:
                inputs = case.result().inputs
            with next(iter(arenas.values())).memory.arrays.used():  # waits once, at its end
                if run:
                    _refill(arenas, inputs, poisoned=run != _UNPOISONED_RUN)
                if check is None:
                    check = ArenaCheck(arenas, _reference_of(case), bounds, drawing.seed)
                else:
                    check.expect(_reference_of(case), bounds, drawing.seed)
            loaded.run(order_seed=run)
            try:
                error = check()
                if bounds is job.io.bounds:  # to which the errors are reported
                    errors.append(error)
            except KernelFault as fault:
                explained = None if run else _reads_what_it_writes(loaded, arenas, case.result())
                raise fault if explained is None else explained from None
        assert check is not None  # there is a drawing
        check_again(loaded, check, once=not measured)
    return errors


def _bounds_of_one_sum(
    workload: Workload, bounds: Mapping[str, ErrorBound]
) -> Mapping[str, ErrorBound]:
    """Return bounds for inputs whose indices may nearly all be the same.

    One output may then be the sum of a whole tensor, whatever length of sums the workload states.
    """
    if all(is_floating(tensor.dtype) for tensor in workload.inputs):
        return bounds
    terms = max((t.size for t in workload.inputs if is_floating(t.dtype)), default=1)
    stated = getattr(workload, "reduction_length", 1)
    factor = math.sqrt(max(1.0, terms / stated))
    return {
        name: replace(
            bound,
            max_relative=bound.rounding + factor * (bound.max_relative - bound.rounding),
            normwise=factor * bound.normwise,
        )
        for name, bound in bounds.items()
    }


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

    first = {name: arena.bits() for name, arena in outputs.items()}
    try:
        on_ones = results({name: _ones(arena.tensor) for name, arena in outputs.items()})
        if all(
            (first[name] == after).all() or (ones == after).all()
            for name, (ones, after) in on_ones.items()
        ):
            return None  # no output depends on its contents
        on_poison = results({})
    except KernelFault:
        return None
    # An element is computed from the old contents if the same contents give the same value, others
    # give another, and it is not merely left as it was.
    for name, (poison, repeated) in on_poison.items():
        ones, other = on_ones[name]
        unwritten = (repeated == poison) & (other == ones)
        mask = (first[name] == repeated) & (other != repeated) & ~unwritten
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
            arena.fill(second_poison(arena.tensor))


def _reference_of(case: Future[Case]) -> Callable[[], Reference]:
    return lambda: case.result().reference


@contextlib.contextmanager
def _cases(
    device: Device,
    workload: Workload,
    drawings: Sequence[Drawing],
    kept: KeptCases | None,
) -> Iterator[list[Future[Case]]]:
    """Yield the future case of each drawing; they are made in order while kernels run."""
    # What a GPU computes waits for inputs that the host draws, so some cases are made at a time.
    at_once = CASES_AT_ONCE if device.arrays is not None and is_large(workload) else 1
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="verify")
    # A workload without a digest has a user's function as its reference, which may not end.
    with watched() if workload.digest is None else contextlib.nullcontext():
        try:
            make_case = case_of if kept is None else kept.case_of
            yield [pool.submit(make_case, workload, drawing, device.arrays) for drawing in drawings]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def seeded_check(
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


def _cache_path(
    device: Device, kernel: AnyKernel, workload: Workload, seeds: Sequence[int]
) -> Path:
    key = [_FORMAT, kernel.digest, workload.digest, list(seeds), sorted(device.describe().items())]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return cache_dir("verified") / f"{digest}.json"


def check_precision(device: Device, kernel: AnyKernel, workload: Workload) -> None:
    """Refuse tensor cores that the workload does not allow at all, or not with their types.

    Sums are in float32 in all workloads that declare types of operands. A library's machine code
    cannot be searched, so the library is trusted to comply.

    Raises:
        KernelFault: the machine code has such instructions, or the kernel does not compile.
    """
    allowed = workload.operand_types
    if workload.allows_tensor_cores and allowed is None:
        return
    instructions = device.tensor_core_instructions(Job.of(kernel, workload))
    if workload.allows_tensor_cores and allowed is not None:
        named = (name.split(".") for name in sorted(instructions) if name.count(".") == 2)
        wrong = [".".join(n) for n in named if n[1] != "F32" or n[2] not in allowed]
        if wrong:
            raise KernelFault(
                "correctness",
                f"The machine code has instructions for tensor cores ({', '.join(wrong)}) with "
                f"other types than {workload.name} declares: sums in F32 of operands in "
                f"{' or '.join(sorted(allowed))}.",
            )
        return
    if instructions:
        raise KernelFault(
            "correctness",
            "The machine code has instructions for tensor cores "
            f"({', '.join(sorted(instructions))}), but {workload.name} is "
            "declared as float32: declare mode=3xtf32 if it is as exact, or "
            "else mode=tf32.",
        )
