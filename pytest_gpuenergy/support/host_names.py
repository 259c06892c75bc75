"""The name of this host, real or emulated."""

from __future__ import annotations

import os
import socket

EMULATED_HOST = "GPUENERGY_EMULATED_HOST"
"""The variable with the host that a process's emulated GPUs belong to."""

FLEET_GPU = "GPUENERGY_FLEET_GPU"
"""The variable with the number of a fleet worker's GPU, among those that CUDA sees on its host."""


def emulated_host() -> str:
    """Return the name of the host that emulated GPUs belong to; empty if none has been set."""
    return os.environ.get(EMULATED_HOST, "")


def name_emulated_host() -> None:
    """Give this host emulated GPUs of its own, distinct from those of other hosts."""
    os.environ.setdefault(EMULATED_HOST, socket.gethostname())


def host_name(*, emulated: bool) -> str:
    """Return the name of this host or, for an emulated GPU, of the host it belongs to."""
    return (emulated and emulated_host()) or socket.gethostname()
