"""Logs of TVM's auto-scheduler (Ansor): data, never code. Needs no TVM.

A log has one JSON object a line: ``i`` holds the task (workload key, target, ...) and the state
(the steps of the schedule), ``r`` the costs in seconds, an error number, how long the trial took
and when it ended, ``v`` the format's version (TVM v0.12, src/auto_scheduler/measure_record.cc).
TVM has dropped the auto-scheduler, so what trials took can be read, and no kernel rebuilt.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from pytest_gpuenergy.workloads.conv2d import Conv2d

LARGEST_SIZE = 10**9
"""No size of a convolution is larger; FLOPs of such sizes fit a float."""

_WHAT = "log"
_LARGEST_BYTES = 256 << 20
_SIZE = r"[0-9]{1,9}"
_STRIDE = rf"({_SIZE}|\({_SIZE}, ?{_SIZE}\))"
# In file names: N_1_H_272_..._strides_1_padding_1, or ..._strides_(1, 1)_padding_(1, 1).
_LABEL = re.compile(
    "_".join(f"{name}_({_SIZE})" for name in ("N", "H", "W", "CO", "CI", "KH", "KW"))
    + f"_strides_{_STRIDE}_padding_{_STRIDE}(?:_dilation_({_SIZE}))?(?:_groups_({_SIZE}))?(?![0-9])"
)
# Functions of nine arguments, in the order of Conv2d's; those of others mean other things.
_CONV2D_FUNCTIONS = ("conv2d", "conv2d_layer")


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


def conv2d_of_name(path: Path) -> Conv2d | None:
    """The convolution whose sizes the file's name tells; None when it does not."""
    match = _LABEL.search(path.name)
    if match is None:
        return None
    *sizes, dilation, groups = match.groups()
    if dilation or groups:  # only written where they are not 1
        sizes += [dilation or "1", groups or "1"]
    return _conv2d([_sizes(size) for size in sizes])


def conv2d_of_key(workload_key: str) -> Conv2d | None:
    """The convolution whose sizes the workload key tells; None when it does not."""
    try:
        function, *arguments = typed(parse(workload_key), list, "the key")
    except (FormError, ValueError):
        return None
    if function not in _CONV2D_FUNCTIONS or len(arguments) != 9:
        return None
    return _conv2d([part if type(part) is list else [part] for part in arguments])


def _sizes(text: str) -> list[int]:
    return [int(number) for number in text.strip("()").split(",")]


def _conv2d(arguments: Sequence[Sequence[object]]) -> Conv2d | None:
    """From numbers, of which each may also be a pair of equal ones, as strides often are."""
    numbers = []
    for values in arguments:
        if len(values) not in (1, 2) or values[0] != values[-1]:
            return None
        number = values[0]
        if type(number) is not int or number > LARGEST_SIZE:
            return None
        numbers.append(number)
    try:
        return Conv2d.of("conv2d", *numbers)
    except InputError:
        return None


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
