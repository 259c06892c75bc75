"""Logs of TVM's auto-scheduler (Ansor): data, never code. Needs no TVM.

A log has one JSON object a line: ``i`` holds the task (workload key, target, ...) and the state
(the steps of the schedule), ``r`` the costs in seconds, an error number, how long the trial took
and when it ended, ``v`` the format's version (TVM v0.12, src/auto_scheduler/measure_record.cc).
TVM has dropped the auto-scheduler, so what trials took can be read, and no kernel rebuilt.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from pytest_gpuenergy.record.amounts import AboveZero
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.json_input import FormError, decode, read_bytes, read_unpacked
from pytest_gpuenergy.tvm.record_form import compact, is_failed

_WHAT = "log"
_LARGEST_BYTES = 256 << 20


class _Ansor(Struct):
    """What every line has."""

    i: Any
    r: Any


class _Line(Struct):
    """The task, of which the workload key comes first, and the state; what was measured."""

    i: tuple[list[Any], list[Any]]
    r: tuple[list[AboveZero], int, Any, Any]


@dataclass(frozen=True)
class AnsorTrial:
    """One trial of a search.

    Attributes:
        line: its line in the log, from 1.
        workload_key: the function that was tuned with its arguments, as JSON text, or a hash.
        state: stages and steps of the schedule, as JSON text: equal for equal schedules.
        costs_s: its measured times in seconds.
        error_no: 0 when it compiled and ran.
    """

    line: int
    workload_key: str
    state: str
    costs_s: tuple[float, ...]
    error_no: int

    @property
    def failed(self) -> bool:
        """Whether the trial failed (the auto-scheduler writes a cost of 1e10 s as well)."""
        return self.error_no != 0 or not self.costs_s or is_failed(self.costs_s)

    @property
    def time_ms(self) -> float:
        """The mean of the measured times, by which the auto-scheduler ranks, in ms."""
        return 1e3 * sum(self.costs_s) / len(self.costs_s)


def load_ansor(path: Path) -> tuple[AnsorTrial, ...]:
    """The trials of a log of the auto-scheduler. It may be compressed (``.gz``, ``.xz``).

    Raises:
        InputError: the file is missing, damaged, or something else.
    """
    trials = []
    for line, text in data_lines(read_unpacked(path, _WHAT, _LARGEST_BYTES)):
        try:
            trials.append(_trial(line, decode(text, _Line, "the line")))
        except FormError as error:
            raise InputError(
                f"Line {line} of the {_WHAT} {path} cannot be used, because {error}: remove that "
                "line if a search was interrupted there, or else name a log that TVM's "
                "auto-scheduler wrote."
            ) from None
    return tuple(trials)


def data_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbers, from 1, and contents of the lines that TVM reads: no empty ones, no comments."""
    for line, text in enumerate(io.BytesIO(content), start=1):
        if text.strip() and text[:1] not in (b"#", b" "):
            yield line, text


def refuse_ansor(path: Path) -> None:
    """See that the file ``path`` is no log of the auto-scheduler.

    Raises:
        InputError: it is one, so that no kernel can be made of it.
    """
    try:
        content = read_bytes(path, _WHAT, _LARGEST_BYTES)
        decode(next(data_lines(content), (0, b""))[1], _Ansor)
    except (InputError, FormError):
        return
    raise InputError(
        f"{path} is a log of TVM's auto-scheduler (Ansor), whose kernels cannot be rebuilt "
        "because TVM has dropped it: see its trials with 'gpuenergy kernels sample', or search "
        "again with 'gpuenergy tune'."
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
