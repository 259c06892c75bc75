"""What one pytest process holds while it measures: device, lock, lease, run folder."""

from __future__ import annotations

import contextlib
from functools import cached_property

from msgspec.structs import replace

from pytest_gpuenergy.control.leftovers import restore_leftovers
from pytest_gpuenergy.control.limits import enforced_setpoint
from pytest_gpuenergy.control.setpoint import UNKNOWN, Setpoint
from pytest_gpuenergy.control.tables import NamedSetpoints
from pytest_gpuenergy.control.writers import SettingsWriter, choose_writer
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.select import open_device, open_gpu
from pytest_gpuenergy.energy.sensors import answers
from pytest_gpuenergy.engine.anchors import AnchorWatch
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.engine.identity import git_revision_of, run_info
from pytest_gpuenergy.engine.station import Station
from pytest_gpuenergy.gate.identity import Identities
from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.pytest_plugin.options import Options
from pytest_gpuenergy.record.infos import WorkloadInfo
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.report.store import HOME, Report, RunFolder
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.signals import termination_as_interrupt
from pytest_gpuenergy.workloads.workload import Workload


class Session:
    """Opens things only when an item needs them, and puts everything back in `close`.

    Attributes:
        setpoints: to measure at.
        run: the run's identity, once it has begun.
        restored: what was done about power limits that runs which died had left behind.
        identities: of the items, by which they are found in other runs.
    """

    def __init__(self, options: Options, run_id: str) -> None:
        self.options = options
        self.run_id = run_id
        self.setpoints: list[Setpoint] = []
        self._named = NamedSetpoints({})
        self.run: RunInfo | None = None
        self.restored: list[str] = []
        self.identities = Identities()
        self._device: Device | None = None
        self._station: Station | None = None
        self._writer: SettingsWriter | None = None
        self._harness: Harness | None = None
        self._folder: RunFolder | None = None
        self._anchors: AnchorWatch | None = None
        self._earlier: Report | None = None
        self._known: dict[str, Measurement] = {}
        self._exit = contextlib.ExitStack()

    @property
    def device(self) -> Device:
        """The device, found at first use.

        Raises:
            InputError, DeviceError: there is none that can be used.
        """
        if self._device is None:
            options = self.options
            self._device = open_device(options.device, index=options.worker_index)
            self._exit.callback(self._device.close)
        return self._device

    @property
    def opened(self) -> bool:
        """Whether an item has asked for the device."""
        return self._device is not None

    def resolve_setpoints(self) -> list[Setpoint]:
        """Those to measure at; a table value that the card cannot take is among them."""
        if not self.setpoints:
            text = self.options.powercap or ("all" if self.device.emulated else "current")
            self._named = NamedSetpoints.of(self.device, text, self.options.root)
            self.setpoints = self._named.setpoints
        return self.setpoints

    def words_for(self, setpoint: Setpoint) -> list[str]:
        """The words of ``--powercap`` that name ``setpoint``."""
        return self._named.words_for(setpoint)

    def settings_writer(self) -> SettingsWriter:
        """Who writes the card's settings, chosen once.

        Raises:
            SetpointError: nobody may.
        """
        if self._writer is None:
            self._writer = choose_writer(self.device)
        return self._writer

    def begin(self) -> None:
        """Take the GPU and open the run folder; done once, at the first item.

        Raises:
            DeviceError: somebody else has the GPU, or it does not work.
            ReportError: the run folder cannot be written.
        """
        if self._harness is not None:
            return
        device = self.device
        if device.emulated:
            from pytest_gpuenergy.devices.emulated.toolchain import find_compiler

            find_compiler()  # without one every item would fail alike
        options = self.options
        # Workers of one run that share a GPU use it one after the other, however long that takes.
        self._station = station = Station(
            device, lock_wait_s=options.lock_wait_s, group=self.run_id, writer=self._writer
        )
        self.restored += station.restored
        harness = station.harness(timeout_s=options.timeout_s, cache=options.cache)
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
        self.run = run
        self._harness = harness
        self._anchors = AnchorWatch(options.anchor_s, device, self._harness, self._folder)

    def apply(self, setpoint: Setpoint) -> Setpoint:
        """Set the card to ``setpoint`` and return what it enforces.

        An export only verifies kernels, for which no setting matters: it writes nothing, and only
        makes sure that the card could be set so.

        Raises:
            SetpointError: the card cannot be set so.
        """
        self.begin()
        assert self._station is not None
        if self._exports:
            self._station.check(setpoint)
            return UNKNOWN
        return self._station.apply(setpoint)

    def enforced(self) -> Setpoint:
        """What the card enforces now of what was applied."""
        return UNKNOWN if self._exports else enforced_setpoint(self.device)

    @property
    def _exports(self) -> bool:
        return self.options.export_folder is not None

    def answers(self) -> bool:
        """Whether the card is there at all, rather than only refuse a setpoint."""
        return answers(self.device)

    def expect_termination(self) -> None:
        """From now on SIGTERM and SIGHUP end the run as Ctrl-C does."""
        self._exit.enter_context(termination_as_interrupt())

    def judge_setpoint(self) -> tuple[str, ...]:
        """Doubts about the settings at which an item was measured."""
        return () if self._station is None else self._station.judge_setpoint()

    @property
    def harness(self) -> Harness:
        """The means to measure.

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

    def recall_anchor(
        self, subject: Subject, known: Measurement, kernel: AnyKernel, workload: Workload
    ) -> None:
        """Tell the anchors of an item of the run being resumed."""
        assert self._earlier is not None
        self.anchors.recall(subject, known, kernel, workload, self._earlier)

    def finish(self) -> None:
        """Check the anchor kernels for the last time, before the power limit is restored.

        Raises:
            ReportError: what was found cannot be written.
        """
        if self._anchors is not None:
            self._anchors.finish(self.apply)

    def keep(self, measurement: Measurement) -> None:
        """Put a measurement on disk.

        Raises:
            ReportError: it cannot be written.
        """
        assert self._folder is not None
        self._folder.append(measurement)

    def already_measured(
        self, subject: Subject, digest: str, workload: WorkloadInfo
    ) -> Measurement | None:
        """The measurement of this very item in the run being resumed, if it has no flag."""
        known = self._known.get(subject.node_id)
        same = (
            known is not None
            and known.measured
            and not known.validity
            and known.kernel.digest == digest
            and known.workload == workload
            and known.identity == subject.identity(workload.name, self.options.cache)
            and Setpoint.enforced_for(known) == subject.enforced
        )
        return known if same else None

    def has_measured_at(self, setpoint: Setpoint) -> bool:
        """Whether the run being resumed has figures at ``setpoint``."""
        return any(known.measured and known.cap == setpoint.label for known in self._known.values())

    def report(self) -> Report | None:
        """What this run has measured so far, in all its processes."""
        folder = RunFolder(self.options.root / HOME / "runs" / self.run_id)
        return folder.load() if (folder.path / "run.json").exists() else None

    @cached_property
    def outcome(self) -> Report | None:
        """What this run has measured, read once: for when nothing is measured any more.

        Raises:
            ReportError: it cannot be read.
        """
        return self.report()

    def restore_leftovers(self) -> None:
        """Put back what workers that died have left behind.

        Raises:
            InputError, DeviceError: the GPUs cannot be looked at.
        """
        with open_gpu(self.options.device) as gpu:
            self.restored += restore_leftovers(gpu)

    def close(self) -> None:
        """Restore the power limit, release the GPU, end the device's processes. Idempotent."""
        station, self._station = self._station, None
        try:
            if station is not None:
                station.close()
        finally:
            self._exit.close()

    def _take_up(self, run: RunInfo) -> RunInfo:
        """The run being resumed, with what it has measured; ``run`` itself when it is new."""
        last = self.report()
        if last is None:
            return run
        # Workers of one run may have a GPU each, of the same kind.
        names = ("gpu_name", "emulated") if self.options.worker else ("gpu_uuid", "emulated")
        if any(getattr(last.run, name) != getattr(run, name) for name in names):
            raise InputError(
                f"The last run was made on {last.run.gpu_name} ({last.run.gpu_uuid}), and this is "
                f"{run.gpu_name} ({run.gpu_uuid}): run without --gpuenergy-resume."
            )
        cache = last.run.options.get("gpuenergy-cache", "hot")
        if cache != self.options.cache:
            raise InputError(
                f"The last run was made with a {cache} cache, and this is to be "
                f"{self.options.cache}: run without --gpuenergy-resume."
            )
        self._earlier = last
        self._known = {item.node_id: item for item in last.measurements}
        self.identities = Identities(last.measurements)
        table_w = run.cap_table_w or last.run.cap_table_w
        return replace(run, started=last.run.started, cap_table_w=table_w)
