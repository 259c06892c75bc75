"""What is on disk about a power limit that was changed: enough to put the prior one back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from pytest_gpuenergy.support.errors import InputError, PowerCapError
from pytest_gpuenergy.support.files import write_atomically
from pytest_gpuenergy.support.json_input import FormError, decode, read_bytes
from pytest_gpuenergy.support.paths import state_dir
from pytest_gpuenergy.support.pids import start_ticks

_LARGEST_BYTES = 1 << 16
_LimitMw = Annotated[int, Meta(ge=1, lt=1 << 32)]  # what NVML can tell


class _Stored(Struct, frozen=True):
    prior_mw: _LimitMw
    before_mw: _LimitMw
    set_mw: _LimitMw
    pid: int
    started: int


@dataclass(frozen=True)
class LeaseRecord:
    """Limits in mW of one card, and which process set them.

    ``before_mw`` is the limit before the write of ``set_mw``: a process that dies in between leaves
    either. Once the write is known to be done, both are what was set. Process numbers are used
    again, so ``started`` (clock ticks since boot) tells whose it was. ``kept`` marks a limit that
    is to outlive its process, by ``gpuenergy powercap set``.
    """

    uuid: str
    prior_mw: int
    before_mw: int
    set_mw: int
    pid: int
    started: int
    kept: bool = False

    @property
    def path(self) -> Path:
        """Where the record lies."""
        return _path(self.uuid, self.kept)

    @property
    def ours_mw(self) -> set[int]:
        """Limits that we have set."""
        return {self.before_mw, self.set_mw} - {self.prior_mw}

    @classmethod
    def of_this_process(
        cls, uuid: str, prior_mw: int, before_mw: int, set_mw: int, *, kept: bool
    ) -> LeaseRecord:
        """The record of a write that this process is about to make."""
        pid = os.getpid()
        return cls(uuid, prior_mw, before_mw, set_mw, pid, start_ticks(pid) or 0, kept)

    def save(self) -> None:
        """Put the record on disk, so that it survives a loss of power.

        Raises:
            PowerCapError: it cannot be written.
        """
        try:
            write_atomically(self.path, json.dumps(asdict(self)), durable=True)
        except OSError as error:
            raise PowerCapError(
                f"The prior power limit cannot be noted in {self.path} ({error.strerror}), so no "
                "limit is set: set GPUENERGY_STATE to a folder that can be written."
            ) from None

    def forget(self) -> None:
        """Remove the record: there is nothing to put back any more.

        Raises:
            PowerCapError: it cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise PowerCapError(
                f"There is nothing to put back, but the record {self.path} cannot be removed "
                f"({error.strerror}): delete it."
            ) from None


def leftover(uuid: str, *, locked: bool = False) -> LeaseRecord | None:
    """The record that a run which is over left behind for this card.

    Args:
        uuid: the card's.
        locked: whether the caller holds the card's lock, so that no run can be under way. Without
            it, a run is over when its process has ended.

    Raises:
        PowerCapError: there is one that cannot be read.
    """
    record = _load(uuid, kept=False)
    if record is None or locked or start_ticks(record.pid) != record.started:
        return record
    return None


def kept_record(uuid: str) -> LeaseRecord | None:
    """The record of the limit that ``gpuenergy powercap set`` has put on this card.

    Raises:
        PowerCapError: there is one that cannot be read.
    """
    return _load(uuid, kept=True)


def recorded_uuids() -> list[str]:
    """Cards of which there is a record, of a living process too."""
    return sorted({path.name.partition(".")[0] for path in state_dir("leases").glob("*.json")})


def run_uuids() -> list[str]:
    """Cards of which there is a run's record, readable or not; whether it is over, locks tell."""
    return [uuid for uuid in recorded_uuids() if _is_of(uuid, partial(leftover, locked=True))]


def dead_run_uuids() -> list[str]:
    """Cards of which there is a record of a run whose process has ended."""
    return [uuid for uuid in recorded_uuids() if _is_of(uuid, leftover)]


def restorable_uuids() -> list[str]:
    """Cards of which there is a record of no living process."""
    return [uuid for uuid in recorded_uuids() if _is_of(uuid, leftover, kept_record)]


def _is_of(uuid: str, *kinds: Callable[[str], LeaseRecord | None]) -> bool:
    try:
        return any(kind(uuid) is not None for kind in kinds)
    except PowerCapError:
        return True  # and whoever restores it is told


def _load(uuid: str, *, kept: bool) -> LeaseRecord | None:
    path = _path(uuid, kept)
    if not path.exists() and not path.is_symlink():
        return None
    try:
        stored = decode(read_bytes(path, "record", _LARGEST_BYTES), _Stored)
    except (InputError, FormError):
        raise PowerCapError(
            f"The power-limit record {path} cannot be read: set the card's limit by hand "
            "(nvidia-smi -pl W) and delete that file."
        ) from None
    return LeaseRecord(
        uuid, stored.prior_mw, stored.before_mw, stored.set_mw, stored.pid, stored.started, kept
    )


def _path(uuid: str, kept: bool) -> Path:
    return state_dir("leases") / f"{uuid}{'.kept' if kept else ''}.json"
