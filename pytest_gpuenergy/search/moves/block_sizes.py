"""The move ``change_block_sizes``: other numbers of threads, and other constants of the launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

from msgspec.structs import replace

from pytest_gpuenergy.search.moves.any_block import fits_any_block, fits_any_grid
from pytest_gpuenergy.search.moves.by_block_size import (
    launch_bounds,
    most_threads,
    room_for_threads,
    threads_for_numbers,
)
from pytest_gpuenergy.search.moves.move import Application, Region
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel
from pytest_gpuenergy.search.spec.kernel_spec import (
    Constant,
    KernelSpec,
    Language,
    LaunchPlan,
    State,
)
from pytest_gpuenergy.search.spec.sizes import names_in

_AXES = ("block_x", "block_y", "block_z")
_THREADS = (32, 64, 128, 256, 512, 1024)
_FACTORS = (2, 4)
_MOST_WARPS = 32
_REACH = 16
"""Constants stay within this factor of the baseline's, or one thread would end up with all work."""
_MOST_THREADS = 1024
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class ChangeBlockSizes:
    """Other sizes of a CUDA block or a Triton program, and other values of its constants.

    A size of a CUDA block is changed if an expression of the launch has its name, so that the grid
    follows, or if the text does the same with any number of threads, or is likely to; a number of
    blocks if they share loops and do nothing else; a Triton program gets other numbers of warps.
    A constant that the text uses is changed if the grid depends on it, if a loop of a Triton
    function goes on by it, or if it states a size of the CUDA block, which then changes with it;
    never one that tensors and scalars depend on.
    """

    name = "change_block_sizes"
    languages: frozenset[Language] = frozenset({"cuda", "triton"})
    relieves: frozenset[Region] = frozenset({"gmem", "overlap", "atomics"})

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """All other sizes of one axis or one constant at a time, in ascending order."""
        free = _free_plans(state, spec) if state.language == "cuda" else ()
        bounds = launch_bounds(state.source, spec.entry) if state.language == "cuda" else ""
        least, most = _room(state, spec)
        for what, launch in [*launches(state, spec), *free]:
            # An array may depend on a constant that changes.
            threads = prod(launch.block)
            fits = launch.constants != state.launch.constants or threads <= most
            if fits and least <= threads <= _bound(bounds, launch):
                yield Application(self.name, what, replace(state, launch=launch))


def launches(state: State, spec: KernelSpec) -> Iterator[tuple[str, LaunchPlan]]:
    """Launches that differ in one number, by which the grid or the text's own loops go on."""
    tied, fixed = _tied(spec.launch), _fixed(spec)
    if state.language == "triton":
        plans = _triton_plans(state, spec, fixed)
    else:
        plans = _plans(state, tied, fixed)
    for what, launch in plans:
        near = all(
            _is_near(value, spec.launch.constants.get(constant))
            for constant, value in launch.constants.items()
            if constant not in tied
        )
        if near and prod(launch.block) <= _MOST_THREADS:
            yield what, launch


def _room(state: State, spec: KernelSpec) -> tuple[int, int]:
    """The threads that shared arrays need and have room for, as far as it is known."""
    if state.language != "cuda" or len([size for size in state.launch.block if size > 1]) != 1:
        return 1, _MOST_THREADS
    kernel = CudaKernel.of(state, spec)
    if kernel is None:
        return 1, _MOST_THREADS
    return threads_for_numbers(kernel), room_for_threads(kernel) or _MOST_THREADS


def _bound(text: str, launch: LaunchPlan) -> int:
    """The threads that ``__launch_bounds__`` allow, if that is a number or a constant."""
    value = launch.constants.get(text)
    if value is None and text.isdecimal():
        value = int(text)
    return _MOST_THREADS if value is None else int(value)


def _tied(baseline: LaunchPlan) -> dict[str, int]:
    """The constants that state a size of the block, with the axis."""
    return {
        name: axis
        for axis, threads in enumerate(baseline.block)
        for name, value in baseline.constants.items()
        if value == threads > 1
    }


def _fixed(spec: KernelSpec) -> frozenset[str]:
    """The names that tensors and scalars depend on."""
    sizes = [size for tensor in spec.tensors for size in (*tensor.shape, *(tensor.strides or ()))]
    values = [one.value for one in spec.scalars if isinstance(one.value, str)]
    return frozenset().union(*map(names_in, (*sizes, *values)))


def _used(launch: LaunchPlan) -> frozenset[str]:
    """The names in expressions of a launch."""
    return frozenset().union(*map(names_in, (*launch.grid, launch.shared_bytes)))


def _free_plans(state: State, spec: KernelSpec) -> Iterator[tuple[str, LaunchPlan]]:
    """Those of a kernel that fits any number of threads, and whose launch does not name it."""
    launch = state.launch
    name = _AXES[0]
    if name in _used(launch) or len([size for size in launch.block if size > 1]) != 1:
        return
    kernel = CudaKernel.of(state, spec)
    if kernel is None:
        return
    most = _MOST_THREADS if fits_any_block(kernel) else most_threads(kernel)
    for threads in _THREADS:
        if threads != launch.block[0] and threads <= most:
            yield f"{name}={threads}", replace(launch, block=_with(launch, 0, threads))
    blocks, *others = launch.grid
    if isinstance(blocks, int) and fits_any_grid(kernel):
        for number in _others(blocks):
            yield f"{number} blocks", replace(launch, grid=(number, *others))


def _plans(
    state: State, tied: Mapping[str, int], fixed: frozenset[str]
) -> Iterator[tuple[str, LaunchPlan]]:
    launch = state.launch
    used = _used(launch)
    words = frozenset(re.findall(r"\w+", _COMMENT.sub(" ", state.source)))
    for axis, name in enumerate(_AXES[: len(launch.block)]):
        if name in used:
            for threads in _sizes_along(launch, axis):
                if threads != launch.block[axis]:
                    yield f"{name}={threads}", replace(launch, block=_with(launch, axis, threads))
    for name, value in launch.constants.items():
        if type(value) is not int or value < 1 or name not in words or name in fixed:
            continue
        if name in tied:
            others = [threads for threads in _THREADS if threads != value]
        elif name in used:
            others = _others(value)
        else:
            continue
        for other in others:
            block = _with(launch, tied[name], other) if name in tied else launch.block
            constants = {**launch.constants, name: other}
            yield f"{name}={other}", replace(launch, block=block, constants=constants)


def _sizes_along(launch: LaunchPlan, axis: int) -> list[int]:
    """Other sizes of one axis; where a block has several, also small ones."""
    others = prod(launch.block) // launch.block[axis]
    if others == 1:
        return list(_THREADS)
    near = [size for size in _others(launch.block[axis]) if size * others >= _THREADS[0]]
    return sorted({*_THREADS, *near})


def _triton_plans(
    state: State, spec: KernelSpec, fixed: frozenset[str]
) -> Iterator[tuple[str, LaunchPlan]]:
    """Other numbers of warps, and other values of what the grid or a loop goes on by."""
    launch, kernel = state.launch, TritonKernel.of(state, spec)
    if kernel is None:
        return
    for warps in _others(launch.num_warps):
        if warps <= _MOST_WARPS:
            yield f"num_warps={warps}", replace(launch, num_warps=warps)
    used = (_used(launch) | kernel.text.names_in_ranges) - fixed
    for name, value in launch.constants.items():
        if type(value) is int and value > 0 and name in used:
            for other in _others(value):
                constants = {**launch.constants, name: other}
                yield f"{name}={other}", replace(launch, constants=constants)


def _others(value: int) -> list[int]:
    smaller = [value // factor for factor in _FACTORS[::-1] if value % factor == 0]
    return [*smaller, *(value * factor for factor in _FACTORS)]


def _with(launch: LaunchPlan, axis: int, threads: int) -> tuple[int, ...]:
    return (*launch.block[:axis], threads, *launch.block[axis + 1 :])


def _is_near(value: Constant, first: Constant | None) -> bool:
    """Whether a constant is near the one of the baseline."""
    return first is None or first <= value * _REACH <= first * _REACH**2
