"""Logs of TVM's auto-scheduler (Ansor): data, never code. Needs no TVM.

A log has one JSON object per line: ``i`` holds the task (workload key, target, ...) and the state
(the steps of the schedule), ``r`` the costs in seconds, an error number, how long the trial took
and when it ended, ``v`` the format's version (TVM v0.12, src/auto_scheduler/measure_record.cc).
TVM has dropped the auto-scheduler, so the times of the trials can be read, but their kernels cannot
be rebuilt.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from pytest_gpuenergy.record import AboveZero
from pytest_gpuenergy.support import FormError, InputError, decode, read_bytes, read_unpacked
from pytest_gpuenergy.tvm.record_form import compact, is_failed

_WHAT = "log"
_LARGEST_BYTES = 256 << 20


class _Ansor(Struct):
    """The members of every line."""

    i: Any
    r: Any


class _Line(Struct):
    """The task, whose first part is the workload key, with the state; and what was measured."""

    i: tuple[list[Any], list[Any]]
    r: tuple[list[AboveZero], int, Any, Any]


@dataclass(frozen=True)
class AnsorTrial:
    """One trial of a search.

    Attributes:
        line: its line in the log, from 1.
        workload_key: the tuned function with its arguments, as JSON text, or a hash.
        state: stages and steps of the schedule, as JSON text: the same for equal schedules.
        costs_s: the measured times in seconds.
        error_no: 0 when it compiled and ran.
    """

    line: int
    workload_key: str
    state: str
    costs_s: tuple[float, ...]
    error_no: int

    @property
    def failed(self) -> bool:
        """Whether the trial failed; the auto-scheduler then also writes a cost of 1e10 s."""
        return self.error_no != 0 or not self.costs_s or is_failed(self.costs_s)

    @property
    def time_ms(self) -> float:
        """The mean of the measured times in ms, by which the auto-scheduler ranks trials."""
        return 1e3 * sum(self.costs_s) / len(self.costs_s)


def load_ansor(path: Path) -> tuple[AnsorTrial, ...]:
    """Read the trials in a log of the auto-scheduler, which may be compressed (``.gz``, ``.xz``).

    Raises:
        InputError: the file is missing, damaged, or something else.
    """
    trials = []
    for line, text in data_lines(read_unpacked(path, _WHAT, _LARGEST_BYTES)):
        try:
            trials.append(_trial(line, decode(text, _Line, "the line")))
        except FormError as error:
            raise InputError(
                f"Line {line} of the {_WHAT} {path} cannot be used, because {error}: remove the "
                "line if a search was interrupted there, otherwise name a log written by TVM's "
                "auto-scheduler."
            ) from None
    return tuple(trials)


def data_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that TVM reads, with their numbers from 1: neither empty nor comments."""
    for line, text in enumerate(io.BytesIO(content), start=1):
        if text.strip() and text[:1] not in (b"#", b" "):
            yield line, text


def refuse_ansor(path: Path) -> None:
    """Refuse a log of the auto-scheduler.

    Raises:
        InputError: ``path`` is one; its kernels cannot be rebuilt.
    """
    try:
        content = read_bytes(path, _WHAT, _LARGEST_BYTES)
        decode(next(data_lines(content), (0, b""))[1], _Ansor)
    except (InputError, FormError):
        return
    raise InputError(
        f"{path} is a log of TVM's auto-scheduler (Ansor), which TVM has dropped, so its kernels "
        "cannot be rebuilt: list its trials with 'gpuenergy kernels sample', or search again with "
        "'gpuenergy tune'."
    )


def key_parts(workload_key: str) -> list[Any]:
    """The function's name and its arguments; empty when the key is a hash."""
    try:
        return decode(workload_key, list[Any])
    except FormError:
        return []


def _trial(line: int, entry: _Line) -> AnsorTrial:
    task, state = entry.i
    costs_s, error_no, *_ = entry.r
    if not task or not isinstance(task[0], str):
        raise FormError("its task has no workload key")
    if not costs_s and not error_no:
        raise FormError("it has no costs, although the trial did not fail")
    return AnsorTrial(line, task[0], compact(state), tuple(costs_s), error_no)
