"""How text that the emulated GPU cannot run is refused."""

from __future__ import annotations

import re

CANNOT = "cannot run on the emulated GPU"
"""In every message about CUDA text that the host cannot run."""

_SHOWN = 60


class UnsupportedError(Exception):
    """PTX that the emulated GPU does not run; the argument is the instruction or says why."""


def refusal_of(ptx: str) -> str:
    """Why the instructions, or ``asm`` that is not understood, are refused."""
    if ptx.startswith("asm "):
        return f"{CANNOT}: {ptx}"
    shown = re.sub(r'[\\"]', "", " ".join(ptx.split()))
    return f"{CANNOT}: inline PTX '{shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''}'"
