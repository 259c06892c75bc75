"""The resources of a pytest process that measures: device, lock, lease and run folder."""

from __future__ import annotations

import contextlib
from functools import cached_property

from msgspec.structs import replace

from pytest_gpuenergy.control.lease_record import run_uuids
from pytest_gpuenergy.control.leftovers import restore_leftovers
from pytest_gpuenergy.control.limits import enforced_setpoint
from pytest_gpuenergy.control.setpoint import CURRENT, UNKNOWN, Setpoint
from pytest_gpuenergy.control.tables import NamedSetpoints
from pytest_gpuenergy.control.writers import SettingsWriter, choose_writer
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.select import open_device, open_gpu
from pytest_gpuenergy.energy.preheat import Announce
from pytest_gpuenergy.energy.sensors import answers
from pytest_gpuenergy.energy.settings import PREHEAT_S
from pytest_gpuenergy.engine.anchors import AnchorWatch
from pytest_gpuenergy.engine.boards import BoardWatch
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.engine.identity import git_revision_of, run_info
from pytest_gpuenergy.engine.station import Station
from pytest_gpuenergy.gate.identity import Identities
from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.pytest_plugin.link import (
    ASK_CAP,
    ASK_ITEM,
    ASK_RUN,
    ENDED,
    RESTORED,
    RUN,
    SET,
    Link,
)
from pytest_gpuenergy.pytest_plugin.options import Options
from pytest_gpuenergy.pytest_plugin.travel import SentFolder
from pytest_gpuenergy.record.infos import WorkloadInfo
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.report.store import HOME, Report, RunFolder
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_there
from pytest_gpuenergy.support.json_input import decode
from pytest_gpuenergy.support.json_output import encode
from pytest_gpuenergy.support.signals import termination_as_interrupt
from pytest_gpuenergy.workloads.workload import Workload

_MOST_PREHEAT_S = 30.0


class Session:
    """Opens resources only when an item needs them, and restores everything in `close`.

    Attributes:
        setpoints: the setpoints to measure at.
        run: the run's identity, once the run has started.
        restored: sentences about power limits that were restored after killed runs.
        identities: the items' identities, by which other runs refer to them.
        items: the number of items that this process may measure.
        link: to the controller, of a pytest-xdist worker.
        announce_preheat: is told for how many seconds the card may still be heated up.
    """

    def __init__(self, options: Options, run_id: str, link: Link | None = None) -> None:
        self.options = options
        self.link = link
        self.run_id = run_id
        self.setpoints: list[Setpoint] = []
        self._named = NamedSetpoints({})
        self.run: RunInfo | None = None
        self.restored: list[str] = []
        self.identities = Identities()
        self.items = 1
        self.announce_preheat: Announce = lambda _: None
        self._device: Device | None = None
        self._station: Station | None = None
        self._writer: SettingsWriter | None = None
        self._harness: Harness | None = None
        self._folder: RunFolder | None = None
        self._anchors: AnchorWatch | None = None
        self._boards: BoardWatch | None = None
        self._has_other_boards = False
        self._earlier: Report | None = None
        self._known: dict[str, Measurement] = {}
        self._exit = contextlib.ExitStack()

    @property
    def device(self) -> Device:
        """The device, opened at first use.

        Raises:
            InputError, DeviceError: no usable device was found.
        """
        if self._device is None:
            options = self.options
            self._device = open_device(options.device, index=options.worker_index)
            self._exit.callback(self._device.close)
        return self._device

    @property
    def opened(self) -> bool:
        """Whether the device has been opened."""
        return self._device is not None

    def resolve_setpoints(self) -> list[Setpoint]:
        """The setpoints to measure at, including table values that the card does not support."""
        if not self.setpoints:
            every = self.device.emulated and not self.options.verify_only
            text = self.options.powercap or ("all" if every else "current")
            self._named = self._with_ids(text)
            self.setpoints = self._named.setpoints
        return self.setpoints

    def _with_ids(self, text: str) -> NamedSetpoints:
        """The setpoints of ``text`` and, unless the options give them, those in ids."""
        options, device = self.options, self.device
        named = NamedSetpoints.of(device, text, options.root, options.smclock or "current")
        return named.with_labels(
            device,
            options.setpoints_named,
            options.root,
            any_cap=options.powercap is None,
            any_clock=options.smclock is None,
        )

    def words_for(self, setpoint: Setpoint) -> list[str]:
        """The words of ``--powercap`` and ``--smclock`` that name ``setpoint``."""
        return self._named.words_for(setpoint)

    def left_out(self, setpoint: Setpoint) -> bool:
        """Whether ``setpoint`` is not expected to be set, see `NamedSetpoints.left_out`."""
        return self._named.left_out(setpoint)

    def settings_writer(self) -> SettingsWriter:
        """The writer of the card's settings, chosen once.

        Raises:
            SetpointError: none is permitted.
        """
        if self._writer is None:
            self._writer = choose_writer(self.device)
        return self._writer

    def begin(self) -> None:
        """Claim the GPU and open the run folder, once, at the first item.

        Raises:
            DeviceError: another run is using the GPU, or it does not work.
            ReportError: the run folder cannot be written.
        """
        if self._harness is not None:
            return
        device = self.device
        if device.emulated:
            from pytest_gpuenergy.devices.emulated.compiler import find_compiler

            find_compiler()  # without a compiler, every item would fail the same way
        options = self.options
        # Workers of one run that share a GPU take turns, however long that takes.
        self._station = station = Station(
            device,
            lock_wait_s=options.lock_wait_s,
            group=self.run_id,
            writer=self._writer,
            allow_clocks=options.allow_clocks,
        )
        try:
            self._begin_at(station)
        except BaseException:
            self._station = None
            station.close()
            raise

    def _begin_at(self, station: Station) -> None:
        device, options = self.device, self.options
        self.restored += station.restored
        for sentence in station.restored:
            self._tell(RESTORED, sentence)
        harness = station.harness(
            timeout_s=options.timeout_s,
            cache=options.cache,
            seed=options.seed,
            preheat_s=self._preheat_s,
            announce=self.announce_preheat,
        )
        revision = git_revision_of(options.root)
        run = run_info(
            device,
            self.run_id,
            options.described(),
            git_revision=revision,
            cap_table_w=self._named.table_w,
        )
        if self.options.resume:
            run = self._take_up(run)
        self._folder = RunFolder.create(options.root, run)
        if self.link is not None:
            self._folder = SentFolder(self._folder.path, self._tell)
            self._tell(RUN, encode(run))
        self.run = run
        self._harness = harness
        self._anchors = AnchorWatch(options.anchor_s, device, self._harness, self._folder)
        if options.compares_boards or (options.may_compare_boards and self._has_other_boards):
            self._boards = BoardWatch(device, self._harness, self._folder)

    @property
    def _preheat_s(self) -> float:
        if self.options.preheat_s is not None:
            return self.options.preheat_s
        return min(_MOST_PREHEAT_S, PREHEAT_S * self.items)

    def apply(self, setpoint: Setpoint) -> Setpoint:
        """Set the card to ``setpoint`` and return what it enforces.

        No setting affects a verification: a run that measures nothing writes nothing to the card.
        An export checks that ``setpoint`` could be set.

        Raises:
            SetpointError: ``setpoint`` cannot be set.
        """
        self.begin()
        assert self._station is not None
        if self.options.export_folder is not None:
            self._station.check(setpoint)
        if not self._measures:
            return UNKNOWN
        if setpoint != CURRENT:  # said before, because this process may die in between
            self._tell(SET, setpoint.label)
        enforced = self._station.apply(setpoint)
        if setpoint == CURRENT:
            self._tell(SET, "")
        return enforced

    def refuse_foreign_lock(self) -> None:
        """Look, if this run locks clocks, whether it may lock those of this GPU.

        Raises:
            SetpointError: somebody else seems to have locked them.
        """
        assert self._station is not None
        if self._measures and any(one.sm_clock_mhz is not None for one in self.setpoints):
            self._station.refuse_foreign_lock()

    def enforced(self) -> Setpoint:
        """The setpoint that the card currently enforces."""
        return enforced_setpoint(self.device) if self._measures else UNKNOWN

    @property
    def _measures(self) -> bool:
        return self.options.export_folder is None and not self.options.verify_only

    def answers(self) -> bool:
        """Whether the card responds at all, as opposed to only rejecting a setpoint."""
        return answers(self.device)

    def expect_termination(self) -> None:
        """Make SIGTERM and SIGHUP end the run as Ctrl-C does, until `close`."""
        self._exit.enter_context(termination_as_interrupt())
        if self.link is not None:
            self.link.listen()

    def judge_setpoint(self) -> tuple[str, ...]:
        """Validity flags for the settings under which an item was measured."""
        return () if self._station is None else self._station.judge_setpoint()

    @property
    def harness(self) -> Harness:
        """The harness that measures.

        Raises:
            DeviceError, ReportError: as `begin`.
        """
        self.begin()
        assert self._harness is not None
        return self._harness

    @property
    def anchors(self) -> AnchorWatch:
        """The anchor kernels of this process.

        Raises:
            DeviceError, ReportError: as `begin`.
        """
        self.begin()
        assert self._anchors is not None
        return self._anchors

    def check_card(self, subject: Subject) -> None:
        """Measure what tells boards and sessions apart, if it is due, before an item.

        Raises:
            DeviceError, ReportError: as `begin`, or a measurement cannot be written.
        """
        anchors = self.anchors
        if self._boards is not None:
            self._boards.ensure(subject)
        anchors.check(subject)

    def recall_anchor(
        self, subject: Subject, known: Measurement, kernel: AnyKernel, workload: Workload
    ) -> None:
        """Inform the anchor watch about an item measured before the run was resumed."""
        if self._earlier is not None:  # a worker on another host has no part in it
            self.anchors.recall(subject, known, kernel, workload, self._earlier)

    def finish(self) -> None:
        """Check the anchor kernels for the last time, before the power limit is restored.

        Raises:
            ReportError: the checks cannot be written.
        """
        if self._anchors is not None:
            self._anchors.finish(self.apply)

    def keep(self, measurement: Measurement) -> None:
        """Write a measurement to disk.

        Raises:
            ReportError: it cannot be written.
        """
        assert self._folder is not None
        self._folder.append(measurement)

    def already_measured(
        self, subject: Subject, digest: str, workload: WorkloadInfo
    ) -> Measurement | None:
        """The unflagged measurement of the same item in the run being resumed, if any.

        A run that only verifies takes a flagged one too, and one without figures.
        """
        known = self._known_of(subject.node_id)
        if (
            known is None
            or known.kernel.digest != digest
            or known.workload != workload
            or known.identity != subject.identity(workload.name, self.options.cache)
        ):
            return None
        if self.options.verify_only:
            return known if known.measured or known.verified_only else None
        clean = known.measured and not known.validity
        return known if clean and Setpoint.enforced_for(known) == subject.enforced else None

    def has_measured_at(self, setpoint: Setpoint) -> bool:
        """Whether the run being resumed has measured at ``setpoint``."""
        if self.link is not None and self.options.resume:
            return self.link.ask(ASK_CAP, setpoint.label) is not None
        return any(known.measured and known.cap == setpoint.label for known in self._known.values())

    def _known_of(self, node_id: str) -> Measurement | None:
        """What the run being resumed has measured of an item; a worker's controller knows it."""
        if self.link is None or not self.options.resume:
            return self._known.get(node_id)
        found = self.link.ask(ASK_ITEM, node_id)
        return None if found is None else decode(found, Measurement)

    def _tell(self, kind: str, data: object) -> None:
        if self.link is not None:
            self.link.tell(kind, data)

    def report(self) -> Report | None:
        """The measurements of this run so far, from all processes; None before it starts."""
        folder = RunFolder(self.options.root / HOME / "runs" / self.run_id)
        try:
            begun = is_there(folder.path / "run.json")
        except InputError:
            if self.run is not None:
                raise
            return None  # another user's folder, in which this run has stored nothing
        return folder.load() if begun else None

    @cached_property
    def outcome(self) -> Report | None:
        """The measurements of this run, read once, after the last one was made.

        Raises:
            ReportError: they cannot be read.
        """
        return self.report()

    def restore_leftovers(self) -> None:
        """Restore the power limits that killed workers left behind.

        Raises:
            InputError, DeviceError: the GPUs cannot be opened.
        """
        if run_uuids():  # else this machine need not even have a GPU
            with open_gpu(self.options.device) as gpu:
                self.restored += restore_leftovers(gpu)

    def release(self) -> None:
        """Restore the power limit and release the GPU: nothing more is measured here."""
        station, self._station = self._station, None
        if station is not None:
            station.close()
            self._tell(SET, "")

    def close(self) -> None:
        """As `release`, and end the device's processes. Idempotent."""
        try:
            self.release()
        finally:
            if self.link is not None:
                self.link.armed = False
                self.link.tell(ENDED)
            self._exit.close()

    def _take_up(self, run: RunInfo) -> RunInfo:
        """Load the run being resumed and return its identity; ``run`` when there is none."""
        last = self.report()
        before = self._run_before() if last is None else last.run
        if before is None:
            return run
        # Workers may be on other GPUs than before: each measurement names its own.
        known = {before.gpu_uuid, *(one.gpu_uuid for one in (last.stations if last else ()))}
        elsewhere = not self.options.worker and run.gpu_uuid not in known
        if elsewhere or before.emulated != run.emulated:
            raise InputError(
                f"The last run was made on {before.gpu_name} ({before.gpu_uuid}), but this one "
                f"is on {run.gpu_name} ({run.gpu_uuid}): run without --gpuenergy-resume."
            )
        self._has_other_boards = bool(known - {run.gpu_uuid})
        cache = before.options.get("gpuenergy-cache", "hot")
        if cache != self.options.cache:
            raise InputError(
                f"The last run was made with a {cache} cache, but this one uses a "
                f"{self.options.cache} cache: run without --gpuenergy-resume."
            )
        if last is not None:
            self._earlier = last
            self._known = {item.node_id: item for item in last.measurements}
            self.identities = Identities(last.measurements)
        table_w = run.cap_table_w or before.cap_table_w
        return replace(run, started=before.started, cap_table_w=table_w)

    def _run_before(self) -> RunInfo | None:
        """The identity of the run being resumed, of which this host has nothing."""
        found = None if self.link is None else self.link.ask(ASK_RUN)
        return None if found is None else decode(found, RunInfo)
