"""The worker's part of a distribution: groups items, leaves what it cannot measure to others."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Sequence

import pytest

from pytest_gpuenergy.energy import ProcessWatch
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.pytest_plugin.declared_options import DEVICE_FIXTURE, POWERCAP_FIXTURE
from pytest_gpuenergy.pytest_plugin.distribute.link import (
    BEGAN,
    DEFERRED,
    ENDED_BY,
    FAILED_HERE,
    GROUPS,
    MENDED,
    UNUSABLE,
    Link,
)
from pytest_gpuenergy.pytest_plugin.gate import GatePlugin
from pytest_gpuenergy.pytest_plugin.session import Session
from pytest_gpuenergy.record import WorkloadInfo
from pytest_gpuenergy.support import DeviceError, GpuEnergyError, error_message, host_name
from pytest_gpuenergy.workloads import Workload

Seen = dict[tuple[str, str], dict[int, int]]
"""A number for each value of each parameter of each test, by the value's ``id``."""
_PROCESS_END_S = 5.0
"""The longest time in which the processes of a lost worker end."""


def item_group(item: pytest.Item, seen: Seen) -> str | None:
    """Return the name of an item's group, or None if it does not use this plugin.

    The items of a group are measured on one board, so that their kernels and caps can be compared.
    A mark ``xdist_group`` names the group. Otherwise, if a parameter of the test is a workload or
    has one as its attribute ``workload``, the items of that workload are a group. Without such a
    parameter, the items of a test that differ only in power cap and kernel are a group.
    """
    if DEVICE_FIXTURE not in getattr(item, "fixturenames", ()):
        return None
    marks = {
        str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))
        for mark in item.iter_markers("xdist_group")
    }
    if marks:
        return f"group {'_'.join(sorted(marks))}"
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    for value in params.values():
        owner = value if isinstance(value, Workload) else getattr(value, "workload", None)
        if isinstance(owner, Workload | WorkloadInfo):
            return f"workload {owner.name}"
    test = item.nodeid.partition("[")[0]
    if callspec is None:
        return f"test {test}"
    rest = []
    for name, value in params.items():
        if name not in ("powercap", POWERCAP_FIXTURE) and not isinstance(value, AnyKernel):
            numbers = seen.setdefault((test, name), {})
            rest.append(f"{name}{numbers.setdefault(id(value), len(numbers))}")
    return f"test {test}[{', '.join(rest)}]"


def item_groups(items: Sequence[pytest.Item]) -> tuple[list[str], list[int]]:
    """Return the names of all groups, and for each item the index of its group; -1 for none."""
    places: dict[str, int] = {}
    seen: Seen = {}
    of_items = [
        -1 if (name := item_group(item, seen)) is None else places.setdefault(name, len(places))
        for item in items
    ]
    return list(places), of_items


class DeferringPlugin:
    """Tells the controller which items belong together, and which of them this worker defers."""

    def __init__(self, session: Session, gate: GatePlugin, link: Link) -> None:
        self._session = session
        self._gate = gate
        self._link = link
        self._reason = ""
        self._claimed = False

    def give_up(self, reason: str, kind: str = UNUSABLE) -> None:
        """Tell the controller why this worker can measure nothing: `UNUSABLE` or `BAD_OPTION`."""
        if not self._reason:
            self._reason = reason
            card = self._session.card
            emulated = card.opened and card.device.emulated
            self._link.tell(kind, reason, host_name(emulated=emulated))

    @pytest.hookimpl(tryfirst=True)  # before pytest-xdist sends the ids
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Restore what killed workers have left set here; tell which items belong together."""
        with contextlib.suppress(GpuEnergyError, OSError):  # claiming the GPU reports what is wrong
            if mended := self._session.restore_leftovers():
                self._link.tell(MENDED, sorted(mended))
        names, places = item_groups(session.items)
        if names:
            self._link.tell(GROUPS, names, places)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Claim the GPU before the first item; defer items when that is not possible."""
        if DEVICE_FIXTURE in getattr(item, "fixturenames", ()):
            if not (self._claimed or self._reason):
                try:
                    self._claim()
                    self._claimed = True
                except (GpuEnergyError, OSError) as error:
                    self.give_up(error_message(error))
            if self._reason:
                self._link.tell(DEFERRED, item.nodeid)
                return True  # the item counts as run, without a report
        self._link.tell(BEGAN, item.nodeid)
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """After a failure, check that the host still works; if not, others run the item."""
        report = yield
        if report.failed and self._claimed and DEVICE_FIXTURE in getattr(item, "fixturenames", ()):
            try:
                self._session.check_host()
            except (GpuEnergyError, OSError) as error:
                self.give_up(error_message(error))
                self._link.tell(FAILED_HERE, item.nodeid)
        return report

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Tell which signal ended this worker, unless its controller or Ctrl-C did."""
        signal_name = excinfo.value.args[:1]  # see `support.signals`
        is_interrupt = isinstance(excinfo.value, KeyboardInterrupt)
        if is_interrupt and signal_name and not self._link.interrupted:
            self._link.tell(ENDED_BY, str(signal_name[0]))

    def pytest_sessionfinish(self) -> None:
        """Tell why this worker collected nothing, for example because its host lacks a file.

        pytest-xdist does not pass usage errors on, and ends as if there were no tests.
        """
        error = sys.exc_info()[1]
        if isinstance(error, pytest.UsageError):
            self.give_up("; ".join(map(str, error.args)))

    def _claim(self) -> None:
        session = self._session
        device = session.card.device
        if device.emulated and session.options.device == "auto" and session.options.remote:
            raise DeviceError("It has no usable NVIDIA GPU, and no emulated one was asked for.")
        session.begin()
        try:
            session.card.refuse_foreign_lock()
        except GpuEnergyError:
            session.card.release()
            raise
        assert session.run is not None
        self._gate.begin(session.run)
        deadline_s = time.monotonic() + _PROCESS_END_S
        while foreign := ProcessWatch(device).foreign_processes():
            if time.monotonic() > deadline_s:
                listed = ", ".join(map(str, sorted(foreign)))
                session.card.release()
                raise DeviceError(f"Other processes use {device.name}: {listed}.")
            time.sleep(0.1)
