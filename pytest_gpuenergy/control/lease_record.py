"""Records on disk of changes to a card's settings, from which the prior settings are restored."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from pytest_gpuenergy.support import (
    FormError,
    InputError,
    SetpointError,
    decode,
    is_link,
    is_there,
    read_bytes,
    shown,
    start_ticks,
    state_dir,
    write_atomically,
)

_MAX_BYTES = 1 << 16
_Reported = Annotated[int, Meta(ge=1, lt=1 << 32)]
"""The values that NVML can report."""
_UNREADABLE = (
    "The record {} of a card's settings cannot be read: set the card's limit by hand (nvidia-smi "
    "-pl W), unlock its clocks (nvidia-smi -rgc) and delete that file."
)


class Change(Struct, frozen=True):
    """A change of one setting, in the unit of its field in `LeaseRecord`.

    Attributes:
        prior: the value to restore.
        before: the value just before ``written`` was written. A process that dies in between leaves
            either value; once the write is known to have succeeded, both are the card's value.
        written: the value that was written.
    """

    prior: _Reported
    before: _Reported
    written: _Reported

    @property
    def ours(self) -> set[int]:
        """The values that we may have set."""
        return {self.before, self.written} - {self.prior}


class LeaseRecord(Struct, frozen=True, omit_defaults=True):
    """The settings of a card that a process has changed.

    Attributes:
        uuid: the UUID of the card.
        pid: the ID of the process.
        started: when the process started, in clock ticks since boot: process IDs are reused.
        power_limit_mw: the change of the power limit, or None.
        sm_clock_mhz: the clock to which the SMs are or may be locked, or None. It has no prior
            value, because NVML reports no lock: the default, unlocked clocks, is restored.
        kept: whether ``gpuenergy powercap set`` made the settings, which outlive their process.
    """

    uuid: str
    pid: int
    started: int
    power_limit_mw: Change | None = None
    sm_clock_mhz: _Reported | None = None
    kept: bool = False

    @property
    def empty(self) -> bool:
        """Whether no setting was changed."""
        return self.power_limit_mw is None and self.sm_clock_mhz is None

    @property
    def path(self) -> Path:
        """The record's file."""
        return _path(self.uuid, self.kept)

    @classmethod
    def of_this_process(cls, uuid: str, *, kept: bool) -> LeaseRecord:
        """Return the record of a process that has changed nothing yet."""
        pid = os.getpid()
        return cls(uuid, pid, start_ticks(pid) or 0, kept=kept)

    def save(self) -> None:
        """Write the record to disk durably: it survives a power failure.

        Raises:
            SetpointError: it cannot be written.
        """
        try:
            write_atomically(self.path, msgspec.json.encode(self), durable=True)
        except OSError as error:
            raise SetpointError(
                f"The prior settings cannot be saved in {self.path} ({error.strerror}), so no "
                "limit is set and no clock locked: set GPUENERGY_STATE to a writable folder."
            ) from None

    def forget(self) -> None:
        """Remove the record: there is nothing left to restore.

        Raises:
            SetpointError: it cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise SetpointError(
                f"There is nothing to restore, but the record {self.path} cannot be removed "
                f"({error.strerror}): delete it."
            ) from None


class _LeaseForm(Struct, frozen=True):
    """The fields that are read from a record's file, whose path tells the card and the kind."""

    pid: int
    started: int
    power_limit_mw: Change | None = None
    sm_clock_mhz: _Reported | None = None


class _EarlyForm(Struct, frozen=True):
    """A record by an early version, which changed the power limit only."""

    prior_mw: _Reported
    before_mw: _Reported
    set_mw: _Reported
    pid: int
    started: int

    sm_clock_mhz: None = None

    @property
    def power_limit_mw(self) -> Change:
        return Change(self.prior_mw, self.before_mw, self.set_mw)


_MEMBERS = {*LeaseRecord.__struct_fields__, *_EarlyForm.__struct_fields__}


def leftover(uuid: str, *, locked: bool = False) -> LeaseRecord | None:
    """Return the record that an earlier run left for this card.

    Args:
        uuid: the UUID of the card.
        locked: whether the caller holds the card's lock, so that no run can be in progress.
            Otherwise a run counts as over once its process has ended.

    Raises:
        SetpointError: there is a record that cannot be read.
    """
    record = _load(uuid, kept=False)
    if record is None or locked or start_ticks(record.pid) != record.started:
        return record
    return None


def kept_record(uuid: str) -> LeaseRecord | None:
    """Return the record of what ``gpuenergy powercap set`` has done to this card.

    Raises:
        SetpointError: there is a record that cannot be read.
    """
    return _load(uuid, kept=True)


def locked_mhz(uuid: str) -> int | None:
    """Return the clock to which a run or ``gpuenergy powercap set`` has locked this card, if any.

    NVML does not report it. A record that cannot be read is ignored.
    """
    for kept in (False, True):
        with contextlib.suppress(SetpointError):
            record = _load(uuid, kept=kept)
            if record is not None and record.sm_clock_mhz is not None:
                return record.sm_clock_mhz
    return None


def recorded_uuids() -> list[str]:
    """Return the UUIDs of cards that have a record, including those of living processes."""
    return sorted({path.name.partition(".")[0] for path in state_dir("leases").glob("*.json")})


def run_uuids() -> list[str]:
    """Return the UUIDs of cards with a record of a run, readable or not, which may be running."""
    return [uuid for uuid in recorded_uuids() if _is_of(uuid, partial(leftover, locked=True))]


def dead_run_uuids() -> list[str]:
    """Return the UUIDs of cards that have a record of a run whose process has ended."""
    return [uuid for uuid in recorded_uuids() if _is_of(uuid, leftover)]


def restorable_uuids() -> list[str]:
    """Return the UUIDs of cards that have a record which belongs to no living process."""
    return [uuid for uuid in recorded_uuids() if _is_of(uuid, leftover, kept_record)]


def _is_of(uuid: str, *kinds: Callable[[str], LeaseRecord | None]) -> bool:
    try:
        return any(kind(uuid) is not None for kind in kinds)
    except SetpointError:
        return True  # whoever restores it gets this error


def _load(uuid: str, *, kept: bool) -> LeaseRecord | None:
    path = _path(uuid, kept)
    if not is_there(path) and not is_link(path):
        return None
    try:
        content = read_bytes(path, "record", _MAX_BYTES)
        names = decode(content, dict[str, msgspec.Raw])
        unknown = sorted(names.keys() - _MEMBERS)
        if not unknown:
            early = "prior_mw" in names
            stored = decode(content, _EarlyForm) if early else decode(content, _LeaseForm)
            record = LeaseRecord(
                uuid, stored.pid, stored.started, stored.power_limit_mw, stored.sm_clock_mhz, kept
            )
            if record.empty:
                raise SetpointError(_UNREADABLE.format(path))
            return record
    except (InputError, FormError):
        raise SetpointError(_UNREADABLE.format(path)) from None
    raise SetpointError(
        f"The record {path} has {shown(unknown[0])}, which this version does not know: run "
        "gpuenergy powercap restore with the version that wrote it, or set the card by hand "
        "(nvidia-smi) and delete that file."
    )


def _path(uuid: str, kept: bool) -> Path:
    return state_dir("leases") / f"{uuid}{'.kept' if kept else ''}.json"


class Ledger:
    """Keeps the record of one lease on disk: saved before a write, removed when all is restored.

    Args:
        record: the changes so far.
    """

    def __init__(self, record: LeaseRecord) -> None:
        self._record = record

    @property
    def power_limit_mw(self) -> Change | None:
        """The change of the power limit, or None."""
        return self._record.power_limit_mw

    @property
    def sm_clock_mhz(self) -> int | None:
        """The clock to which the SMs are locked, or None."""
        return self._record.sm_clock_mhz

    def note(self, **changes: Any) -> None:
        """Change fields of the record, on disk first.

        Raises:
            SetpointError: the record cannot be written, so no setting must be written either; or it
                cannot be removed.
        """
        record = replace(self._record, **changes)
        if record.empty:
            self._record = record
            record.forget()
        else:
            record.save()
            self._record = record

    def restored(self, name: str) -> None:
        """Record that the setting of a field has been restored.

        Raises:
            SetpointError: nothing is left to restore, but the record cannot be removed.
        """
        if replace(self._record, **{name: None}).empty:
            self.note(**{name: None})
        else:
            self.amend(**{name: None})

    def amend(self, **changes: Any) -> None:
        """Change fields of the record; keep the record on disk if the new one cannot be written."""
        with contextlib.suppress(SetpointError):
            self.note(**changes)
        self._record = replace(self._record, **changes)
