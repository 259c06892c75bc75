"""Which processes on a card are foreign, also where its driver numbers them otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.energy import ProcessWatch, cuda_process_ids

Repeat = Callable[..., AbstractContextManager[Repeater]]
OURS, THEIRS, OTHER = 11, 4242, 77


@dataclass
class Card:
    """A card that lists the processes of the test, with a worker of ours on it."""

    listed: set[int] = field(default_factory=set)
    processes: frozenset[int] = frozenset({OURS})
    emulated: bool = False
    handle: int = 0

    @property
    def nvml(self) -> Any:
        def running(_handle: int) -> list[SimpleNamespace]:
            return [SimpleNamespace(pid=pid) for pid in self.listed]

        return SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=running, NVMLError=RuntimeError)


def watch(card: Card, *, same_pids: bool) -> ProcessWatch:
    device: Any = card  # as much of a device as is watched
    return ProcessWatch(device, same_pids=same_pids)


def test_processes_of_others_are_foreign(device, repeat):
    ours = ProcessWatch(device)
    with repeat() as repeater:
        repeater.start()
        assert cuda_process_ids(device) == {os.getpid()}
        assert ours.foreign_processes() == set()
        device.inject("foreign_process", {"pid": THEIRS})
        assert ours.foreign_processes() == {THEIRS}
        repeater.stop()


def test_a_card_that_lists_no_processes_has_no_foreign_ones(device):
    device.inject("foreign_process", {"pid": THEIRS})
    device.inject("processes", "not_supported")
    assert ProcessWatch(device).foreign_processes() == set()


def test_a_foreign_process_that_was_there_at_the_start_is_one():
    card = Card({THEIRS})
    ours = watch(card, same_pids=True)
    card.listed.add(OURS)
    assert ours.foreign_processes() == {THEIRS}


@pytest.mark.parametrize("at_start", [set(), {OTHER}])
def test_in_a_container_the_process_that_came_with_the_worker_is_ours(at_start):
    card = Card(set(at_start), processes=frozenset())
    ours = watch(card, same_pids=False)
    card.processes = frozenset({OURS})
    card.listed |= {90_011}  # the host's number of our worker
    assert ours.foreign_processes() == at_start
    card.listed |= {THEIRS}
    assert ours.foreign_processes() == {THEIRS} | at_start


def test_in_a_container_a_new_worker_has_a_new_number():
    card = Card()
    ours = watch(card, same_pids=False)
    card.listed = {90_011}
    assert ours.foreign_processes() == set()
    card.listed, card.processes = {90_012}, frozenset({OURS + 1})
    assert ours.foreign_processes() == set()
    card.listed |= {THEIRS}
    assert ours.foreign_processes() == {THEIRS}


def test_in_a_container_the_next_worker_comes_while_one_is_on_the_card():
    card = Card({OTHER}, processes=frozenset())
    ours = watch(card, same_pids=False)
    for number in range(3):
        card.listed = {OTHER, 90_011 + number}
        card.processes = frozenset({OURS + number})
        assert ours.foreign_processes() == {OTHER}
        card.listed |= {90_012 + number}
        card.processes |= {OURS + number + 1}
        assert ours.foreign_processes() == {OTHER}
    card.listed |= {THEIRS}
    assert ours.foreign_processes() == {OTHER, THEIRS}


def test_in_a_container_callables_are_run_by_this_process_beside_a_worker():
    card = Card({90_011})
    ours = watch(card, same_pids=False)
    card.listed |= {90_012}
    card.processes |= {os.getpid()}
    assert ours.foreign_processes() == set()
    card.listed |= {THEIRS}
    assert ours.foreign_processes() == {THEIRS}


def test_in_a_container_a_context_of_ours_may_be_older_than_the_watch():
    card = Card({90_011}, processes=frozenset({os.getpid()}))
    ours = watch(card, same_pids=False)
    assert ours.foreign_processes() == set()
    card.listed |= {90_012}
    assert ours.foreign_processes() == {90_012}
    card.processes |= {OURS}
    assert ours.foreign_processes() == set()


def test_in_a_container_no_foreign_process_is_taken_for_a_process_without_a_context():
    card = Card(processes=frozenset())
    ours = watch(card, same_pids=False)
    card.listed = {THEIRS}
    assert ours.foreign_processes() == {THEIRS}


def test_a_context_of_this_process_that_is_not_the_primary_one_is_ours():
    card = Card(processes=frozenset())
    ours = watch(card, same_pids=True)
    card.listed = {os.getpid(), THEIRS}
    assert ours.foreign_processes() == {THEIRS}


def test_in_a_container_two_that_came_at_once_are_doubtful():
    card = Card()
    ours = watch(card, same_pids=False)
    card.listed = {90_011, THEIRS}
    assert ours.foreign_processes() == {90_011, THEIRS}


def test_a_container_whose_driver_translates_numbers_is_like_none():
    card = Card()
    ours = watch(card, same_pids=False)
    card.listed = {OURS, THEIRS}
    assert ours.foreign_processes() == {THEIRS}
