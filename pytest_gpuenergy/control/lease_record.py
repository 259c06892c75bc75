"""What is on disk about a card's settings that were changed: enough to put the prior ones back."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pytest_gpuenergy.support.errors import InputError, SetpointError
from pytest_gpuenergy.support.files import write_atomically
from pytest_gpuenergy.support.json_input import FormError, decode, read_bytes
from pytest_gpuenergy.support.paths import state_dir
from pytest_gpuenergy.support.pids import start_ticks

_LARGEST_BYTES = 1 << 16
_Reported = Annotated[int, Meta(ge=1, lt=1 << 32)]  # what NVML can report


class Change(Struct, frozen=True):
    """A setting that was changed, in the unit of its field of `LeaseRecord`.

    ``before`` is the value before that of ``written`` was written: a process that dies in between
    leaves either. Once the write is known to be done, both are what the card has.
    """

    prior: _Reported
    before: _Reported
    written: _Reported

    @property
    def ours(self) -> set[int]:
        """Values that we have set."""
        return {self.before, self.written} - {self.prior}


class LeaseRecord(Struct, frozen=True):
    """What was changed of one card's settings, a field each, and by which process.

    Process numbers are used again, so ``started`` (clock ticks since boot) tells whose it was.
    ``kept`` marks settings that are to outlive their process, by ``gpuenergy powercap set``.
    """

    uuid: str
    power_limit_mw: Change
    pid: int
    started: int
    kept: bool = False

    @property
    def path(self) -> Path:
        """Where the record lies."""
        return _path(self.uuid, self.kept)

    @classmethod
    def of_this_process(cls, uuid: str, power_limit_mw: Change, *, kept: bool) -> LeaseRecord:
        """The record of a write that this process is about to make."""
        pid = os.getpid()
        return cls(uuid, power_limit_mw, pid, start_ticks(pid) or 0, kept)

    def save(self) -> None:
        """Put the record on disk, so that it survives a loss of power.

        Raises:
            SetpointError: it cannot be written.
        """
        try:
            write_atomically(self.path, msgspec.json.encode(self), durable=True)
        except OSError as error:
            raise SetpointError(
                f"The prior power limit cannot be noted in {self.path} ({error.strerror}), so no "
                "limit is set: set GPUENERGY_STATE to a folder that can be written."
            ) from None

    def forget(self) -> None:
        """Remove the record: there is nothing to put back any more.

        Raises:
            SetpointError: it cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise SetpointError(
                f"There is nothing to put back, but the record {self.path} cannot be removed "
                f"({error.strerror}): delete it."
            ) from None


class _Form(Struct, frozen=True):
    """What is read of a record; whose it is, its path tells."""

    power_limit_mw: Change
    pid: int
    started: int

    @property
    def change(self) -> Change:
        return self.power_limit_mw


class _EarlyForm(Struct, frozen=True):
    """A record of versions that knew no setting but the power limit."""

    prior_mw: _Reported
    before_mw: _Reported
    set_mw: _Reported
    pid: int
    started: int

    @property
    def change(self) -> Change:
        return Change(self.prior_mw, self.before_mw, self.set_mw)


_MEMBERS = {*LeaseRecord.__struct_fields__, *_EarlyForm.__struct_fields__}


def leftover(uuid: str, *, locked: bool = False) -> LeaseRecord | None:
    """The record that a run which is over left behind for this card.

    Args:
        uuid: the card's.
        locked: whether the caller holds the card's lock, so that no run can be under way. Without
            it, a run is over when its process has ended.

    Raises:
        SetpointError: there is one that cannot be read.
    """
    record = _load(uuid, kept=False)
    if record is None or locked or start_ticks(record.pid) != record.started:
        return record
    return None


def kept_record(uuid: str) -> LeaseRecord | None:
    """The record of what ``gpuenergy powercap set`` has done to this card.

    Raises:
        SetpointError: there is one that cannot be read.
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
    except SetpointError:
        return True  # and whoever restores it is told


def _load(uuid: str, *, kept: bool) -> LeaseRecord | None:
    path = _path(uuid, kept)
    if not path.exists() and not path.is_symlink():
        return None
    try:
        content = read_bytes(path, "record", _LARGEST_BYTES)
        names = decode(content, dict[str, msgspec.Raw])
        unknown = sorted(names.keys() - _MEMBERS)
        if not unknown:
            early = "prior_mw" in names
            stored = decode(content, _EarlyForm) if early else decode(content, _Form)
            return LeaseRecord(uuid, stored.change, stored.pid, stored.started, kept)
    except (InputError, FormError):
        raise SetpointError(
            f"The power-limit record {path} cannot be read: set the card's limit by hand "
            "(nvidia-smi -pl W) and delete that file."
        ) from None
    raise SetpointError(
        f"The record {path} has {unknown[0]!r}, which this version does not know: run gpuenergy "
        "powercap restore of the version that wrote it, or set the card by hand (nvidia-smi) and "
        "delete that file."
    )


def _path(uuid: str, kept: bool) -> Path:
    return state_dir("leases") / f"{uuid}{'.kept' if kept else ''}.json"
