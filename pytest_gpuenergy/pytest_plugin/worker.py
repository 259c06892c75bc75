"""A worker of pytest-xdist, as its controller knows it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuenergy.fleet import SEAT
from pytest_gpuenergy.pytest_plugin import link
from pytest_gpuenergy.record import StationInfo


@dataclass
class Worker:
    """A worker, alive or not.

    Attributes:
        name: pytest-xdist's, such as ``gw0``.
        spec: how pytest-xdist starts it.
        number: of its GPU.
        station: its GPU and host, once it has claimed the GPU.
        host: what its host is called, by the user if a fleet names it.
        setpoint: the label of what its GPU is set to; empty if it is as it was.
        running: the item that it has begun and not ended.
        collected: whether it has collected its items.
        items: how many that are.
        unusable: why it cannot measure; empty if it can, as far as is known.
        bad_option: whether that is because of an option.
        deferred: items that it has put off.
        failed_here: items that failed because its host had stopped working, by its own account.
        completed: whether it has ended an item.
        ended_by: the signal by which somebody else has ended it; empty if nobody has.
        down: whether it has ended or is lost.
    """

    name: str
    spec: str
    number: int | None
    station: StationInfo | None = None
    host: str = ""
    setpoint: str = ""
    running: str | None = None
    collected: bool = False
    items: int = 0
    unusable: str = ""
    bad_option: bool = False
    deferred: set[str] = field(default_factory=set)
    failed_here: set[str] = field(default_factory=set)
    completed: bool = False
    ended_by: str = ""
    down: bool = False

    @classmethod
    def of(cls, node: Any, number: int | None) -> Worker:
        """The worker that pytest-xdist knows as ``node``."""
        gateway = getattr(node, "gateway", None)
        return cls(
            name=str(getattr(gateway, "id", node)),
            spec=str(getattr(gateway, "spec", "")),
            number=number,
            host=_host_called(node),
        )

    @property
    def place(self) -> Hashable:
        """Another worker with the same has the same GPU."""
        return (self.spec, self.number)

    @property
    def title(self) -> str:
        """``gw1 on host7``, as far as its host is known."""
        return f"{self.name} on {self.host}" if self.host else self.name

    def settle_at(self, station: StationInfo) -> None:
        """Note the GPU that it has claimed."""
        self.station, self.host = station, self.host or station.host

    def hear(self, kind: str, *data: str) -> None:
        """Note what it has said of itself; see `link`."""
        if kind == link.BEGAN:
            self.running = data[0]
        elif kind == link.SET:
            self.setpoint = data[0]
        elif kind == link.DEFERRED:
            self.deferred.add(data[0])
        elif kind == link.FAILED_HERE:
            self.failed_here.add(data[0])
        elif kind in (link.UNUSABLE, link.BAD_OPTION):
            self.unusable, host = data
            self.bad_option = kind == link.BAD_OPTION
            self.host = self.host or host
        elif kind == link.ENDED_BY:
            self.ended_by = data[0]
        elif kind == link.ENDED:
            self.setpoint = ""

    def end(self, node_id: str) -> None:
        """Note that an item has ended on it."""
        if self.running == node_id:
            self.running = None
        self.completed = True


def _host_called(node: Any) -> str:
    """The host that a fleet has sent a worker to; empty without one, or if that is yet open."""
    seat = getattr(node, "workerinput", {}).get(SEAT)
    return str(seat["host"]) if seat and seat["uuid"] else ""
