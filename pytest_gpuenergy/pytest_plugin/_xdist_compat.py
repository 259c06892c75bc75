"""Every use of pytest-xdist's private API; tested against its newest release.

Its session of workers needs changes in five cases. It ends with an internal error when a host
cannot be reached; it restarts a worker that ends at once again and again; it does not replace a
worker that is lost for good; it counts failures that a broken host causes; and it takes the number
of items that one worker has collected for that of the run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import pytest


class Judge(Protocol):
    """Decides about the workers for `Nodes`."""

    def may_restart(self, node: Any) -> bool:
        """Return whether to replace a lost worker by one at the same place."""

    def ended_by(self, node: Any) -> str:
        """The signal with which another process has ended a worker; empty if none has."""

    def excuses(self, node: Any, node_id: str) -> bool:
        """Return whether an item's failure does not count, because other workers run the item."""

    def lost_for_good(self) -> None:
        """Note that a lost worker is not replaced."""

    def prepare(self, node: Any) -> None:
        """Give the next worker that is started the GPU of this one."""

    def unreachable(self, spec: Any, error: BaseException) -> None:
        """Note that no worker could be started at a place."""

    def usable(self) -> Iterable[Any]:
        """Return workers at whose places another one could be started, the best first."""


class Nodes:
    """The workers of a session of pytest-xdist, which has listed but not started them."""

    def __init__(self, config: pytest.Config, judge: Judge) -> None:
        self._session: Any = config.pluginmanager.getplugin("dsession")
        self._judge = judge
        manager = self._session.nodemanager
        self._setup: Callable[..., Any] = manager.setup_node
        manager.setup_node = self._start_node
        self._session._clone_node = self._replace_node
        self._finish: Callable[[Any], None] = self._session.worker_workerfinished
        self._session.worker_workerfinished = self._finished
        self._collect: Callable[..., None] = self._session.worker_collectionfinish
        self._session.worker_collectionfinish = self._collected
        self._report: Callable[..., None] = self._session.worker_testreport
        self._session.worker_testreport = self._reported

    @property
    def active(self) -> set[Any]:
        """Workers that are starting, ready or ending."""
        active: set[Any] = self._session._active_nodes
        active.discard(None)  # stands for a worker that could not be started
        return active

    def recruit(self, most: int) -> None:
        """Start at most ``most`` more workers, at places whose workers can measure."""
        if self._session.shuttingdown:
            return
        for node in list(self._judge.usable()):
            if most > 0 and self._cloned(node) is not None:
                most -= 1

    def _finished(self, node: Any) -> None:
        """Stand in for ``DSession.worker_workerfinished``, which takes any signal for Ctrl-C."""
        if signal := self._judge.ended_by(node):
            self._session.worker_errordown(node, f"ended by {signal}")
        else:
            self._finish(node)

    def _collected(self, node: Any, ids: Sequence[str]) -> None:
        """Stand in for ``DSession.worker_collectionfinish``.

        pytest-xdist takes the number of items that the last worker has collected for the run's. A
        run of 40 items then ends as one without items (exit code 5) if a host has none of them.
        """
        known = self._session._session.testscollected
        self._collect(node, ids)
        self._session._session.testscollected = max(known, len(ids))

    def _reported(self, node: Any, rep: pytest.TestReport) -> None:
        """Stand in for ``DSession.worker_testreport``, which counts every report."""
        if not self._judge.excuses(node, rep.nodeid):
            self._report(node, rep)

    def _replace_node(self, node: Any) -> Any:
        """Stand in for ``DSession._clone_node``, which cannot fail."""
        self._session._active_nodes.discard(None)
        clone = self._cloned(node) if self._judge.may_restart(node) else None
        if clone is None:
            self._judge.lost_for_good()
        return clone

    def _cloned(self, node: Any) -> Any:
        manager = self._session.nodemanager
        self._judge.prepare(node)
        spec = copy.copy(node.gateway.spec)
        spec.id = None
        manager.group.allocate_id(spec)
        clone = self._start_node(spec, self._session.queue.put)
        if clone is not None:
            self._session._active_nodes.add(clone)
        return clone

    def _start_node(self, spec: Any, putevent: Callable[..., object]) -> Any:
        """Stand in for ``NodeManager.setup_node``, which raises if a host cannot be reached."""
        from execnet import HostNotFound, RemoteError

        try:
            return self._setup(spec, putevent)
        except (OSError, EOFError, AssertionError, HostNotFound, RemoteError) as error:
            self._judge.unreachable(spec, error)
            return None
