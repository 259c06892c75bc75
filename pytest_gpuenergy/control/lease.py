"""Changes a card's settings temporarily, and restores the prior ones whatever happens.

The prior setting is saved on disk before the first write. It is restored when the lease ends or, if
this process dies first, at the start of the next run. A setting that somebody else has changed in
the meantime is theirs and is left alone.
"""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from pytest_gpuenergy.control.lease_record import Change, LeaseRecord, kept_record, leftover
from pytest_gpuenergy.control.limits import enforced_setpoint, present_limit_mw
from pytest_gpuenergy.control.setpoint import UNKNOWN, Setpoint
from pytest_gpuenergy.control.writers import SettingsWriter, choose_writer
from pytest_gpuenergy.devices.gpu import Gpu
from pytest_gpuenergy.support.errors import SetpointError
from pytest_gpuenergy.support.signals import uninterrupted

SETTLE_S = 0.5
"""How long the enforced limit may take to follow the requested one."""

_POLL_S = 0.05


class Lease:
    """The right to change one card's settings, until `restore`.

    Constructing it restores any settings that an earlier run left changed on this card.

    Args:
        gpu: the card, whose lock the caller holds.
        writer: writes its settings; chosen at the first write if not given.
        kept: continue what ``gpuenergy powercap set`` did, and outlive this process as well.

    Attributes:
        restored: a sentence about the settings restored after an earlier run, or None.

    Raises:
        SetpointError: those settings cannot be restored.
    """

    def __init__(
        self, gpu: Gpu, writer: SettingsWriter | None = None, *, kept: bool = False
    ) -> None:
        self._gpu = gpu
        self._writer = writer
        self._kept = kept
        self._record: LeaseRecord | None = None
        self._asked_mw: int | None = None
        self._held_mw: int | None = None
        self._enforced = UNKNOWN
        self._refused: SetpointError | None = None
        self._theirs_mw: int | None = None
        self.restored = restore_leftover(gpu, writer)
        record = kept_record(gpu.uuid) if kept else None
        if record is not None and present_limit_mw(gpu) in record.power_limit_mw.ours:
            self._record = record  # otherwise the present limit is the prior one

    def check(self, setpoint: Setpoint) -> None:
        """Check, without writing and as far as possible, that `set` would succeed.

        Raises:
            SetpointError: it would fail.
        """
        _refuse_unavailable(setpoint)
        if setpoint.power_limit_w is None:
            return
        limit_mw, present_mw = round(setpoint.power_limit_w * 1e3), present_limit_mw(self._gpu)
        if self._record is not None or limit_mw != present_mw:
            self._writer_for(self._prior_mw(present_mw), limit_mw)

    def set(self, setpoint: Setpoint) -> Setpoint:
        """Request ``setpoint`` from the card and return what the card enforces.

        A setting that the setpoint leaves unspecified is restored if this lease has changed it, and
        not written otherwise.

        Raises:
            SetpointError: the setpoint cannot be applied.
        """
        _refuse_unavailable(setpoint)
        self._asked_mw = self._held_mw = None
        if setpoint.power_limit_w is None:
            self.restore()
            self._enforced = enforced_setpoint(self._gpu)
            with contextlib.suppress(SetpointError):  # a change cannot be noticed then
                self._held_mw = present_limit_mw(self._gpu)
            return self._enforced
        limit_mw = round(setpoint.power_limit_w * 1e3)
        self._write(limit_mw)
        self._enforced = self._settled(limit_mw)
        self._asked_mw = self._held_mw = limit_mw
        return self._enforced

    def judge(self) -> tuple[str, ...]:
        """Validity flags for what has been measured since `set`.

        ``enforced_limit_lower``: the card enforced less than was requested.
        ``power_limit_changed``: the limit has changed. ``power_limit_unknown``: the card no longer
        reports it.
        """
        if self._held_mw is None:
            return ()
        try:
            changed = present_limit_mw(self._gpu) != self._held_mw
        except SetpointError:
            return ("power_limit_unknown",)
        now, then_w = enforced_setpoint(self._gpu), self._enforced.power_limit_w
        flags = {
            "enforced_limit_lower": self._asked_mw is not None
            and then_w is not None
            and then_w * 1e3 < self._asked_mw,
            "power_limit_changed": changed or now != self._enforced,
        }
        return tuple(name for name, raised in flags.items() if raised)

    def restore(self) -> None:
        """Restore the prior settings, unless somebody else has changed them since. Idempotent.

        Raises:
            SetpointError: they cannot be restored; the record remains for the next run.
        """
        self._asked_mw = self._held_mw = None
        if self._record is not None:
            present_mw = _put_back(self._gpu, self._record, self._writer)
            limit_mw = self._record.power_limit_mw
            if present_mw not in limit_mw.ours | {limit_mw.prior}:
                self._theirs_mw = present_mw
            self._record = None

    def _prior_mw(self, present_mw: int) -> int:
        return present_mw if self._record is None else self._record.power_limit_mw.prior

    def _write(self, limit_mw: int) -> None:
        gpu, previous = self._gpu, self._record
        present_mw = present_limit_mw(gpu)
        if previous is None and present_mw == limit_mw:
            if self._kept and (outdated := kept_record(gpu.uuid)) is not None:
                outdated.forget()  # somebody has set this limit since: it is now the prior one
            return
        self._refuse_if_theirs(present_mw)
        prior_mw = self._prior_mw(present_mw)
        writer = self._writer_for(prior_mw, limit_mw)
        change = Change(prior_mw, present_mw, limit_mw)
        record = LeaseRecord.of_this_process(gpu.uuid, change, kept=self._kept)
        with uninterrupted():
            record.save()
            self._record = record
            try:
                writer.write_power_limit(limit_mw)
            except SetpointError:
                self._take_back(record, previous)
                raise
        got_mw = present_limit_mw(gpu)
        # The limit before this write is no longer ours: if it is found later, somebody else set it.
        self._record = replace(record, power_limit_mw=Change(prior_mw, got_mw, got_mw))
        with contextlib.suppress(SetpointError):  # the record already on disk will do
            self._record.save()
        if got_mw != limit_mw:
            raise SetpointError(
                f"{gpu.name} set {got_mw / 1e3:g} W instead of the requested {limit_mw / 1e3:g} W."
            )
        if self._kept and limit_mw == prior_mw:
            record.forget()
            self._record = None

    def _refuse_if_theirs(self, present_mw: int) -> None:
        theirs_mw, record = self._theirs_mw, self._record
        if record is not None and present_mw != record.power_limit_mw.written:
            theirs_mw = present_mw
        if theirs_mw is not None:
            raise SetpointError(
                f"Somebody else has changed the power limit of {self._gpu.name} to "
                f"{theirs_mw / 1e3:g} W: end the other program, or use --powercap current."
            )

    def _writer_for(self, prior_mw: int, limit_mw: int) -> SettingsWriter:
        """A writer that can set this limit and restore the prior one.

        Raises:
            SetpointError: there is none, so nothing must be changed.
        """
        if self._refused is not None:
            raise type(self._refused)(str(self._refused))  # do not look for a writer again
        if self._writer is None:
            try:
                self._writer = choose_writer(self._gpu)
            except SetpointError as error:
                self._refused = error
                raise
        for needed_mw in (prior_mw, limit_mw):
            self._writer.check_power_limit(needed_mw)
        return self._writer

    def _take_back(self, record: LeaseRecord, previous: LeaseRecord | None) -> None:
        """After a failed write, withdraw the record if the limit is known to be unchanged."""
        try:
            if present_limit_mw(self._gpu) != record.power_limit_mw.before:
                return
        except SetpointError:
            return
        self._record = previous
        if previous is None:
            record.forget()
        else:
            previous.save()

    def _settled(self, limit_mw: int) -> Setpoint:
        gpu = self._gpu
        begin_s = None
        while True:
            enforced = enforced_setpoint(gpu)
            limit_w = enforced.power_limit_w
            if limit_w is None or limit_w * 1e3 == limit_mw:
                return enforced
            now_s = gpu.clock.now_s()
            begin_s = now_s if begin_s is None else begin_s
            if now_s - begin_s >= SETTLE_S:
                return enforced
            gpu.clock.sleep_s(_POLL_S)


def restore_leftover(gpu: Gpu, writer: SettingsWriter | None = None) -> str | None:
    """Restore what an earlier run left changed on ``gpu``, whose lock the caller holds.

    Returns:
        A sentence that says what was done, or None if nothing was left changed.

    Raises:
        SetpointError: it cannot be restored.
    """
    record = leftover(gpu.uuid, locked=True)
    return None if record is None else _told(gpu, record, _put_back(gpu, record, writer))


def restore_kept(gpu: Gpu, writer: SettingsWriter | None = None) -> str | None:
    """As `restore_leftover`, for what ``gpuenergy powercap set`` did to ``gpu``."""
    record = kept_record(gpu.uuid)
    return None if record is None else _told(gpu, record, _put_back(gpu, record, writer))


def _refuse_unavailable(setpoint: Setpoint) -> None:
    if setpoint.unavailable:
        raise SetpointError(f"Power cap {setpoint.label} is skipped: {setpoint.unavailable}.")
    if setpoint.sm_clock_mhz is not None:
        raise SetpointError(f"Setpoint {setpoint.label} is skipped: clocks cannot be locked yet.")


def _put_back(gpu: Gpu, record: LeaseRecord, writer: SettingsWriter | None) -> int:
    """Restore the prior limit if the present one is ours; return the limit found, in mW."""
    change = record.power_limit_mw
    with uninterrupted():
        try:
            present_mw = present_limit_mw(gpu)
            if present_mw in change.ours:
                (writer or choose_writer(gpu)).write_power_limit(change.prior)
                if (got_mw := present_limit_mw(gpu)) != change.prior:
                    raise SetpointError(f"{gpu.name} set {got_mw / 1e3:g} W instead.")
        except SetpointError as error:
            raise type(error)(
                f"The power limit of {gpu.name} was not restored to {change.prior / 1e3:g} W "
                f"(gpuenergy powercap restore tries again): {error}"
            ) from None
        record.forget()
    return present_mw


def _told(gpu: Gpu, record: LeaseRecord, found_mw: int) -> str:
    change = record.power_limit_mw
    if found_mw in change.ours | {change.prior}:
        return f"The power limit of {gpu.name} is back at {change.prior / 1e3:g} W."
    return (
        f"The power limit of {gpu.name} has been set to {found_mw / 1e3:g} W since; "
        "it is left alone."
    )
