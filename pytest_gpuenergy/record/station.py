"""The GPU and the host of one station of a run."""

from __future__ import annotations

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
