"""Setting a power limit for a while, and putting the prior one back whatever happens.

Before the first write the prior limit is saved on disk. It is put back when the lease ends, and
at the next start when this process did not live to do so. A limit that somebody else has set in
the meantime is theirs and is left alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.energy.powercap import PowerCap
from pytest_gpuenergy.errors import PowerCapError
from pytest_gpuenergy.paths import state_dir


@dataclass(frozen=True)
class LeaseRecord:
    """What must be known to restore a card: limits in mW, and which process set them.

    ``before_mw`` is the limit before the write of ``set_mw``: a process that dies in between leaves
    either. Process numbers are used again, so ``started`` (clock ticks since boot) tells whose it
    was.
    """

    uuid: str
    prior_mw: int
    before_mw: int
    set_mw: int
    pid: int
    started: int

    @property
    def path(self) -> Path:
        """Where the record of this card lies."""
        return _path(self.uuid)


class PowerCapLease:
    """The right to change one card's power limit, until `restore`.

    Constructing it restores what a dead process left behind on this card.

    Raises:
        PowerCapError: what was left behind cannot be restored.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._record: LeaseRecord | None = None
        restore_leftover(device)

    def set(self, cap: PowerCap) -> float | None:
        """Ask the card for ``cap`` and return the limit it enforces, in W.

        ``current`` puts back the prior limit if this lease changed it, and otherwise writes
        nothing. None when the card does not tell.

        Raises:
            PowerCapError: the card cannot be set to this limit.
        """
        if cap.unavailable:
            raise PowerCapError(f"Power cap {cap.label} is skipped: {cap.unavailable}.")
        if cap.power_limit_w is None:
            self.restore()
        else:
            self._write(round(cap.power_limit_w * 1e3))
        return enforced_limit_w(self._device)

    def restore(self) -> None:
        """Put the prior limit back, unless somebody else has set another one since. Idempotent.

        Raises:
            PowerCapError: the card cannot be set back; the record stays for the next start.
        """
        if self._record is not None:
            _restore(self._device, self._record)
            self._record = None

    def _write(self, limit_mw: int) -> None:
        device, nvml = self._device, self._device.nvml
        present_mw = _present_mw(device)
        if self._record is None and present_mw == limit_mw:
            return
        if self._record is not None and present_mw != self._record.set_mw:
            raise PowerCapError(
                f"Somebody else has changed the power limit of {device.name} to "
                f"{present_mw / 1e3:g} W: end the other program, or use --powercap current."
            )
        prior_mw = self._record.prior_mw if self._record else present_mw
        pid = os.getpid()
        record = LeaseRecord(device.uuid, prior_mw, present_mw, limit_mw, pid, _started(pid) or 0)
        previous = self._record
        _save(record)
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(device.handle, limit_mw)
        except (nvml.NVMLError, PowerCapError) as error:
            if previous is None:
                record.path.unlink(missing_ok=True)
            else:
                _save(previous)
            raise _explained(device, limit_mw, error) from None
        self._record = record
        if (got_mw := _present_mw(device)) != limit_mw:
            self._record = replace(record, set_mw=got_mw)  # what `restore` will find
            _save(self._record)
            raise PowerCapError(
                f"{device.name} took {got_mw / 1e3:g} W when asked for {limit_mw / 1e3:g} W."
            )


def restore_leftover(device: Device) -> str | None:
    """Undo what a process that has died left behind on ``device``.

    Returns:
        A sentence telling what was done, or None when nothing was left behind.

    Raises:
        PowerCapError: it cannot be undone.
    """
    record = leftover(device.uuid)
    if record is None:
        return None
    present_mw = _present_mw(device)
    _restore(device, record)
    if present_mw in (record.before_mw, record.set_mw):
        return f"The power limit of {device.name} is {record.prior_mw / 1e3:g} W again."
    return (
        f"The power limit of {device.name} has been set to {present_mw / 1e3:g} W since; "
        "it is left alone."
    )


def leftover(uuid: str) -> LeaseRecord | None:
    """The record that a process which has died left behind for this card."""
    try:
        stored: Any = json.loads(_path(uuid).read_text())
        names = ("prior_mw", "before_mw", "set_mw", "pid", "started")
        record = LeaseRecord(uuid, *(int(stored[name]) for name in names))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise PowerCapError(
            f"The power-limit record {_path(uuid)} cannot be read: set the card's limit by hand "
            "(nvidia-smi -pl W) and delete that file."
        ) from None
    return None if _started(record.pid) == record.started else record


def enforced_limit_w(device: Device) -> float | None:
    """The limit the card enforces now, in W; it may be lower than the one asked for."""
    try:
        return float(device.nvml.nvmlDeviceGetEnforcedPowerLimit(device.handle)) / 1e3
    except device.nvml.NVMLError:
        return None


def _restore(device: Device, record: LeaseRecord) -> None:
    nvml = device.nvml
    ours = {record.before_mw, record.set_mw} - {record.prior_mw}
    if _present_mw(device) in ours:
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(device.handle, record.prior_mw)
        except (nvml.NVMLError, PowerCapError) as error:
            raise _explained(device, record.prior_mw, error) from None
    record.path.unlink(missing_ok=True)


def _present_mw(device: Device) -> int:
    try:
        return int(device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle))
    except device.nvml.NVMLError as error:
        raise PowerCapError(
            f"{device.name} does not tell its power limit ({error}): use --powercap current."
        ) from None


def _explained(device: Device, limit_mw: int, error: Exception) -> PowerCapError:
    if isinstance(error, PowerCapError):
        return error
    nvml = device.nvml
    if isinstance(error, nvml.NVMLError_NoPermission):
        advice = "run as root (in a container: with the capability SYS_ADMIN)"
    elif isinstance(error, nvml.NVMLError_InvalidArgument):
        advice = "choose a limit within the card's constraints"
    elif isinstance(error, nvml.NVMLError_NotSupported):
        advice = "this card's limit cannot be changed; use --powercap current"
    else:
        advice = "check the card with nvidia-smi"
    return PowerCapError(
        f"The power limit of {device.name} cannot be set to {limit_mw / 1e3:g} W ({error}): "
        f"{advice}."
    )


def _path(uuid: str) -> Path:
    return state_dir("leases") / f"{uuid}.json"


def _save(record: LeaseRecord) -> None:
    draft = record.path.with_suffix(".tmp")
    try:
        with draft.open("w") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(record.path)
    except OSError as error:
        raise PowerCapError(
            f"The prior power limit cannot be noted in {record.path} ({error.strerror}), so no "
            "limit is set: set GPUENERGY_STATE to a folder that can be written."
        ) from None


def _started(pid: int) -> int | None:
    """When process ``pid`` began, in clock ticks since boot; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
