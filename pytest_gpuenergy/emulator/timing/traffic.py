"""What a kernel accesses, as counted by its run on the host, and a cache of it on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pytest_gpuenergy.emulator.flags import build_version
from pytest_gpuenergy.kernels import Job, Kernel
from pytest_gpuenergy.support import cache_dir, keep_for_later


@dataclass(frozen=True)
class Traffic:
    """What an average block of one launch accesses.

    Attributes:
        global_read_bytes: bytes read from tensors; a repeated read counts again unless the host's
            compiler keeps the value in a register.
        global_write_bytes: bytes written to tensors; an atomic update counts as a store.
        shared_read_bytes: bytes read from shared memory, likewise.
        shared_write_bytes: bytes written to shared memory, likewise.
        barriers: block-wide barriers passed.
        load_intervals: intervals between barriers in which tensors are loaded.
        static_shared_bytes: static shared memory.
        global_loads: warp-wide loads of tensors. A word that a thread loaded shortly before, with
            no barrier in between, is assumed to be in a register and counts once.
        branched_loads: those of them in a branch of their own, according to the text.
        global_stores: warp-wide stores to tensors.
        global_sectors: sectors of 32 bytes that those loads and stores touch, summed over them.
        l2_sectors: the same without what the block reads again, which its L1 holds.
        contended_updates: atomic updates of sectors in the kilobyte of global memory that takes
            most of them, in the whole launch. Lanes that update the same word count singly.
        shared_accesses: warp-wide accesses to shared memory, with loads counted as above. Accesses
            to neighbouring words that a compiler merges into up to 16 bytes count once.
        shared_wavefronts: parts that they take, each of at most 128 bytes without bank conflicts,
            and without two atomic updates of the same word.
        private_words: 4-byte words in a thread's own arrays, according to the text.
        active_warps: warps that would share all accesses if each made as many as the busiest one;
            0 if that is not known.
    """

    global_read_bytes: float = 0.0
    global_write_bytes: float = 0.0
    shared_read_bytes: float = 0.0
    shared_write_bytes: float = 0.0
    barriers: float = 0.0
    load_intervals: float = 0.0
    static_shared_bytes: float = 0.0
    global_loads: float = 0.0
    branched_loads: float = 0.0
    global_stores: float = 0.0
    global_sectors: float = 0.0
    l2_sectors: float = 0.0
    contended_updates: float = 0.0
    shared_accesses: float = 0.0
    shared_wavefronts: float = 0.0
    private_words: float = 0.0
    active_warps: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Bytes of tensors and of shared memory that are read and written."""
        return (
            self.global_read_bytes
            + self.global_write_bytes
            + self.shared_read_bytes
            + self.shared_write_bytes
        )


_VERSION = 5  # of how a program's answer and the text are turned into `Traffic`
_NAMES = tuple(field.name for field in fields(Traffic))


class TrafficCache:
    """A folder with one JSON file per kernel, its scalars and seed, for one build version.

    A damaged file is treated as missing.
    """

    def __init__(self) -> None:
        self._folder = cache_dir("emulated", "traffic", f"{build_version()}-{_VERSION}")

    def traffic(
        self,
        kernel: Kernel,
        count: Callable[[], tuple[Traffic, ...]],
        job: Job | None = None,
    ) -> tuple[Traffic, ...]:
        """One entry per launch: from the cache, else from ``count``, which may raise.

        What a kernel accesses may depend on the scalars and the seed of its job.
        """
        path = self._folder / f"{_key(kernel, job)}.json"
        known = _read(path)
        if known is None or len(known) != len(kernel.launches):
            known = count()
            keep_for_later(path, json.dumps([asdict(entry) for entry in known]))
        return known


def _key(kernel: Kernel, job: Job | None) -> str:
    if job is None or not (job.io.scalars or job.seed):
        return kernel.digest
    values = [[one.name, one.dtype, repr(one.value)] for one in job.io.scalars]
    content = json.dumps([kernel.digest, values, job.seed])
    return hashlib.sha256(content.encode()).hexdigest()


def _read(path: Path) -> tuple[Traffic, ...] | None:
    try:
        entries = json.loads(path.read_bytes())
        return tuple(Traffic(**{name: float(e[name]) for name in _NAMES}) for e in entries)
    except (OSError, ValueError, TypeError, LookupError):
        return None
