"""The form of a MetaSchedule record, ``[trace, run_secs, target, args_info]``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.support import FormError, positive, shown, typed
from pytest_gpuenergy.tvm.target_form import check_target
from pytest_gpuenergy.tvm.trace_form import check_trace

FAILED_S = 1e9
"""A trial with a run time of this many seconds or more has failed (MetaSchedule writes 1e10)."""


def check_record(content: object) -> list[Any]:
    """``content`` if it is a MetaSchedule record of a search for CUDA and contains nothing else.

    TVM receives only records that pass this check.

    Raises:
        FormError: names what is wrong.
    """
    parts = check_form(content)
    (instructions, decisions), _, target, _ = parts
    check_trace(instructions, decisions)
    check_target(target)
    return parts


def check_form(content: object) -> list[Any]:
    """``content`` if it has the form of a MetaSchedule record of any search.

    Raises:
        FormError: names what is wrong.
    """
    parts = typed(content, list, "the record")
    if len(parts) != 4:
        raise FormError(f"the record has {len(parts)} parts instead of 4")
    trace, run_secs, target, args_info = parts
    trace = typed(trace, list, "the trace")
    if len(trace) != 2 or any(type(part) is not list for part in trace):
        raise FormError("the trace is not a pair of instructions and decisions")
    for number, instruction in enumerate(trace[0]):
        if type(instruction) is not list or len(instruction) != 4:
            raise FormError(f"instruction {number} of the trace is {shown(instruction)}")
    if not typed(run_secs, list, "run_secs"):
        raise FormError("run_secs is empty")
    for seconds in run_secs:
        positive(seconds, "a run time")
    if type(target) not in (dict, str):
        raise FormError(f"the target is {shown(target)}")
    for argument in typed(args_info, list, "args_info"):
        tensor_of(argument)
    return parts


def is_failed(run_secs: Sequence[float]) -> bool:
    """Whether these are the times of a trial that failed."""
    return max(run_secs) >= FAILED_S


def tensor_of(argument: object) -> tuple[str, tuple[int, ...]]:
    """Type and shape of an entry of ``args_info``.

    Raises:
        FormError: it is not a tensor.
    """
    parts = typed(argument, list, "an argument")
    if len(parts) != 3 or parts[0] != "TENSOR":
        raise FormError(f"an argument is {shown(argument)} instead of a tensor")
    sizes = typed(parts[2], list, "a tensor's shape")
    shape = tuple(typed(size, int, "a tensor's size") for size in sizes)
    return typed(parts[1], str, "a tensor's type"), shape


def compact(value: object) -> str:
    """A JSON value as text without blanks."""
    return json.dumps(value, separators=(",", ":"))
