"""What one evaluation is asked to do, as a file that can be run alone."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    read_bytes,
    schema_version,
    shown,
)

CONTROL_VERSION = 1
"""``schema_version`` of the files written and read here."""

_LARGEST_BYTES = 16 << 20


class Control(Struct, frozen=True, kw_only=True):
    """``control.json``: the evaluation of one state.

    Attributes:
        spec: path of the kernel spec, from the folder of this file.
        state: what to evaluate.
        objective: what the search minimizes.
        seed: of the search.
        gpus: as ``--gpus`` takes it.
        place: of the GPU among them, from 0.
        powercap: the power limit, as ``--powercap`` takes it.
        smclock: the clock, as ``--smclock`` takes it.
        parent: the id of the state that the move was made to; None of the baseline.
        move: its name.
        what: the place and the parameters of the move.
        schema_version: of this file.
    """

    spec: str
    state: State
    objective: Metric
    seed: int
    gpus: str
    place: int = 0
    powercap: str
    smclock: str = "current"
    parent: str | None = None
    move: str = ""
    what: str = ""
    schema_version: int = CONTROL_VERSION


def read_control(path: Path) -> Control:
    """Read a ``control.json``.

    Raises:
        InputError: it cannot be read.
    """
    content = read_bytes(path, "control file", _LARGEST_BYTES)
    try:
        version = schema_version(content)
        if version != CONTROL_VERSION:
            raise FormError(
                f"its schema_version is {shown(version)}, but this gpuenergy reads "
                f"{CONTROL_VERSION}"
            )
        return decode(content, Control)
    except FormError as error:
        raise InputError(f"The control file {path} cannot be used, because {error}.") from None
