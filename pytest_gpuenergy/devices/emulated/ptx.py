"""Inline PTX that the host can do without, or replace; all other is refused."""

from __future__ import annotations

import re

CANNOT = "cannot run on the emulated GPU"
"""In every message about CUDA text that the host cannot run."""

# TVM leaves these behind where it lowers an asynchronous copy synchronously: nothing to wait for.
_IGNORED = re.compile(r"cp\.async\.(commit_group|wait_all|wait_group\s+(\d+|%\d+))\s*;?\s*")
_SPECIAL = re.compile(
    r"mov\.[usb](?:32|64)\s+%0,\s*%%?(globaltimer|clock64|clock|laneid|warpid|smid)\s*;?\s*"
)
_OUTPUT = re.compile(r':\s*"=[rlh]"\s*\((?P<target>[^()]*(?:\([^()]*\)[^()]*)*)\)\s*(?:[:)]|$)')


def replacement_of(ptx: str, text: str) -> str | None:
    """The expression that stands for an assembler statement; None where there is none.

    Args:
        ptx: its instructions.
        text: the whole statement.
    """
    instructions = ptx.rstrip("; ").split(";")
    if ptx and all(_IGNORED.fullmatch(one.strip()) for one in instructions):
        return "((void)0)"
    special, output = _SPECIAL.fullmatch(ptx), _OUTPUT.search(text)
    if special and output:
        return f"(({output['target']}) = ::cuhost::cuhost_{special[1]}())"
    return None


def refusal_of(ptx: str) -> str:
    """Why the instructions are refused."""
    shown = re.sub(r'[\\"]', "", " ".join(ptx.split()))
    return f"{CANNOT}: inline PTX '{shown[:60]}{'...' if len(shown) > 60 else ''}'"
