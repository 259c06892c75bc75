"""``--gpuenergy-fleet``: has pytest-xdist start one worker for each usable GPU of a fleet.

`prepare` sets the values of ``--tx`` and ``--dist`` before pytest-xdist or another plugin reads
them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pytest_gpuenergy
from pytest_gpuenergy.control import cap_words, clock_words
from pytest_gpuenergy.fleet import (
    GAVE_UP,
    RELAY,
    SLOT,
    STATION,
    Fleet,
    FoundSlots,
    find_slots,
    none_left,
    own_version,
    parse_fleet,
    tx_spec,
)
from pytest_gpuenergy.pytest_plugin.declared_options import (
    DEVICE,
    EXPORT,
    FLEET,
    POWERCAP,
    SMCLOCK,
    VERIFY_ONLY,
)
from pytest_gpuenergy.pytest_plugin.distribute.link import BOARDS
from pytest_gpuenergy.support import GpuEnergyError, InputError, counted, printable

_RESTARTS_PER_SLOT = 4
"""Limit of workers that replace lost ones; pytest-xdist has the same limit for ``-n``."""

_SLOT_KEY = "gpuenergy_slot"
_NONE_LEFT = "no worker of the fleet is left: see above, and go on with --gpuenergy-resume"


def prepare(config: pytest.Config, text: str) -> None:
    """Probe the fleet that ``text`` names and set pytest-xdist up for it.

    Raises:
        pytest.UsageError: the fleet is not understood or has no usable GPU, or other options
            contradict it.
    """
    try:
        fleet = parse_fleet(text)
        _check_options(config)
        device = DEVICE.text(config) or "auto"
        root, here = str(config.rootpath), config.invocation_params.dir
        caps, clocks = POWERCAP.text(config), SMCLOCK.text(config)
        default = "current" if device == "auto" else "all"
        words = [
            *cap_words(default if caps is None else caps),
            *clock_words("current" if clocks is None else clocks),
        ]
        measures = not (VERIFY_ONLY.value(config) or EXPORT.value(config))
        capping = measures and any(word != "current" for word in words)
        found = find_slots(fleet, device, root, capping=capping)
        if not found.slots:
            raise none_left(fleet, found.left_out)
    except GpuEnergyError as error:
        raise pytest.UsageError(str(error)) from None
    request = {
        "inside": str(here.relative_to(root)),
        "device": device,
        "capping": capping,
        "version": own_version(),
        "options": os.environ.get("PYTEST_ADDOPTS"),
    }
    # Naming the interpreter marks these workers as not plain, see `link.is_plain`.
    spec = tx_spec([sys.executable])
    config.option.tx = [f"{spec}//{_SLOT_KEY}={number}" for number in range(len(found.slots))]
    if config.option.dist == "no":
        config.option.dist = "loadgroup"
    if config.option.maxworkerrestart is None:
        config.option.maxworkerrestart = str(_RESTARTS_PER_SLOT * len(found.slots))
    config.pluginmanager.register(FleetPlugin(fleet, found, root, request), FleetPlugin.NAME)


class FleetPlugin:
    """The controller's part: sends each worker to its slot, and continues without those it loses.

    Args:
        request: the requirements that each worker checks when it begins, see `remote_worker.begin`.

    Attributes:
        lost: sentences about slots that were given up during the run.
        stations: host, GPU UUID and GPU name of each worker that has started, by the worker's id.
    """

    NAME = "gpuenergy-fleet"

    def __init__(self, fleet: Fleet, found: FoundSlots, root: str, request: dict[str, Any]) -> None:
        self.lost: list[str] = []
        self.stations: dict[str, dict[str, str]] = {}
        self._fleet = fleet
        self._found = found
        self._root = root
        self._request = request
        self._starting: set[Any] = set()
        self._running: set[Any] = set()

    def pytest_report_header(self) -> list[str]:
        """Show the slots, and why hosts or GPUs were left out."""
        slots = self._found.slots
        hosts = Counter(slot.host for slot in slots)
        named = ", ".join(f"{host} ({count})" for host, count in hosts.items())
        lines = [f"fleet: {self._fleet}: {counted(len(slots), 'worker')}: {named}"]
        lines += [f"fleet: left out: {sentence}" for sentence in self._found.left_out]
        return list(map(printable, lines))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_getremotemodule(self) -> str:
        """Have execnet run our relay, which runs pytest-xdist's own module on another host."""
        return RELAY.format(package=str(Path(pytest_gpuenergy.__file__).parents[1]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a relay which worker to start on which host."""
        slot = self._found.slots[int(getattr(node.gateway.spec, _SLOT_KEY))]
        self._starting.add(node)
        node.workerinput[BOARDS] = len(self._found.slots)
        node.workerinput[SLOT] = {
            "spec": tx_spec(slot.command),
            "host": slot.host,
            "uuid": slot.uuid,
            "root": self._root,
            "wait_s": self._fleet.wait_s,
            "silence_s": self._fleet.settings.silence_s,
            "request": {**self._request, "directory": slot.directory},
        }

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """Remember which GPU a worker has."""
        self._starting.discard(node)
        self._running.add(node)
        if (station := node.workerinfo.get(STATION)) is not None:
            self.stations[node.gateway.id] = station

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Continue without a worker that could not be started; end the run if none is left."""
        self._starting.discard(node)
        self._running.discard(node)
        reason = getattr(node, "workeroutput", {}).get(GAVE_UP)
        session = node.config.pluginmanager.get_plugin("dsession")
        if reason:
            self.lost.append(reason)
            session.report_line(f"\n{printable(f'fleet: left out: {reason}')}")
        # Only for pytest-xdist's own schedulers; ours handles this itself.
        if hasattr(session.sched, "numnodes") and error is None and not session.shuttingdown:
            if not self._starting and not self._running:
                node.workeroutput["shouldstop"] = _NONE_LEFT
            elif reason is not None and not session.sched.collection_is_completed:
                session.sched.numnodes -= 1  # or it would wait for this worker's collection
                if session.sched.collection_is_completed:
                    session.sched.schedule()
        if session.shuttingdown:
            for waiting in self._starting:
                waiting.shutdown()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Repeat what was left out, because ``-q`` has no header, and name the lost slots."""
        for sentence in dict.fromkeys([*self._found.left_out, *self.lost]):
            terminalreporter.write_line(printable(f"fleet: left out: {sentence}"), yellow=True)


def _check_options(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("xdist"):
        raise InputError(
            f"{FLEET.name} needs pytest-xdist: pip install pytest-xdist, and leave out -p no:xdist."
        )
    if config.option.numprocesses is not None or config.option.tx:
        raise InputError(
            f"{FLEET.name} starts a worker for each GPU by itself: leave out -n and --tx."
        )
    if config.getoption("usepdb"):
        raise InputError(f"{FLEET.name} has no terminal for --pdb: leave one of them out.")
    if not config.invocation_params.dir.is_relative_to(config.rootpath):
        raise InputError(
            f"{FLEET.name} needs to be called inside the project: change to {config.rootpath}."
        )
