"""The plan that the host program reads from its standard input, and the profile it returns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator.answers import forged
from pytest_gpuenergy.emulator.profiles import GpuProfile
from pytest_gpuenergy.emulator.residency import STACK_BYTES, resident_blocks, resident_threads
from pytest_gpuenergy.emulator.spin_loops import may_decide
from pytest_gpuenergy.emulator.timing.branched_loads import branched_share
from pytest_gpuenergy.emulator.timing.private_arrays import private_words
from pytest_gpuenergy.emulator.timing.traffic import Traffic
from pytest_gpuenergy.kernels import Kernel, Launch, TensorMap
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Scalar, is_floating, stored_as

_USES = {"input": 0, "output": 1, "inout": 2, "workspace": 1}
"""By role: whether launches write a tensor (1), and find the same contents each time (2)."""
_PROFILE = re.compile(r"profile( \d{1,20}){32}")


@dataclass(frozen=True)
class LaunchProfile:
    """What running a sample of its blocks has shown about one launch.

    Attributes:
        entry: the kernel function.
        blocks: number of blocks in the grid.
        blocks_run: number of blocks that were checked.
        traffic: of the average block among the first of these.
    """

    entry: str
    blocks: int
    blocks_run: int
    traffic: Traffic


@dataclass(frozen=True)
class AccessProfile:
    """What a kernel's blocks access; one entry per launch, in order."""

    launches: tuple[LaunchProfile, ...]

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """Of the average block of each launch."""
        return tuple(launch.traffic for launch in self.launches)


@dataclass(frozen=True)
class Sampling:
    """How much a check runs. Accesses are counted, not seconds: every machine runs the same blocks.

    Attributes:
        profiled_blocks: blocks of each launch that make its profile; all of them are run.
        profiled_accesses: after which no further block belongs to the profile.
        accesses: after which no further block is run.
    """

    profiled_blocks: int
    profiled_accesses: int
    accesses: int

    @property
    def words(self) -> str:
        """As the plan has them."""
        return f"{self.profiled_blocks} {self.profiled_accesses} {self.accesses}"


def entries_of(kernel: Kernel) -> tuple[str, ...]:
    """The distinct kernel functions, in the order in which they are first launched."""
    return tuple(dict.fromkeys(launch.entry for launch in kernel.launches))


def used_arenas(kernel: Kernel, arenas: Mapping[str, Arena]) -> dict[str, Arena]:
    """The arenas that the launches name, in a fixed order."""
    named = dict.fromkeys(name for launch in kernel.launches for name in launch.arguments)
    named |= dict.fromkeys(one.tensor for one in kernel.tensor_maps if one.name in named)
    return {name: arenas[name] for name in named if name in arenas}


def address_bytes(kernel: Kernel, arenas: Mapping[str, Arena], profile: GpuProfile) -> int:
    """Address space that the program may need: the race detector takes up to 96 bytes a byte."""
    stacks = STACK_BYTES * resident_threads(kernel, profile)
    tensors = [arena.tensor for arena in used_arenas(kernel, arenas).values()]
    tensors += kernel.workspaces
    return (2 << 30) + stacks + sum(100 * tensor.nbytes + (1 << 27) for tensor in tensors)


def write_plan(
    kernel: Kernel,
    arenas: Mapping[str, Arena],
    files: Mapping[str, int],
    scalars: Mapping[str, Scalar],
    *,
    sampling: Sampling | None,
    profile: GpuProfile,
    on_request: bool = False,
) -> str:
    """The plan's text.

    Args:
        kernel: what to run.
        arenas: of its tensors, by name.
        files: open descriptors of the arenas that the launches use, by name.
        scalars: by name.
        sampling: asks for a check of a sample of the blocks.
        profile: the GPU, for its shared memory, its multiprocessors and what these hold at once.
        on_request: whether the check is made whenever a run is asked for, with what the arenas hold
            then.

    Raises:
        KernelFault: ``constraints`` when an argument is neither a tensor, a workspace, a scalar nor
            a tensor map, or when such a map reaches beyond its tensor.
    """
    kernel.check_arguments(arenas, scalars)
    tensors = [(arenas[name].tensor, file) for name, file in files.items()]
    tensors += [(tensor, -1) for tensor in kernel.workspaces]
    numbers = {name: k for k, name in enumerate(files)}
    numbers |= {t.name: len(files) + k for k, t in enumerate(kernel.workspaces)}
    checks, defers = (1 + on_request) * (sampling is not None), int(may_decide(kernel.source))
    lines = [
        f"{checks} {defers} {sampling.words if sampling else '0 0 0'}",
        f"{profile.shared_per_block} {profile.shared_per_sm * profile.sm_count} "
        f"{resident_threads(kernel, profile)} {profile.sm_count} {profile.threads_per_sm // 32}",
        str(len(tensors)),
    ]
    for tensor, file in tensors:
        use, item = _USES[tensor.role], stored_as(tensor.dtype).itemsize
        lines.append(f"{_word(tensor.name)} {tensor.dtype} {file} {use} {tensor.nbytes} {item}")
    sizes = [tensor.nbytes for tensor, _ in tensors]
    maps = {one.name: _map(one, numbers, sizes) for one in kernel.tensor_maps}
    lines.append(str(len(kernel.launches)))
    return "\n".join([*lines, *_launch_lines(kernel, numbers, scalars, maps, profile)]) + "\n"


def _launch_lines(
    kernel: Kernel,
    numbers: Mapping[str, int],
    scalars: Mapping[str, Scalar],
    maps: Mapping[str, str],
    profile: GpuProfile,
) -> Iterator[str]:
    entries = entries_of(kernel)
    for launch in kernel.launches:
        arguments = [
            maps[name] if name in maps else _argument(name, numbers, scalars)
            for name in launch.arguments
        ]
        sizes = " ".join(map(str, (*launch.grid, *launch.block, launch.shared_bytes)))
        resident = resident_blocks(kernel, launch, profile)
        yield f"{entries.index(launch.entry)} {sizes} {resident} {len(arguments)}"
        yield from arguments


def write_runs(
    *,
    order_seed: int = 0,
    fresh: bool = True,
    most: int = 1,
    budget_s: float = 0.0,
    stride: int = 1,
) -> str:
    """The line that asks a program with a plan to run it.

    Args:
        order_seed: order of threads and blocks: 0 ascending, 1 descending, any other shuffled.
        fresh: whether workspaces are poisoned again, rather than left as they are.
        most: the greatest number of runs.
        budget_s: processor time after which no further run begins.
        stride: every how manyth block is run.
    """
    return f"{order_seed % 2**64} {int(fresh)} {most} {budget_s!r} {stride}\n"


def _word(name: str) -> str:
    return re.sub(r"\s", "_", name)[:200] or "_"


def _map(given: TensorMap, numbers: Mapping[str, int], sizes: Sequence[int]) -> str:
    """The tensor's number, rank and swizzle; extent, stride in bytes and edge of each dimension."""
    number = numbers.get(given.tensor)
    if number is None:
        return ""  # no launch takes it
    if given.nbytes > sizes[number]:
        raise KernelFault(
            "constraints",
            f"The tensor map {given.name!r} covers {given.nbytes} bytes, and {given.tensor!r} has "
            f"{sizes[number]}.",
        )
    strides = (given.itemsize, *given.strides_bytes)
    dimensions = [
        f"{dim} {stride} {edge}"
        for dim, stride, edge in zip(given.dims, strides, given.box, strict=True)
    ]
    return " ".join([f"m{number} {len(given.dims)} {given.swizzle_bytes}", *dimensions])


def _argument(name: str, numbers: Mapping[str, int], scalars: Mapping[str, Scalar]) -> str:
    if name in numbers:
        return f"t{numbers[name]}"
    scalar = scalars[name]
    kind, number = ("f", float) if is_floating(scalar.dtype) else ("i", int)
    size = stored_as(scalar.dtype).itemsize
    return f"{kind}{number(scalar.rounded)!r} {_word(name)} {scalar.dtype} {size}"


def read_profile(kernel: Kernel, lines: Sequence[str]) -> AccessProfile:
    """The profile from the program's ``profile`` lines, one per launch.

    Raises:
        KernelFault: ``runtime``, when they cannot be the program's.
    """
    profiles = []
    for line, launch in zip_longest(lines, kernel.launches):
        if line is None or launch is None or not _PROFILE.fullmatch(line):
            raise forged(kernel.launches[0].entry)
        numbers = [int(number) for number in line.split()[1:]]
        if not 1 <= numbers[0] <= numbers[-1] <= launch.blocks:
            raise forged(launch.entry)
        profiles.append(_launch_profile(kernel, launch, numbers))
    return AccessProfile(tuple(profiles))


def _launch_profile(kernel: Kernel, launch: Launch, numbers: Sequence[int]) -> LaunchProfile:
    run, *sums = numbers[:8]
    static, distinct, load_intervals, active, contended, *tallies, checked = numbers[8:]
    *moved, barriers = (n / run for n in sums)
    global_read, global_write, shared_read, shared_write, global_update, shared_update = moved
    # Counted for a sample of the warps, in each of six kinds: bytes, accesses and their parts.
    warps = [_scaled(b, *tallies[3 * k : 3 * k + 3]) for k, b in enumerate(moved)]
    (loads, read), (stores, written), (fetches, fetched), (puts, put), *atomics = warps
    (updates, updated), (shared_updates, shared_parts) = atomics
    updated_bytes = tallies[3 * len(warps) - 6]
    traffic = Traffic(
        global_read_bytes=global_read,
        global_write_bytes=global_write + global_update,
        shared_read_bytes=shared_read,
        shared_write_bytes=shared_write + shared_update,
        barriers=barriers,
        load_intervals=load_intervals / run,
        static_shared_bytes=static,
        global_loads=loads,
        branched_loads=loads * branched_share(kernel.source, launch.entry),
        global_stores=stores + updates,
        global_sectors=read + written + updated,
        l2_sectors=min(read, distinct / run) + written + updated,
        contended_updates=contended * global_update * run / max(1, updated_bytes),
        shared_accesses=fetches + puts + shared_updates,
        shared_wavefronts=fetched + put + shared_parts,
        private_words=private_words(kernel.source, launch.entry),
        active_warps=active,
    )
    return LaunchProfile(launch.entry, launch.blocks, checked, traffic)


def _scaled(block_bytes: float, seen_bytes: int, accesses: int, parts: int) -> tuple[float, float]:
    share = block_bytes / seen_bytes if seen_bytes else 0.0
    return accesses * share, parts * share
