"""What one lease has changed on a card, kept on disk while it lasts."""

from __future__ import annotations

import contextlib
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.control.lease_record import Change, LeaseRecord
from pytest_gpuenergy.support import SetpointError


class Ledger:
    """The record of one lease: on disk before a write, removed when nothing is left to restore.

    Args:
        record: what has been changed so far.
    """

    def __init__(self, record: LeaseRecord) -> None:
        self._record = record

    @property
    def record(self) -> LeaseRecord:
        """What has been changed so far."""
        return self._record

    @property
    def power_limit_mw(self) -> Change | None:
        """The change of the power limit, if there is one."""
        return self._record.power_limit_mw

    @property
    def sm_clock_mhz(self) -> int | None:
        """The clock to which the SMs are locked, if they are."""
        return self._record.sm_clock_mhz

    def note(self, **changes: Any) -> None:
        """Change fields of the record, on disk first.

        Raises:
            SetpointError: it cannot be written, so no setting must be; or not removed.
        """
        record = replace(self._record, **changes)
        if record.empty:
            self._record = record
            record.forget()
        else:
            record.save()
            self._record = record

    def restored(self, name: str) -> None:
        """Note that the setting of this field is restored.

        Raises:
            SetpointError: nothing is left to restore, but the record cannot be removed.
        """
        if replace(self._record, **{name: None}).empty:
            self.note(**{name: None})
        else:
            self.amend(**{name: None})

    def amend(self, **changes: Any) -> None:
        """As `note`, where the record that is already on disk will do if it cannot be written."""
        with contextlib.suppress(SetpointError):
            self.note(**changes)
        self._record = replace(self._record, **changes)
