"""Every use of pytest-xdist's private API; tested against its newest release.

Its session of workers ends with an internal error when a host cannot be reached, starts a worker
that cannot live again and again, starts no other in the place of one that is lost for good, and
counts what fails because a host has stopped working, and takes the items of one for those of all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import pytest


class Judge(Protocol):
    """Knows the workers."""

    def may_restart(self, node: Any) -> bool:
        """Whether a lost worker shall be replaced by one at the same place."""

    def ended_by(self, node: Any) -> str:
        """The signal by which somebody else has ended a worker; empty if nobody has."""

    def excuses(self, node: Any, node_id: str) -> bool:
        """Whether an item's failure on a worker does not count, because it runs once more."""

    def lost_for_good(self) -> None:
        """A lost worker is not replaced."""

    def prepare(self, node: Any) -> None:
        """The next worker that is started gets the GPU of this one."""

    def unreachable(self, spec: Any, error: BaseException) -> None:
        """No worker could be started at a place."""

    def usable(self) -> Iterable[Any]:
        """Workers at whose places another one could be started, the best first."""


class Nodes:
    """The workers of a session of pytest-xdist.

    Args:
        config: pytest's, of the controller, once pytest-xdist has made its list of workers to
            start and before it starts them.
        judge: knows them.
    """

    def __init__(self, config: pytest.Config, judge: Judge) -> None:
        self._session: Any = config.pluginmanager.getplugin("dsession")
        self._judge = judge
        manager = self._session.nodemanager
        self._setup: Callable[..., Any] = manager.setup_node
        manager.setup_node = self._started
        self._session._clone_node = self._replaced
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
        active.discard(None)  # in the place of one that could not be started
        return active

    def recruit(self, most: int) -> None:
        """Start more workers, at most so many, where there are some that can measure."""
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

        That one takes the number of items that the last worker has collected for the run's: a run
        of 40 items ends as one without any (exit code 5) if a host has none of them.
        """
        known = self._session._session.testscollected
        self._collect(node, ids)
        self._session._session.testscollected = max(known, len(ids))

    def _reported(self, node: Any, rep: pytest.TestReport) -> None:
        """Stand in for ``DSession.worker_testreport``, which counts every report."""
        if not self._judge.excuses(node, rep.nodeid):
            self._report(node, rep)

    def _replaced(self, node: Any) -> Any:
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
        clone = self._started(spec, self._session.queue.put)
        if clone is not None:
            self._session._active_nodes.add(clone)
        return clone

    def _started(self, spec: Any, putevent: Callable[..., object]) -> Any:
        """Stand in for ``NodeManager.setup_node``, which raises if a host is not reached."""
        from execnet import HostNotFound, RemoteError

        try:
            return self._setup(spec, putevent)
        except (OSError, EOFError, AssertionError, HostNotFound, RemoteError) as error:
            self._judge.unreachable(spec, error)
            return None
