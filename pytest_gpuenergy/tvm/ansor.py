"""Logs of TVM's auto-scheduler (Ansor): data, never code. Needs no TVM.

A log has one JSON object a line: ``i`` holds the task (workload key, target, ...) and the state
(the steps of the schedule), ``r`` the costs in seconds, an error number, how long the trial took
and when it ended, ``v`` the format's version (TVM v0.12, src/auto_scheduler/measure_record.cc).
TVM has dropped the auto-scheduler, so what trials took can be read, and no kernel rebuilt.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.json_input import (
    FormError,
    member,
    parse,
    positive,
    read_unpacked,
    typed,
)
from pytest_gpuenergy.tvm.record_form import is_failed

_WHAT = "log"
_LARGEST_BYTES = 256 << 20


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
            trials.append(_trial(line, parse(text)))
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


def refuse_ansor(path: Path, content: bytes) -> None:
    """See that the file ``path``, which holds ``content``, is no log of the auto-scheduler.

    Raises:
        InputError: it is one, so that no kernel can be made of it.
    """
    _, text = next(data_lines(content), (0, b""))
    try:
        value = parse(text)
    except FormError:
        return
    if type(value) is dict and {"i", "r"} <= value.keys():
        raise InputError(
            f"{path} is a log of TVM's auto-scheduler (Ansor), whose kernels cannot be rebuilt "
            "because TVM has dropped it: see its trials with 'gpuenergy kernels sample', or search "
            "again with 'gpuenergy tune'."
        )


def key_parts(workload_key: str) -> list[Any]:
    """The function's name and its arguments; empty when the key is a hash."""
    try:
        return typed(parse(workload_key), list, "the key")
    except FormError:
        return []


def _trial(line: int, value: object) -> AnsorTrial:
    entry = typed(value, dict, "it")
    measured = member(entry, "i", list)
    if len(measured) != 2:
        raise FormError("'i' is no pair of a task and a state")
    task = typed(measured[0], list, "the task")
    if not task:
        raise FormError("the task is empty")
    result = member(entry, "r", list)
    if len(result) != 4:
        raise FormError("'r' is no list of costs, error number, duration and time stamp")
    costs, error_no = typed(result[0], list, "the costs"), typed(result[1], int, "the error number")
    if not costs and not error_no:
        raise FormError("it has no costs, although the trial did not fail")
    return AnsorTrial(
        line=line,
        workload_key=typed(task[0], str, "the workload key"),
        state=json.dumps(typed(measured[1], list, "the state"), separators=(",", ":")),
        costs_s=tuple(positive(cost, "a cost") for cost in costs),
        error_no=error_no,
    )
