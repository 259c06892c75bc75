"""Changes a card's settings temporarily, and restores the prior settings whatever happens.

The prior settings are saved on disk before the first write. They are restored when the lease ends
or, if this process dies first, at the start of the next run. A power limit that somebody else has
changed in the meantime is left alone. The clocks are restored to their default, because nobody can
read what they are locked to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from msgspec.structs import replace

from pytest_gpuenergy.control.clock_lease import ClockLease, clocks_restored_message, restore_clocks
from pytest_gpuenergy.control.lease_record import (
    LeaseRecord,
    Ledger,
    dead_run_uuids,
    kept_record,
    leftover,
    run_uuids,
)
from pytest_gpuenergy.control.power_lease import PowerLease, limit_restored_message, restore_limit
from pytest_gpuenergy.control.setpoint import Setpoint, enforced_setpoint, present_limit_mw
from pytest_gpuenergy.control.writers import SettingsWriter, choose_writer
from pytest_gpuenergy.devices import Gpu, gpu_lock
from pytest_gpuenergy.opening import nvml_gpu, open_emulated, open_recorded
from pytest_gpuenergy.support import DeviceError, SetpointError, uninterrupted


class Lease:
    """The right to change one card's settings, until `restore`.

    The constructor restores any settings that an earlier run has left changed on this card.

    Args:
        gpu: the card, whose lock the caller holds.
        writer: the writer of its settings; chosen at the first write if not given.
        kept: whether to continue what ``gpuenergy powercap set`` did, so that the settings outlive
            this process.
        before_lock: a function that is called before the first lock of clocks that we have not
            locked before; it raises SetpointError if they must not be locked.

    Attributes:
        restored: a sentence about the settings restored after an earlier run, or None.

    Raises:
        SetpointError: the settings of the earlier run cannot be restored.
    """

    def __init__(
        self,
        gpu: Gpu,
        writer: SettingsWriter | None = None,
        *,
        kept: bool = False,
        before_lock: Callable[[], None] = lambda: None,
    ) -> None:
        self._gpu = gpu
        self._writer = writer
        self._refused: SetpointError | None = None
        self.restored = restore_leftover(gpu, writer)
        record = LeaseRecord.of_this_process(gpu.uuid, kept=kept)
        if kept and (earlier := kept_record(gpu.uuid)) is not None:
            change = earlier.power_limit_mw
            if change is not None and present_limit_mw(gpu) not in change.ours:
                change = None  # somebody has set the limit since: it is now the prior limit
            record = replace(record, power_limit_mw=change, sm_clock_mhz=earlier.sm_clock_mhz)
        ledger = Ledger(record)
        self._power = PowerLease(gpu, ledger, self._chosen_writer, kept=kept)
        self._clocks = ClockLease(gpu, ledger, self._chosen_writer, before_lock, kept=kept)

    def check(self, setpoint: Setpoint) -> None:
        """Check, without writing and as far as possible, that `set` would succeed.

        Raises:
            SetpointError: it would fail.
        """
        _refuse_unavailable(setpoint)
        if setpoint.power_limit_w is not None:
            self._power.check(setpoint.power_limit_w)
        if setpoint.sm_clock_mhz is not None:
            self._clocks.check(setpoint.sm_clock_mhz)

    def set(self, setpoint: Setpoint) -> Setpoint:
        """Request ``setpoint`` from the card and return what the card enforces.

        A setting that the setpoint leaves unspecified is restored if this lease has changed it, and
        not written otherwise. Settings that are kept are not restored.

        Raises:
            SetpointError: the setpoint cannot be applied.
        """
        _refuse_unavailable(setpoint)
        self._power.set(setpoint.power_limit_w)
        self._clocks.set(setpoint.sm_clock_mhz)
        return enforced_setpoint(self._gpu)

    def refuse_foreign_lock(self) -> None:
        """Check that nobody else has locked the clocks; done once, at the latest by the first lock.

        Raises:
            SetpointError: somebody else seems to have locked them.
        """
        self._clocks.refuse_foreign_lock()

    def judge(self) -> tuple[str, ...]:
        """Return validity flags for what has been measured since `set`.

        ``enforced_limit_lower`` means that the card enforced less than was requested,
        ``power_limit_changed`` that the limit has changed, and ``power_limit_unknown`` that the
        card no longer reports it. Whether the clocks stayed locked shows only in the measurement.
        """
        return self._power.judge()

    def restore(self) -> None:
        """Restore the prior settings, unless somebody else has changed them since. Idempotent.

        Raises:
            SetpointError: they cannot be restored; the record remains for the next run.
        """
        _run_all(self._power.restore, self._clocks.restore)

    def _chosen_writer(self) -> SettingsWriter:
        """Return the writer, which is chosen at the first call.

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
        return self._writer


def restore_leftover(gpu: Gpu, writer: SettingsWriter | None = None) -> str | None:
    """Restore what an earlier run left changed on ``gpu``, whose lock the caller holds.

    Returns:
        A sentence that says what was done, or None if nothing was left changed.

    Raises:
        SetpointError: it cannot be restored.
    """
    return _restore_record(gpu, leftover(gpu.uuid, locked=True), writer)


def restore_kept(gpu: Gpu) -> str | None:
    """Restore what ``gpuenergy powercap set`` changed on ``gpu``, like `restore_leftover`."""
    return _restore_record(gpu, kept_record(gpu.uuid), None)


def _refuse_unavailable(setpoint: Setpoint) -> None:
    if setpoint.unavailable:
        raise SetpointError(f"Power cap {setpoint.label} is skipped: {setpoint.unavailable}.")


def _restore_record(
    gpu: Gpu, record: LeaseRecord | None, writer: SettingsWriter | None
) -> str | None:
    """Restore the settings of a record, which remains on disk for those that cannot be restored."""
    if record is None:
        return None
    ledger, messages = Ledger(record), list[str]()

    def choose() -> SettingsWriter:
        return writer or choose_writer(gpu)

    def limit() -> None:
        if (change := record.power_limit_mw) is not None:
            found_mw = restore_limit(gpu, change, choose)
            ledger.restored("power_limit_mw")
            messages.append(limit_restored_message(gpu, change, found_mw))

    def clocks() -> None:
        if record.sm_clock_mhz is not None:
            restore_clocks(gpu, choose, kept=record.kept)
            ledger.restored("sm_clock_mhz")
            messages.append(clocks_restored_message(gpu, kept=record.kept))

    with uninterrupted():
        _run_all(limit, clocks)
    return " ".join(messages)


def _run_all(*steps: Callable[[], None]) -> None:
    """Run all steps, and then raise the first error."""
    problems = list[SetpointError]()
    for step in steps:
        try:
            step()
        except SetpointError as error:
            problems.append(error)
    if problems:
        raise problems[0]


def restore_leftovers(like: Gpu, *, but: str | None = None) -> list[str]:
    """Restore what earlier runs left changed, except on GPUs in use, whose runs restore it.

    Args:
        like: a GPU of the kind to restore, real or emulated.
        but: the UUID of a GPU to leave alone.

    Returns:
        For each GPU, a sentence that says what was done, or why it could not be done.
    """
    messages: list[str] = []
    for uuid in run_uuids():
        with contextlib.ExitStack() as stack:
            try:
                gpu = None if uuid == but else _opened(uuid, like, stack)
                if gpu is None:
                    continue
                stack.enter_context(gpu_lock(gpu, wait_s=0))
            except DeviceError:  # in use, or no longer there
                continue
            try:
                messages += filter(None, [restore_leftover(gpu)])
            except SetpointError as error:
                messages.append(str(error))
    return messages


def restore_dead_runs() -> list[str]:
    """Restore what runs that have ended left changed, on any GPU, real or emulated.

    Returns:
        For each GPU, a sentence that says what was done, or why it could not be done.
    """
    messages: list[str] = []
    for uuid in dead_run_uuids():
        try:
            with open_recorded(uuid) as gpu, gpu_lock(gpu, wait_s=0):
                messages += filter(None, [restore_leftover(gpu)])
        except DeviceError as error:
            messages.append(str(error))
    return messages


def _opened(uuid: str, like: Gpu, stack: contextlib.ExitStack) -> Gpu | None:
    device = open_emulated(uuid)
    if device is not None:
        stack.callback(device.close)
        return device if like.emulated else None
    return None if like.emulated else nvml_gpu(like.nvml, uuid)
