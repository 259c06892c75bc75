"""The seeds of a verification: fixed ones, and one that nobody could know in advance."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.engine.references import FORMAT, Drawing, forget_reference
from pytest_gpuenergy.support.files import keep_for_later
from pytest_gpuenergy.support.json_input import FormError, decode
from pytest_gpuenergy.support.json_output import encode
from pytest_gpuenergy.support.paths import cache_dir
from pytest_gpuenergy.workloads.workload import Workload

SEEDS = (0, 1)
"""Of ordinary inputs, and of negative ones with edges."""
LARGEST_SEED = (1 << 32) - 1


class _Drawn(Struct, frozen=True):
    """A file in the cache folder ``seeds``."""

    day: str
    seed: int


def drawings_of(seeds: Sequence[int]) -> list[Drawing]:
    """Ordinary inputs for the first seed; inputs with edges, of both signs in turn, for others."""
    return [
        Drawing(seed, 0 if turn == 0 else -1 if turn % 2 else 1) for turn, seed in enumerate(seeds)
    ]


def drawn_seed(workload: Workload) -> int:
    """A random seed, in addition to `SEEDS`, so that no kernel can be made for all of them.

    All kernels of a workload share it for a day (UTC) on this machine, and with it their reference;
    a workload that has no digest gets another one each time.
    """
    if workload.digest is None:
        return _draw()
    today = datetime.now(UTC).date().isoformat()
    name = hashlib.sha256(f"{FORMAT} {workload.digest}".encode()).hexdigest()
    path = cache_dir("seeds") / f"{name}.json"
    known = _read(path)
    if known is not None and known.day == today:
        return known.seed
    if known is not None:
        forget_reference(workload, drawings_of((*SEEDS, known.seed))[-1])
    keep_for_later(path, encode(_Drawn(today, _draw())))
    known = _read(path)  # another process may have been faster
    return _draw() if known is None else known.seed


def _draw() -> int:
    return len(SEEDS) + secrets.randbelow(LARGEST_SEED - len(SEEDS))


def _read(path: Path) -> _Drawn | None:
    try:
        known = decode(path.read_bytes(), _Drawn)
    except (OSError, FormError):
        return None
    return known if len(SEEDS) <= known.seed <= LARGEST_SEED else None
