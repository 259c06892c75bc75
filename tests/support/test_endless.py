"""Python code that does not end."""

from __future__ import annotations

import threading

import pytest

from pytest_gpuenergy.support.endless import EndlessError, ended_after


def test_a_loop_without_an_end_is_ended() -> None:
    with pytest.raises(EndlessError), ended_after(0.01):
        sum(1 for _ in iter(int, 1))


def test_it_is_ended_in_its_own_thread() -> None:
    ended = []

    def work() -> None:
        try:
            with ended_after(0.01):
                sum(1 for _ in iter(int, 1))
        except EndlessError:
            ended.append(threading.get_ident())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [thread.ident]


def test_what_ends_in_time_is_left_alone_and_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with ended_after(60.0):
        pass
    with pytest.raises(ValueError, match="its own"), ended_after(60.0):
        raise ValueError("its own")
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert threading.active_count() <= before
