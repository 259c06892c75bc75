"""The session of a pytest process that measures: its card, the run folder and the harness."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from pytest_gpuenergy import emulator
from pytest_gpuenergy.control import (
    CURRENT,
    UNKNOWN,
    NamedSetpoints,
    Setpoint,
    SettingsWriter,
    choose_writer,
    enforced_setpoint,
    restore_leftovers,
    run_uuids,
)
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import PREHEAT_S, Announce, responds
from pytest_gpuenergy.engine import (
    AnchorWatch,
    BoardWatch,
    Harness,
    Station,
    Subject,
    git_revision_of,
    run_info,
)
from pytest_gpuenergy.gate import Identities
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.opening import open_device, open_gpu
from pytest_gpuenergy.pytest_plugin.distribute.exchange import Resumption, SentFolder
from pytest_gpuenergy.pytest_plugin.distribute.link import (
    ENDED,
    RESTORED,
    RUN,
    SET,
    Link,
)
from pytest_gpuenergy.pytest_plugin.options import PytestOptions
from pytest_gpuenergy.record import Measurement, RunInfo
from pytest_gpuenergy.report import HOME, Report, RunFolder
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
    cache_dir,
    check_room,
    encode,
    is_there,
    state_dir,
    termination_as_interrupt,
)
from pytest_gpuenergy.workloads import Workload

_MAX_PREHEAT_S = 30.0
_ROOM_BYTES = 1 << 20
"""Free space that a host needs in each folder that a run writes to: a record, a small program."""


class SessionCard:
    """The GPU of a pytest process: opened and claimed when an item needs it, set for each item.

    A worker of pytest-xdist tells the controller the card's setpoint by ``tell``.

    Attributes:
        named: the setpoints to measure at, and the words of the options that name them.
    """

    def __init__(self, options: PytestOptions, tell: Callable[[str, object], None]) -> None:
        self.named = NamedSetpoints({})
        self._options = options
        self._tell = tell
        self._device: Device | None = None
        self._station: Station | None = None
        self._writer: SettingsWriter | None = None
        self._exit = contextlib.ExitStack()

    @property
    def device(self) -> Device:
        """The device, opened at first use.

        Raises:
            InputError, DeviceError: no usable device was found.
        """
        if self._device is None:
            options = self._options
            self._device = open_device(options.device, index=options.worker_index)
            self._exit.callback(self._device.close)
        return self._device

    @property
    def opened(self) -> bool:
        """Whether the device has been opened."""
        return self._device is not None

    def resolve_setpoints(self) -> list[Setpoint]:
        """The setpoints to measure at, including table values that the card does not support.

        Raises:
            InputError, DeviceError: the options cannot be understood, or no usable device was
                found.
        """
        if not self.named.words:
            device, options = self.device, self._options
            # What its options do not name may be named by ids on the command line.
            every = device.emulated and not options.verify_only
            caps, clocks = options.powercap, options.smclock
            named = NamedSetpoints.of(
                device, caps or ("all" if every else "current"), options.root, clocks or "current"
            )
            self.named = named.with_labels(
                device,
                options.setpoints_named,
                options.root,
                any_cap=not options.powercap_named,
                any_clock=not options.smclock_named,
            )
        return self.named.setpoints

    def settings_writer(self) -> SettingsWriter:
        """The writer of the card's settings, chosen once.

        Raises:
            SetpointError: none is permitted.
        """
        if self._writer is None:
            self._writer = choose_writer(self.device)
        return self._writer

    def claim(self, run_id: str) -> Station:
        """Claim the GPU until `release`; workers of one run take turns, however long they wait.

        Raises:
            DeviceError: another run is using the GPU, or it does not work.
        """
        device, options = self.device, self._options
        if device.emulated:
            emulator.find_compiler()  # without a compiler, every item would fail the same way
        self._station = Station(
            device,
            lock_wait_s=options.lock_wait_s,
            group=run_id,
            writer=self._writer,
            allow_clocks=options.allow_clocks,
        )
        return self._station

    def apply(self, setpoint: Setpoint) -> Setpoint:
        """Set the claimed card to ``setpoint`` and return what it enforces.

        No setting affects a verification: a run that measures nothing writes nothing to the card.
        An export checks that ``setpoint`` could be set.

        Raises:
            SetpointError: ``setpoint`` cannot be set.
        """
        assert self._station is not None
        if self._options.export_folder is not None:
            self._station.check(setpoint)
        if not self.measures:
            return UNKNOWN
        if setpoint != CURRENT:  # before, because this process may die while it sets the card
            self._tell(SET, setpoint.label)
        enforced = self._station.apply(setpoint)
        if setpoint == CURRENT:
            self._tell(SET, "")
        return enforced

    def refuse_foreign_lock(self) -> None:
        """Check that no other program seems to have locked the clocks that this run is to lock.

        Raises:
            SetpointError: another program seems to have locked them.
        """
        assert self._station is not None
        if self.measures and any(
            setpoint.sm_clock_mhz is not None for setpoint in self.named.setpoints
        ):
            self._station.refuse_foreign_lock()

    def enforced(self) -> Setpoint:
        """The setpoint that the card currently enforces."""
        return enforced_setpoint(self.device) if self.measures else UNKNOWN

    def answers(self) -> bool:
        """Return whether the card responds at all, as opposed to only rejecting a setpoint."""
        return responds(self.device)

    def judge_setpoint(self) -> tuple[str, ...]:
        """Return validity flags for the settings under which an item was measured."""
        return () if self._station is None else self._station.judge_setpoint()

    def release(self) -> None:
        """Restore the power limit and release the GPU."""
        station, self._station = self._station, None
        if station is not None:
            station.close()
            self._tell(SET, "")

    def close(self) -> None:
        """End the device's processes. Idempotent."""
        self._exit.close()

    @property
    def measures(self) -> bool:
        """Whether the items of this run are measured, rather than only verified or exported."""
        return self._options.export_folder is None and not self._options.verify_only


class Session:
    """Opens resources only when an item needs them, and restores everything in `close`.

    Attributes:
        run: the run's identity, once the run has started.
        restored: sentences about power limits that were restored after killed runs.
        identities: the items' identities, by which other runs refer to them.
        resumption: what the run being resumed has measured.
        unwritten: requested views that could not be written.
        items: the number of items that this process may measure.
        link: in a pytest-xdist worker, the line to the controller.
        announce_preheat: called with the seconds for which the card may still be heated up.
        heats_at_once: whether the first item times nothing on the card before it is measured, so
            that the card is heated from the moment on in which it is claimed.
    """

    def __init__(self, options: PytestOptions, run_id: str, link: Link | None = None) -> None:
        self.options = options
        self.link = link
        self.run_id = run_id
        self.card = SessionCard(options, self._tell)
        self.run: RunInfo | None = None
        self.restored: list[str] = []
        self.unwritten: set[Path] = set()
        self.identities = Identities()
        self.resumption = Resumption(options, link)
        self.items = 1
        self.announce_preheat: Announce = lambda _: None
        self.heats_at_once = False
        self._harness: Harness | None = None
        self._folder: RunFolder | None = None
        self._anchors: AnchorWatch | None = None
        self._boards: BoardWatch | None = None
        self._signals = contextlib.ExitStack()

    def begin(self) -> None:
        """Claim the GPU and open the run folder, once, at the first item.

        Raises:
            DeviceError: another run is using the GPU, or it does not work.
            ReportError: the run folder cannot be written.
        """
        if self._harness is not None:
            return
        station = self.card.claim(self.run_id)
        with contextlib.ExitStack() as undoing:
            undoing.callback(self.card.release)
            self._begin_at(station, undoing)
            undoing.pop_all()

    def _begin_at(self, station: Station, undoing: contextlib.ExitStack) -> None:
        device, options = self.card.device, self.options
        self.restored += station.restored
        for sentence in station.restored:
            self._tell(RESTORED, sentence)
        preheat_s = options.preheat_s
        harness = station.harness(
            timeout_s=options.timeout_s,
            cache=options.cache,
            seed=options.seed,
            preheat_s=min(_MAX_PREHEAT_S, PREHEAT_S * self.items)
            if preheat_s is None
            else preheat_s,
            # The seconds of an emulated card are not those of whoever waits.
            announce=(lambda _: None) if device.emulated else self.announce_preheat,
        )
        if self.heats_at_once and self.card.measures and self.card.named.setpoints == [CURRENT]:
            undoing.callback(harness.end_heating)
            harness.begin_heating()
        run = run_info(
            device,
            self.run_id,
            options.described(),
            git_revision=git_revision_of(options.root),
            cap_table_w=self.card.named.table_w,
        )
        if options.resume:
            run = self.resumption.take_up(run, self.report())
            if self.resumption.earlier is not None:
                self.identities = Identities(self.resumption.earlier.measurements)
        self._folder = RunFolder.create(options.root, run)
        if self.link is not None:
            self._folder = SentFolder(self._folder.path, self._tell)
            self._tell(RUN, encode(run))
        self.run = run
        self._harness = harness
        self._anchors = AnchorWatch(options.anchor_s, device, harness, self._folder)
        if options.compares_boards or (
            options.may_compare_boards and self.resumption.on_other_boards
        ):
            self._boards = BoardWatch(device, harness, self._folder)

    def apply(self, setpoint: Setpoint) -> Setpoint:
        """Begin the run if it has not begun, and set the card, see `SessionCard.apply`."""
        self.begin()
        return self.card.apply(setpoint)

    def expect_termination(self) -> None:
        """Make SIGTERM and SIGHUP end the run as Ctrl-C does, until `close`."""
        self._signals.enter_context(termination_as_interrupt())
        if self.link is not None:
            self.link.listen()

    @property
    def harness(self) -> Harness:
        """The harness that measures."""
        self.begin()
        assert self._harness is not None
        return self._harness

    @property
    def anchors(self) -> AnchorWatch:
        """The anchor kernels of this process."""
        self.begin()
        assert self._anchors is not None
        return self._anchors

    def check_card(self, subject: Subject) -> None:
        """Before an item, measure the board and anchor kernels that are due."""
        anchors = self.anchors
        if self._boards is not None:
            self._boards.ensure(subject)
        anchors.check(subject)

    def recall_anchor(
        self, subject: Subject, known: Measurement, kernel: AnyKernel, workload: Workload
    ) -> None:
        """Inform the anchor watch about an item measured before the run was resumed."""
        earlier = self.resumption.earlier
        if earlier is not None:  # None on another host, whose anchors are its own
            self.anchors.recall(subject, known, kernel, workload, earlier)

    def expect(self, make: Callable[[], tuple[AnyKernel, Workload]]) -> bool:
        """Verify a kernel ahead of the item that will measure it; return whether that is tried.

        It is not in a worker, nor where items may be measured already. See `Verifier.expect`.
        """
        options = self.options
        is_tried = self.link is None and not options.resume and options.export_folder is None
        if is_tried := is_tried and self.card.device.emulated:
            self.harness.expect(make)
        return is_tried

    def expect_workload(self, workload: Workload) -> None:
        """Prepare what a later item's kernel is verified on, see `Verifier.expect_workload`."""
        self.harness.expect_workload(workload)

    def end_heating(self) -> None:
        """Stop heating the card for an item that has ended. Idempotent."""
        if self._harness is not None:
            self._harness.end_heating()

    def finish(self) -> None:
        """Check the anchor kernels for the last time, before the power limit is restored."""
        if self._anchors is not None:
            self._anchors.finish(self.apply)

    def keep(self, measurement: Measurement) -> None:
        """Write a measurement to disk."""
        assert self._folder is not None
        self._folder.append(measurement)

    def _tell(self, kind: str, data: object) -> None:
        if self.link is not None:
            self.link.tell(kind, data)

    def report(self) -> Report | None:
        """Return the measurements of this run so far, from all processes; None before it starts."""
        folder = RunFolder(self.options.root / HOME / "runs" / self.run_id)
        try:
            begun = is_there(folder.path / "run.json")
        except InputError:
            if self.run is not None:
                raise
            return None  # another user's folder; this run has stored nothing in it
        return folder.load() if begun else None

    @cached_property
    def outcome(self) -> Report | None:
        """The measurements of this run, read once, after the last one was made."""
        return self.report()

    def check_host(self) -> None:
        """Raise an error if this host no longer works, after an item has failed on it."""
        if not self.card.answers():
            raise DeviceError(f"{self.card.device.name} does not respond any more.")
        folders = [] if self._folder is None else [self._folder.path]
        for folder in (*folders, state_dir(), cache_dir(), Path(tempfile.gettempdir())):
            try:
                check_room(folder, _ROOM_BYTES)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(folder)) from error

    def restore_leftovers(self) -> set[str]:
        """Restore what killed workers have left set on this machine's GPUs; return their UUIDs."""
        left = set(run_uuids())
        if left:  # otherwise this machine may not even have a GPU
            with open_gpu(self.options.device) as gpu:
                restored = restore_leftovers(gpu)
            self.restored += restored
            for sentence in restored:
                self._tell(RESTORED, sentence)
        return left - set(run_uuids())

    def close(self) -> None:
        """Restore the power limit, release the GPU and end its processes. Idempotent."""
        if self._harness is not None:
            self._harness.close()
        try:
            self.card.release()
        finally:
            if self.link is not None:
                self.link.armed = False
                self.link.tell(ENDED)
            try:
                self.card.close()
            finally:
                self._signals.close()
