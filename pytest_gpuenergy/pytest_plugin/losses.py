"""Workers without which a run goes on: why, and what they have left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import pytest

from pytest_gpuenergy.control import run_uuids
from pytest_gpuenergy.pytest_plugin.worker import Worker
from pytest_gpuenergy.support import GpuEnergyError


class Losses:
    """Workers that cannot measure, were given up, or were lost with a setting."""

    def __init__(self) -> None:
        self._left_out: dict[str, str] = {}
        self._given_up: dict[str, str] = {}
        self._set: list[Worker] = []
        self._refused = False

    def leave_out(self, name: str, sentence: str) -> None:
        """Note why the run goes on without the worker called ``name``."""
        self._left_out[name] = sentence

    def misfits(self, workers: Collection[Worker], *, replaceable: bool) -> list[Worker]:
        """Workers that are to be left out, because an option fits others, but not them.

        Args:
            workers: all of the run.
            replaceable: whether others measure what one cannot.

        Raises:
            pytest.UsageError: the option fits none, or others cannot measure instead; raised once.
        """
        bad = [one for one in workers if one.bad_option and one.name not in self._left_out]
        if self._refused or not bad:
            return []
        if replaceable:
            if any(one.collected and not one.bad_option for one in workers):
                return bad
            if not all(one.collected or one.down for one in workers):
                return []  # it may fit those
        self._refused = True
        raise pytest.UsageError(" ".join(dict.fromkeys(one.unusable for one in bad)))

    def give_up(self, name: str, reason: str) -> None:
        """Note why a fleet has given up a worker, which it tells the user itself."""
        self._given_up[name] = reason

    def leave_set(self, worker: Worker) -> None:
        """Note that a worker was lost while its card was set to something."""
        self._set.append(worker)

    def mend(self, uuids: Collection[str]) -> None:
        """Forget the settings of GPUs that have been restored."""
        self._set = [
            one for one in self._set if one.station is None or one.station.gpu_uuid not in uuids
        ]

    @property
    def why_none(self) -> str:
        """Why no worker can measure, of those that are left out."""
        return "; ".join(self._left_out.values())

    def problem(self, left: int, *, completed: bool) -> str | None:
        """A sentence about what has not been done; None if everything has.

        Args:
            left: number of items that nobody has run.
            completed: whether any worker has completed an item.
        """
        told = dict.fromkeys([*self._left_out.values(), *self._given_up.values()])
        reasons = "; ".join(sentence.removesuffix(".") for sentence in told)
        if reasons and not completed:
            return f"Nothing was run, because no worker can measure: {reasons}"
        if not left:
            return None
        items = "1 item was" if left == 1 else f"{left} items were"
        reasons = reasons or "all that had collected them are lost"
        return (
            f"{items} not run, because no worker is left that could: {reasons} "
            "(--gpuenergy-resume runs them, over these hosts or others)"
        )

    def summary_lines(self) -> Iterator[str]:
        """The workers that were left out, and those that were lost with a setting."""
        for sentence in dict.fromkeys(self._left_out.values()):
            yield f"left out: {sentence}"
        here: set[str] = set()
        if self._set:
            with contextlib.suppress(GpuEnergyError, OSError):  # this machine may not even measure
                here = set(run_uuids())
        for worker in self._set:
            station = worker.station
            assert station is not None
            where = "here" if station.gpu_uuid in here else f"on {worker.host}"
            yield (
                f"worker {worker.title} was lost while {station.gpu_name} ({station.gpu_uuid}) "
                f"was set to {worker.setpoint}: the next run {where} restores it, and so does "
                "gpuenergy powercap restore"
            )
