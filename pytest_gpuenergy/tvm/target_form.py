"""The GPU that a record is for, as TVM describes it. Needs no TVM."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pytest_gpuenergy.support import FormError, shown

_LARGEST = (1 << 31) - 1
_MOST_KEYS = 16

_Check = Callable[[Any], bool]


def check_target(target: object) -> None:
    """Check that ``target`` describes a CUDA GPU and contains nothing else.

    Raises:
        FormError: what is wrong with it.
    """
    if isinstance(target, str):
        if not _TAG(target):
            raise FormError(f"the target is {shown(target)} instead of a GPU's, such as 'cuda'")
        return
    if type(target) is not dict:
        raise FormError(f"the target is {shown(target)}")
    _check_members({k: v for k, v in target.items() if k != "host"}, "the target", _GPU)
    if "host" in target:
        _check_members(target["host"], "the target's host", _HOST)


def _check_members(value: object, what: str, known: dict[str, _Check]) -> None:
    if type(value) is not dict:
        raise FormError(f"{what} is {shown(value)}")
    for key, part in value.items():
        if key not in known:
            raise FormError(f"{what} has {shown(key)}, which no search for CUDA writes")
        if not known[key](part):
            raise FormError(f"{what} has {shown(part)} as {key!r}")


def _text(pattern: str) -> _Check:
    compiled = re.compile(pattern, re.ASCII)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _size(value: object) -> bool:
    return type(value) is int and 0 < value <= _LARGEST


_TAG = _text(r"cuda|nvidia/[a-z0-9-]{1,64}")
_WORD = _text(r"[\w.+-]{0,64}")


def _words(value: object) -> bool:
    return type(value) is list and len(value) <= _MOST_KEYS and all(map(_WORD, value))


_HOST: dict[str, _Check] = {
    "kind": _text("llvm|c"),
    "keys": _words,
    "tag": _WORD,
    "mtriple": _WORD,
    "mcpu": _WORD,
}
_GPU: dict[str, _Check] = {
    "kind": _text("cuda"),
    "arch": _text(r"sm_\d{2,3}[af]?"),
    "keys": _words,
    "tag": _text(r"(?:nvidia/[a-z0-9-]{1,64})?"),
    **dict.fromkeys(
        (
            "l2_cache_size_bytes",
            "max_num_threads",
            "max_shared_memory_per_block",
            "max_threads_per_block",
            "registers_per_block",
            "thread_warp_size",
        ),
        _size,
    ),
}
