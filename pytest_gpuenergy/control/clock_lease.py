"""The SM clocks of a lease: locks and unlocks them.

NVML does not report a lock. What a card was locked to before is therefore unknown, the default is
restored, and each lock is written again, because it may have been lost.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuenergy.control.lease_record import Ledger, kept_record
from pytest_gpuenergy.control.sm_clocks import refuse_unsupported
from pytest_gpuenergy.control.writers import SettingsWriter
from pytest_gpuenergy.devices import Gpu
from pytest_gpuenergy.support import SetpointError, SettingRefusedError, uninterrupted


class ClockLease:
    """The right to lock one card's SM clocks.

    Args:
        gpu: the card, whose lock the caller holds.
        ledger: the ledger of the lease.
        writer: a function that returns the writer of the card's settings.
        before_lock: see `Lease`.
        kept: see `Lease`.
    """

    def __init__(
        self,
        gpu: Gpu,
        ledger: Ledger,
        writer: Callable[[], SettingsWriter],
        before_lock: Callable[[], None],
        *,
        kept: bool,
    ) -> None:
        self._gpu = gpu
        self._ledger = ledger
        self._writer = writer
        self._before_lock = before_lock
        self._kept = kept
        self._may_lock = False
        self._refused: SetpointError | None = None

    def check(self, clock_mhz: int) -> None:
        """Check, without writing and as far as possible, that `set` would succeed.

        Raises:
            SetpointError: it would fail.
        """
        refuse_unsupported(self._gpu, clock_mhz)
        self._writer().check_clock_lock(clock_mhz)

    def set(self, clock_mhz: int | None) -> None:
        """Lock the clocks; None unlocks them if this lease has locked them.

        Raises:
            SetpointError: they cannot be locked.
        """
        if clock_mhz is None:
            if not self._kept:
                self.restore()
            return
        self.check(clock_mhz)
        self.refuse_foreign_lock()
        before_mhz = self._ledger.sm_clock_mhz
        with uninterrupted():
            self._ledger.note(sm_clock_mhz=clock_mhz)
            try:
                self._writer().lock_clocks(clock_mhz)
            except SettingRefusedError:
                self._ledger.note(sm_clock_mhz=before_mhz)
                raise

    def restore(self) -> None:
        """Unlock the clocks if this lease has locked them. Idempotent.

        Raises:
            SetpointError: they cannot be unlocked; the record remains for the next run.
        """
        if self._ledger.sm_clock_mhz is not None:
            with uninterrupted():
                restore_clocks(self._gpu, self._writer, kept=self._kept)
                self._ledger.restored("sm_clock_mhz")

    def refuse_foreign_lock(self) -> None:
        """Check, once, that nobody else has locked the clocks.

        Raises:
            SetpointError: somebody else seems to have locked them.
        """
        if self._refused is not None:
            raise type(self._refused)(str(self._refused))  # do not check again
        ours = self._ledger.sm_clock_mhz is not None or _kept_mhz(self._gpu) is not None
        if not (ours or self._may_lock):
            try:
                self._before_lock()
            except SetpointError as error:
                self._refused = error
                raise
        self._may_lock = True


def restore_clocks(gpu: Gpu, writer: Callable[[], SettingsWriter], *, kept: bool) -> None:
    """Unlock the clocks, or lock them again as ``gpuenergy powercap set`` has locked them.

    Args:
        gpu: the card.
        writer: a function that returns the writer of the card's settings.
        kept: whether to undo the lock of ``gpuenergy powercap set`` itself.

    Raises:
        SetpointError: the clocks cannot be restored.
    """
    clock_mhz = None if kept else _kept_mhz(gpu)
    try:
        if clock_mhz is None:
            writer().unlock_clocks()
        else:
            writer().lock_clocks(clock_mhz)
    except SetpointError as error:
        done = "unlocked" if clock_mhz is None else f"locked to {clock_mhz} MHz again"
        raise type(error)(
            f"The SM clocks of {gpu.name} were not {done} (gpuenergy powercap restore tries "
            f"again): {error}"
        ) from None


def clocks_restored_message(gpu: Gpu, *, kept: bool) -> str:
    """Return a sentence that says what `restore_clocks` has done."""
    clock_mhz = None if kept else _kept_mhz(gpu)
    if clock_mhz is None:
        return f"The SM clocks of {gpu.name} are unlocked, which is the default."
    return (
        f"The SM clocks of {gpu.name} are back at {clock_mhz} MHz, to which gpuenergy powercap set "
        "has locked them."
    )


def _kept_mhz(gpu: Gpu) -> int | None:
    record = kept_record(gpu.uuid)
    return None if record is None else record.sm_clock_mhz
