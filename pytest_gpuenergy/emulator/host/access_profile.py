"""The accesses of a kernel's blocks, read from its process's answers and cached on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest

from pytest_gpuenergy.emulator.host.flags import build_version
from pytest_gpuenergy.emulator.host.host_protocol import forged_answer
from pytest_gpuenergy.emulator.timing.traffic import Traffic, branched_share, private_words
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.support import cache_dir, keep_for_later

_PROFILE = re.compile(r"profile( \d{1,20}){32}")
_VERSION = 5  # of the way in which answers and text become a `Traffic`
_NAMES = tuple(field.name for field in fields(Traffic))


@dataclass(frozen=True)
class LaunchProfile:
    """The findings of a checked run of a sample of one launch's blocks.

    Attributes:
        entry: the kernel function.
        blocks: the number of blocks in the grid.
        blocks_run: the number of blocks that were checked.
        traffic: the traffic of an average block among the first of these.
    """

    entry: str
    blocks: int
    blocks_run: int
    traffic: Traffic


def read_profile(kernel: Kernel, lines: Sequence[str]) -> tuple[LaunchProfile, ...]:
    """Return the profile of each launch from the ``profile`` lines of a process.

    Raises:
        KernelFault: ``runtime``, when the runtime cannot have written the lines.
    """
    profiles = []
    for line, launch in zip_longest(lines, kernel.launches):
        if line is None or launch is None or not _PROFILE.fullmatch(line):
            raise forged_answer(kernel.launches[0].entry)
        numbers = [int(number) for number in line.split()[1:]]
        if not 1 <= numbers[0] <= numbers[-1] <= launch.blocks:
            raise forged_answer(launch.entry)
        profiles.append(_launch_profile(kernel, launch, numbers))
    return tuple(profiles)


def _launch_profile(kernel: Kernel, launch: Launch, numbers: Sequence[int]) -> LaunchProfile:
    run, *sums = numbers[:8]
    static, distinct, load_intervals, active, contended, *tallies, checked = numbers[8:]
    *moved, barriers = (n / run for n in sums)
    global_read, global_write, shared_read, shared_write, global_update, shared_update = moved
    # The tallies are counts of a sample of the warps: bytes, accesses and parts of six kinds.
    warps = []
    for k, block_bytes in enumerate(moved):
        seen_bytes, accesses, parts = tallies[3 * k : 3 * k + 3]
        share = block_bytes / seen_bytes if seen_bytes else 0.0
        warps.append((accesses * share, parts * share))
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


class TrafficCache:
    """A folder with a JSON file for each kernel with its scalars and seed, for one build version.

    A damaged file is treated as missing.
    """

    def __init__(self) -> None:
        self._folder = cache_dir("emulated", "traffic", f"{build_version()}-{_VERSION}")
        self._latest: tuple[str, tuple[Traffic, ...]] | None = None

    def traffic(
        self,
        kernel: Kernel,
        count: Callable[[], tuple[Traffic, ...]],
        job: Job | None = None,
    ) -> tuple[Traffic, ...]:
        """Return the traffic of each launch, from the cache or else from ``count``.

        Args:
            kernel: the kernel.
            count: a function that counts the accesses, and may raise.
            job: the job; what a kernel accesses may depend on its scalars and its seed.
        """
        name = kernel.digest
        if job is not None and (job.io.scalars or job.seed):
            values = [[scalar.name, scalar.dtype, repr(scalar.value)] for scalar in job.io.scalars]
            content = json.dumps([kernel.digest, values, job.seed])
            name = hashlib.sha256(content.encode()).hexdigest()
        if self._latest is not None and self._latest[0] == name:
            return self._latest[1]
        path = self._folder / f"{name}.json"
        traffic = None
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            entries = json.loads(path.read_bytes())
            traffic = tuple(Traffic(**{name: float(e[name]) for name in _NAMES}) for e in entries)
        if traffic is None or len(traffic) != len(kernel.launches):
            traffic = count()
            keep_for_later(path, json.dumps([asdict(entry) for entry in traffic]))
        self._latest = name, traffic
        return traffic
