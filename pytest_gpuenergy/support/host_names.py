"""What this host is called, and which of its GPUs a process is given."""

from __future__ import annotations

import os
import socket

EMULATED_HOST = "GPUENERGY_EMULATED_HOST"

FLEET_GPU = "GPUENERGY_FLEET_GPU"
"""Tells a worker of a fleet its GPU: the number among those of its host that CUDA sees."""


def emulated_host() -> str:
    """The host that this process shall be on as far as emulated GPUs are concerned, if any."""
    return os.environ.get(EMULATED_HOST, "")


def name_emulated_host() -> None:
    """Let the emulated GPUs of this host be others than those of other hosts, as real ones are."""
    os.environ.setdefault(EMULATED_HOST, socket.gethostname())


def host_name(*, emulated: bool) -> str:
    """The name of this host, or of the emulated one that an emulated GPU is on."""
    return (emulated and emulated_host()) or socket.gethostname()


def gpu_number(given: int | None) -> int:
    """The number of a process's GPU on its host.

    Args:
        given: by pytest-xdist's controller to its worker, which a fleet knows better; None: this
            process is no worker.
    """
    if given is None:
        return 0
    own = os.environ.get(FLEET_GPU, "")
    return int(own) if own.isascii() and own.isdecimal() else given
