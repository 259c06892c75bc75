"""The worker's part of a distribution: items that cannot be measured here are left to others."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Sequence

import pytest

from pytest_gpuenergy.energy import ProcessWatch
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.pytest_plugin.declarations import DEVICE_FIXTURE, POWERCAP_FIXTURE
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
from pytest_gpuenergy.support import DeviceError, GpuEnergyError, host_name, told
from pytest_gpuenergy.workloads import Workload

Seen = dict[tuple[str, str], dict[int, int]]
"""The values of each parameter of each test, by identity, numbered as they appear."""


def group_of(item: pytest.Item, seen: Seen) -> str | None:
    """The name of an item's group; None for an item that is not ours.

    A mark ``xdist_group`` names the group. Otherwise, the items of one workload are a group if a
    parameter of the test is the workload, or has it as its ``workload``. Where none is, the group
    has all items of a test that differ only in power cap and kernel.
    """
    if DEVICE_FIXTURE not in getattr(item, "fixturenames", ()):
        return None
    marks = {_name_of(mark) for mark in item.iter_markers("xdist_group")}
    if marks:
        return f"group {'_'.join(sorted(marks))}"
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    for value in params.values():
        if (workload := _workload_of(value)) is not None:
            return f"workload {workload}"
    test = item.nodeid.partition("[")[0]
    if callspec is None:
        return f"test {test}"
    rest = [
        f"{name}{_number(seen.setdefault((test, name), {}), value)}"  # values may be large
        for name, value in params.items()
        if name not in ("powercap", POWERCAP_FIXTURE) and not isinstance(value, AnyKernel)
    ]
    return f"test {test}[{', '.join(rest)}]"


def groups_of(items: Sequence[pytest.Item]) -> tuple[list[str], list[int]]:
    """The names of all groups, and for each item the place of its own; -1 for none."""
    places: dict[str, int] = {}
    seen: Seen = {}
    of_items = [
        -1 if (name := group_of(item, seen)) is None else places.setdefault(name, len(places))
        for item in items
    ]
    return list(places), of_items


def _number(known: dict[int, int], value: object) -> int:
    return known.setdefault(id(value), len(known))


def _name_of(mark: pytest.Mark) -> str:
    return str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))


def _workload_of(value: object) -> str | None:
    if isinstance(value, Workload):
        return value.name
    found = getattr(value, "workload", None)
    return found.name if isinstance(found, Workload | WorkloadInfo) else None


_PATIENCE_S = 5.0
"""How long the processes of a worker that was lost may take to end."""


class DeferringPlugin:
    """Tells the controller which items belong together, and which of them this worker puts off.

    Args:
        session: of this worker.
        gate: judges what it measures.
        link: to the controller.
    """

    def __init__(self, session: Session, gate: GatePlugin, link: Link) -> None:
        self._session = session
        self._gate = gate
        self._link = link
        self._reason = ""
        self._claimed = False

    def give_up(self, reason: str, kind: str = UNUSABLE) -> None:
        """Tell the controller that this worker can measure nothing.

        Args:
            reason: a sentence that says why.
            kind: `UNUSABLE` or `BAD_OPTION`.
        """
        if not self._reason:
            self._reason = reason
            card = self._session.card
            emulated = card.opened and card.device.emulated
            self._link.tell(kind, reason, host_name(emulated=emulated))

    @pytest.hookimpl(tryfirst=True)  # before pytest-xdist sends the ids
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Restore what a worker that was killed here has left; tell which items belong together."""
        with contextlib.suppress(GpuEnergyError, OSError):  # claiming the GPU says what is wrong
            if mended := self._session.restore_leftovers():
                self._link.tell(MENDED, sorted(mended))
        names, places = groups_of(session.items)
        if names:
            self._link.tell(GROUPS, names, places)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Claim the GPU before the first item; put items off when that is not possible."""
        if DEVICE_FIXTURE in getattr(item, "fixturenames", ()) and not self._measures():
            self._link.tell(DEFERRED, item.nodeid)
            return True  # and nothing is reported of it
        self._link.tell(BEGAN, item.nodeid)
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """After a failure, look whether the host still works; if not, others run the item."""
        report = yield
        if report.failed and self._claimed and DEVICE_FIXTURE in getattr(item, "fixturenames", ()):
            try:
                self._session.check_host()
            except (GpuEnergyError, OSError) as error:
                self.give_up(told(error))
                self._link.tell(FAILED_HERE, item.nodeid)
        return report

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Tell who ended this worker, if neither its controller nor Ctrl-C did."""
        said = excinfo.value.args[:1]  # a name, see `support.signals`
        if isinstance(excinfo.value, KeyboardInterrupt) and said and not self._link.interrupted:
            self._link.tell(ENDED_BY, str(said[0]))

    def pytest_sessionfinish(self) -> None:
        """Tell why this worker collected nothing, such as a file that its host lacks.

        pytest-xdist passes no usage error on, and ends as if there were no tests.
        """
        error = sys.exc_info()[1]
        if isinstance(error, pytest.UsageError):
            self.give_up("; ".join(map(str, error.args)))

    def _measures(self) -> bool:
        if not (self._claimed or self._reason):
            try:
                self._claim()
                self._claimed = True
            except (GpuEnergyError, OSError) as error:
                self.give_up(told(error))
        return not self._reason

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
        deadline_s = time.monotonic() + _PATIENCE_S
        while strangers := ProcessWatch(device).strangers():
            if time.monotonic() > deadline_s:
                listed = ", ".join(map(str, sorted(strangers)))
                session.card.release()
                raise DeviceError(f"Other processes use {device.name}: {listed}.")
            time.sleep(0.1)
