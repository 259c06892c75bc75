"""The power limit of a lease: sets, judges and restores it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pytest_gpuenergy.control.lease_record import Change, Ledger
from pytest_gpuenergy.control.setpoint import enforced_limit_w, present_limit_mw
from pytest_gpuenergy.control.writers import SettingsWriter
from pytest_gpuenergy.devices import Gpu
from pytest_gpuenergy.support import SetpointError, uninterrupted

SETTLE_S = 0.5
"""The longest time in which the enforced limit follows the requested limit."""

_POLL_S = 0.05


class PowerLease:
    """The right to change one card's power limit.

    Args:
        gpu: the card, whose lock the caller holds.
        ledger: the ledger of the lease.
        writer: a function that returns the writer of the card's settings.
        kept: see `Lease`.
    """

    def __init__(
        self, gpu: Gpu, ledger: Ledger, writer: Callable[[], SettingsWriter], *, kept: bool
    ) -> None:
        self._gpu = gpu
        self._ledger = ledger
        self._writer = writer
        self._kept = kept
        self._asked_mw: int | None = None
        self._held_mw: int | None = None
        self._enforced_w: float | None = None
        self._theirs_mw: int | None = None

    def check(self, limit_w: float) -> None:
        """Check, without writing and as far as possible, that `set` would succeed.

        Raises:
            SetpointError: it would fail.
        """
        limit_mw, present_mw = round(limit_w * 1e3), present_limit_mw(self._gpu)
        if self._ledger.power_limit_mw is not None or limit_mw != present_mw:
            self._checked_writer(self._prior_mw(present_mw), limit_mw)

    def set(self, limit_w: float | None) -> None:
        """Request a limit from the card; None restores the prior limit if this lease changed it.

        Raises:
            SetpointError: the limit cannot be set.
        """
        self._asked_mw = self._held_mw = None
        if limit_w is None:
            if not self._kept:
                self.restore()
            self._enforced_w = enforced_limit_w(self._gpu)
            with contextlib.suppress(SetpointError):  # then a change of the limit goes unnoticed
                self._held_mw = present_limit_mw(self._gpu)
            return
        limit_mw = round(limit_w * 1e3)
        self._write(limit_mw)
        self._enforced_w = self._settled(limit_mw)
        self._asked_mw = self._held_mw = limit_mw

    def judge(self) -> tuple[str, ...]:
        """Return validity flags for what has been measured since `set`; see `Lease.judge`."""
        if self._held_mw is None:
            return ()
        try:
            changed = present_limit_mw(self._gpu) != self._held_mw
        except SetpointError:
            return ("power_limit_unknown",)
        now_w, then_w = enforced_limit_w(self._gpu), self._enforced_w
        flags = {
            "enforced_limit_lower": self._asked_mw is not None
            and then_w is not None
            and then_w * 1e3 < self._asked_mw,
            "power_limit_changed": changed or now_w != then_w,
        }
        return tuple(name for name, raised in flags.items() if raised)

    def restore(self) -> None:
        """Restore the prior limit, unless somebody else has changed it since. Idempotent.

        Raises:
            SetpointError: it cannot be restored; the record remains for the next run.
        """
        self._asked_mw = self._held_mw = None
        change = self._ledger.power_limit_mw
        if change is not None:
            with uninterrupted():
                present_mw = restore_limit(self._gpu, change, self._writer)
                self._ledger.restored("power_limit_mw")
            if present_mw not in change.ours | {change.prior}:
                self._theirs_mw = present_mw

    def _prior_mw(self, present_mw: int) -> int:
        change = self._ledger.power_limit_mw
        return present_mw if change is None else change.prior

    def _write(self, limit_mw: int) -> None:
        gpu, previous = self._gpu, self._ledger.power_limit_mw
        present_mw = present_limit_mw(gpu)
        if previous is None and present_mw == limit_mw:
            if self._kept:  # somebody has set this limit since: it is now the prior limit
                self._ledger.note(power_limit_mw=None)
            return
        self._refuse_if_theirs(present_mw)
        prior_mw = self._prior_mw(present_mw)
        writer = self._checked_writer(prior_mw, limit_mw)
        with uninterrupted():
            self._ledger.note(power_limit_mw=Change(prior_mw, present_mw, limit_mw))
            try:
                writer.write_power_limit(limit_mw)
            except SetpointError:
                with contextlib.suppress(SetpointError):  # if the limit is known to be unchanged
                    if present_limit_mw(gpu) == present_mw:
                        self._ledger.note(power_limit_mw=previous)
                raise
        got_mw = present_limit_mw(gpu)
        # The limit before this write is no longer ours: if it returns, somebody else has set it.
        self._ledger.amend(power_limit_mw=Change(prior_mw, got_mw, got_mw))
        if got_mw != limit_mw:
            raise SetpointError(
                f"{gpu.name} set {got_mw / 1e3:g} W instead of the requested {limit_mw / 1e3:g} W."
            )
        if self._kept and limit_mw == prior_mw:
            self._ledger.note(power_limit_mw=None)

    def _refuse_if_theirs(self, present_mw: int) -> None:
        theirs_mw, change = self._theirs_mw, self._ledger.power_limit_mw
        if change is not None and present_mw != change.written:
            theirs_mw = present_mw
        if theirs_mw is not None:
            raise SetpointError(
                f"Somebody else has changed the power limit of {self._gpu.name} to "
                f"{theirs_mw / 1e3:g} W: end the other program, or use --powercap current."
            )

    def _checked_writer(self, prior_mw: int, limit_mw: int) -> SettingsWriter:
        """Return a writer that can set this limit and restore the prior limit.

        Raises:
            SetpointError: there is none, so nothing must be changed.
        """
        writer = self._writer()
        for needed_mw in (prior_mw, limit_mw):
            writer.check_power_limit(needed_mw)
        return writer

    def _settled(self, limit_mw: int) -> float | None:
        gpu = self._gpu
        begin_s = None
        while True:
            limit_w = enforced_limit_w(gpu)
            if limit_w is None or limit_w * 1e3 == limit_mw:
                return limit_w
            now_s = gpu.clock.now_s()
            begin_s = now_s if begin_s is None else begin_s
            if now_s - begin_s >= SETTLE_S:
                return limit_w
            gpu.clock.sleep_s(_POLL_S)


def restore_limit(gpu: Gpu, change: Change, writer: Callable[[], SettingsWriter]) -> int:
    """Restore the prior limit if the present limit is ours; return the limit found, in mW.

    Raises:
        SetpointError: the limit cannot be restored.
    """
    try:
        present_mw = present_limit_mw(gpu)
        if present_mw in change.ours:
            writer().write_power_limit(change.prior)
            if (got_mw := present_limit_mw(gpu)) != change.prior:
                raise SetpointError(f"{gpu.name} set {got_mw / 1e3:g} W instead.")
    except SetpointError as error:
        raise type(error)(
            f"The power limit of {gpu.name} was not restored to {change.prior / 1e3:g} W "
            f"(gpuenergy powercap restore tries again): {error}"
        ) from None
    return present_mw


def limit_restored_message(gpu: Gpu, change: Change, found_mw: int) -> str:
    """Return a sentence that says what `restore_limit` has done."""
    if found_mw in change.ours | {change.prior}:
        return f"The power limit of {gpu.name} is back at {change.prior / 1e3:g} W."
    return (
        f"The power limit of {gpu.name} has been set to {found_mw / 1e3:g} W since; "
        "it is left alone."
    )
