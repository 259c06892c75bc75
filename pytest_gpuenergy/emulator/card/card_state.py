"""The file that holds the state of an emulated card: processes share it, and it outlives them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.emulator.card.faults import ANYTHING, ActiveFault, Fault, Owner
from pytest_gpuenergy.emulator.card.governor import noise
from pytest_gpuenergy.emulator.card.physics import CALL_NOISE, EmulatedCard
from pytest_gpuenergy.emulator.card.profiles import GpuProfile
from pytest_gpuenergy.support import DeviceError, lock, open_file, state_dir, unlock

_LAG_NS = 2_000_000_000
_injections = itertools.count()


class EmulatedStateWarning(UserWarning):
    """The state file of an emulated GPU was damaged and has been replaced."""


class CardState:
    """An `EmulatedCard`, kept in ``<UUID>.json`` in ``<state folder>/emulated``.

    Every access holds a lock between processes. A change replaces the whole file, so that a process
    killed at any moment leaves either the old or the new state. How a card evolves with time is
    deterministic: only the time is shared, as eight bytes in ``<UUID>.clock``, and each process
    advances its own copy of the card. The file follows at least every two virtual seconds.

    Attributes:
        profile: the model of GPU.
        index: the index of the card among those of this profile.
        uuid: the UUID that NVML reports.
        path: the path of the file; a private card has it in a folder of its own.
        mutex: the lock that a thread holds while it reads a card that others may advance.

    Raises:
        DeviceError: a file cannot be read or written.
    """

    def __init__(self, profile: GpuProfile, index: int = 0, folder: Path | None = None) -> None:
        self.profile = profile
        self.index = index
        self.uuid = profile.uuid(index)
        self.path = (folder or state_dir("emulated")) / f"{self.uuid}.json"
        self.mutex = threading.RLock()
        self._seed = int.from_bytes(hashlib.sha256(self.uuid.encode()).digest()[:8], "big")
        self._card: EmulatedCard | None = None
        self._saved_ns = 0
        self._known: tuple[int, ...] = ()
        self._held: int | None = None  # kept open so that the known file's inode is not reused
        self._clock: int | None = None
        self._pid = os.getpid()

    def spend(self, duration_ns: int, spread: float = 0.0) -> EmulatedCard:
        """Let virtual time pass and return the card as it is then, for reading only.

        Args:
            duration_ns: the mean duration.
            spread: the relative standard deviation of the duration.
        """
        with self._lock_file():
            card = self._fresh()
            if spread:
                duration_ns += int(
                    duration_ns * spread * noise(self._seed, CALL_NOISE, card.now_ns)
                )
            card.advance(card.now_ns + duration_ns)
            if card.now_ns - self._saved_ns >= _LAG_NS:
                self._save(card)
            self._write_clock(card.now_ns)
            return card

    def now_ns(self) -> int:
        """Return the virtual time in ns."""
        with self.mutex:
            if self._card is not None and self._clock is not None and self._pid == os.getpid():
                # Half of all accesses: eight bytes are written as one and need no lock.
                now_ns = self._read_clock()
                if 0 <= now_ns - self._card.now_ns <= _LAG_NS:
                    return now_ns
            return self.spend(0).now_ns

    @contextlib.contextmanager
    def change(self) -> Iterator[EmulatedCard]:
        """Lock the card to change it; save the changes on leaving, or discard them on an error."""
        with self._lock_file():
            card = self._fresh()
            yield card
            self._save(card)
            self._write_clock(card.now_ns)

    def inject(self, fault: Fault) -> str:
        """Put a fault on the card until it is withdrawn or this process ends.

        Returns:
            The identity of the fault, for `withdraw`.
        """
        with self.change() as card:
            owner = Owner.me()
            identity = f"{owner.pid}.{owner.started}.{next(_injections)}"
            begins_ns = card.now_ns + round(fault.after_s * 1e9)
            ends_ns = None if fault.lasts_s is None else begins_ns + round(fault.lasts_s * 1e9)
            card.faults.append(
                ActiveFault(identity, owner, fault, begins_ns, ends_ns, fault.after_calls)
            )
            card.settle()
        return identity

    def withdraw(self, *identities: str) -> None:
        """Remove injected faults by identity; ignore unknown identities."""
        with self.change() as card:
            card.withdraw(*identities)

    @property
    def has_faults(self) -> bool:
        """Whether any fault is injected into the card, even one that is not in force yet."""
        with self._lock_file():
            return bool(self._fresh().faults)

    def error_to_raise(self, function: str, *, always: bool) -> str | None:
        """Count a call of ``function``; return the name of the error that it must raise, or None.

        Args:
            function: the name of an NVML function, or another name that faults accept.
            always: whether faults of `ANYTHING` strike too.
        """
        with self._lock_file():
            card = self._fresh()
            for active in card.faults:
                fault = active.fault
                if fault.kind != "error" or not active.active(card.now_ns):
                    continue
                if fault.function == function or (always and fault.function == ANYTHING):
                    if active.calls_left == 0:
                        return fault.error
                    active.calls_left -= 1
                    self._save(card)
        return None

    def close(self) -> None:
        """Close the files. They are reopened when the object is used again."""
        with self.mutex:
            self._forget()
            if self._clock is not None:
                os.close(self._clock)
                self._clock = None

    # -- the files; the lock is held in all of these ---------------------------------------

    def _fresh(self) -> EmulatedCard:
        card = self._card
        if card is None or self._known != self._identity():
            self._forget()
            card = self._load()
        behind_ns = self._read_clock() - card.now_ns
        if 0 < behind_ns <= 2 * _LAG_NS:
            card.advance(card.now_ns + behind_ns)
        if card.reap():
            self._save(card)
        return card

    def _load(self) -> EmulatedCard:
        try:
            handle = self._held = open_file(self.path, os.O_RDONLY)
            with open(handle, "rb", closefd=False) as file:
                text = file.read()
        except FileNotFoundError:
            card = EmulatedCard(self.profile, self._seed)
            self._save(card)
            return card
        except OSError as error:
            raise DeviceError(
                f"The state of the emulated GPU, {self.path}, cannot be read "
                f"({error.strerror}): set GPUENERGY_STATE to a folder of your own."
            ) from None
        try:
            card = EmulatedCard.from_json(self.profile, self._seed, json.loads(text))
        except (ValueError, RecursionError) as error:
            damaged = self.path.with_suffix(".damaged")
            self.path.replace(damaged)
            card = EmulatedCard(self.profile, self._seed)
            self._save(card)
            warnings.warn(
                f"The state of the emulated GPU in {self.path} was damaged ({error!r}) and has "
                f"been replaced by a fresh one; the damaged file is kept as {damaged.name}.",
                EmulatedStateWarning,
                stacklevel=2,
            )
        else:
            self._remember(card, handle)
        return card

    def _save(self, card: EmulatedCard) -> None:
        # The name is always the same: what a killed process left behind is overwritten.
        scratch = self.path.with_suffix(".tmp")
        text = json.dumps(card.to_json(), separators=(",", ":")).encode()
        try:
            handle = open_file(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                if os.write(handle, text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                scratch.replace(self.path)
            except BaseException:
                os.close(handle)
                raise
        except OSError as error:
            raise DeviceError(
                f"The state of the emulated GPU, {self.path}, cannot be written "
                f"({error.strerror}): set GPUENERGY_STATE to a folder that can be written."
            ) from None
        self._forget()
        self._held = handle
        self._remember(card, handle)

    def _remember(self, card: EmulatedCard, handle: int) -> None:
        self._card, self._known, self._saved_ns = card, _identity(os.fstat(handle)), card.now_ns

    def _identity(self) -> tuple[int, ...]:
        try:
            return _identity(os.stat(self.path))  # noqa: PTH116 -- half the time of Path.stat
        except OSError:
            return ()

    def _forget(self) -> None:
        self._card, self._known = None, ()
        held, self._held = self._held, None  # an interrupt must not have it closed twice
        if held is not None:
            os.close(held)

    def _read_clock(self) -> int:
        assert self._clock is not None
        return int.from_bytes(os.pread(self._clock, 8, 0), "little")

    def _write_clock(self, now_ns: int) -> None:
        assert self._clock is not None
        os.pwrite(self._clock, now_ns.to_bytes(8, "little"), 0)

    @contextlib.contextmanager
    def _lock_file(self) -> Iterator[None]:
        with self.mutex:
            if self._pid != os.getpid():  # after a fork the lock would be shared with the parent
                self.close()
                self._pid = os.getpid()
            if self._clock is None:
                path = self.path.with_suffix(".clock")
                try:
                    self._clock = open_file(path, os.O_RDWR | os.O_CREAT, 0o644)
                except OSError as error:
                    raise DeviceError(
                        f"The clock of the emulated GPU, {path}, cannot be opened "
                        f"({error.strerror}): set GPUENERGY_STATE to a folder that can be written."
                    ) from None
            lock(self._clock)
            try:
                yield
            except BaseException:  # also an interrupt: our copy of the card may be half changed
                self._forget()
                raise
            finally:
                unlock(self._clock)


class VirtualClock:
    """The virtual clock that NVML readings and timelines of a card share; nothing really sleeps."""

    def __init__(self, state: CardState) -> None:
        self._state = state

    def now_s(self) -> float:
        """Return the virtual seconds since the emulated card was powered on."""
        return self._state.now_ns() / 1e9

    def sleep_s(self, duration_s: float) -> None:
        """Let ``duration_s`` virtual seconds pass.

        Raises:
            ValueError: the duration is negative, too long or not a number.
        """
        if not 0 <= duration_s < 1e9:
            raise ValueError(f"cannot sleep for {duration_s!r} s")
        self._state.spend(round(duration_s * 1e9))


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
