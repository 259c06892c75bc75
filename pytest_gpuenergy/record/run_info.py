"""The identity of a run and of the GPUs that took part in it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from msgspec import Struct


class StationInfo(Struct, frozen=True):
    """A GPU that took part in a run, with its host: `Measurement.gpu_uuid` refers to it.

    ``power_limits_w`` are the least and the largest limit that the GPU takes, and the one it had
    when the run began; ``software`` has versions by name, among them the driver's.
    """

    gpu_uuid: str
    gpu_name: str
    host: str
    architecture: str
    emulated: bool
    power_limits_w: dict[str, float]
    software: dict[str, str]


class RunInfo(Struct, frozen=True):
    """The identity of a run: the host, GPU, software and options.

    ``git_revision`` ends in ``-dirty`` when tracked files differed from the commit. ``legacy`` is
    set when the figures were read from an older tool's output. ``cap_table_w`` lists the GPU's
    power caps in W, lowest first, which `Measurement.cap_index` counts from 1; it is empty when
    none of them was requested.
    """

    run_id: str
    started: str
    host: str
    gpu_name: str
    gpu_uuid: str
    architecture: str
    emulated: bool
    power_limits_w: dict[str, float]
    software: dict[str, str]
    options: dict[str, str]
    git_revision: str | None = None
    legacy: bool = False
    cap_table_w: tuple[float, ...] = ()

    @property
    def short_revision(self) -> str | None:
        """The revision with its hash shortened to twelve digits."""
        if self.git_revision is None:
            return None
        commit, dash, rest = self.git_revision.partition("-")
        return f"{commit[:12]}{dash}{rest}"

    @property
    def station(self) -> StationInfo:
        """The station on which this process measures."""
        return StationInfo(
            self.gpu_uuid,
            self.gpu_name,
            self.host,
            self.architecture,
            self.emulated,
            self.power_limits_w,
            self.software,
        )


def new_run_id() -> str:
    """Return a unique ID for a run; IDs sort by time of creation."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"
