"""The messages between a search and the process of a GPU on another host.

The search sends pickled requests; it may run any code there anyway. The answers are data only:
lines of JSON, each after `MARK`, because a login shell may print lines of its own before them.
"""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import IO, Any, Literal

from msgspec import Struct, field

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.engine import Evaluation
from pytest_gpuenergy.support import (
    DeviceError,
    GpuEnergyError,
    InputError,
    KernelFault,
    Outcome,
    SetpointError,
    WorkerDiedError,
    WorkerTimeoutError,
    error_message,
)
from pytest_gpuenergy.tuning import Measured

MARK = b"gpuenergy-gpu: "

INPUTS, PREPARE, BEAT = "inputs", "prepare", "beat"
"""The requests whose answer nobody waits for: a file follows, compile kernels ahead, a beat."""

_LENGTH = struct.Struct(">Q")
_PIECE_BYTES = 1 << 20

Kind = Literal["died", "timeout", "kernel", "input", "setpoint", "device"]
_ERRORS: dict[Kind, type[GpuEnergyError]] = {
    "died": WorkerDiedError,
    "timeout": WorkerTimeoutError,
    "kernel": KernelFault,
    "input": InputError,
    "setpoint": SetpointError,
    "device": DeviceError,
}


class Ready(Struct, frozen=True, tag="ready"):
    """The process has started, and takes requests from now on."""


class Started(Struct, frozen=True, tag="started"):
    """The GPU has been claimed and set; see `Device` for the other attributes.

    Attributes:
        host: The name that the host has for itself.
        versions: The versions of drivers and libraries, see `Device.describe`.
        cores: The number of CUDA cores; None if the GPU does not report it.
        power_limit_w: The enforced power limit; None if the GPU does not report it.
        sm_clock_mhz: The clock that this process has locked; None if it has locked none.
    """

    host: str
    uuid: str
    name: str
    architecture: str
    emulated: bool
    versions: dict[str, str]
    cores: int | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None

    @property
    def setpoint(self) -> Setpoint:
        """The setpoint of the GPU."""
        return Setpoint(self.power_limit_w, sm_clock_mhz=self.sm_clock_mhz)

    @property
    def kind(self) -> tuple[str, bool, Setpoint]:
        """The model and setpoint; the figures of GPUs of the same kind can be compared."""
        return self.name, self.emulated, self.setpoint


class Unfit(Struct, frozen=True, tag="unfit"):
    """The GPU cannot be used, for the given reason."""

    reason: str


class Told(Struct, frozen=True, tag="told"):
    """A sentence for the user."""

    sentence: str


class Beaten(Struct, frozen=True, tag="beaten"):
    """The answer to a beat, at any time."""


class Answer(Struct, frozen=True, tag="answer"):
    """The result of a request, as JSON; see `RESULTS` for its type."""

    value: Any = None


RESULTS: dict[str, Any] = {
    "is_ready": None,
    "rest": None,
    "run": Evaluation,
    "confirm": Measured | None,
    "energy_mj": float | None,
}
"""The requests that are answered, with the types of their results."""


class Failed(Struct, frozen=True, tag="failed"):
    """The answer to a request that has failed."""

    kind: Kind
    message: str
    outcome: Outcome | None = field(default=None)

    @classmethod
    def of(cls, error: GpuEnergyError | OSError) -> Failed:
        """Return the answer for an error that was raised on the GPU's host."""
        kinds = (kind for kind, base in _ERRORS.items() if isinstance(error, base))
        outcome = error.outcome if isinstance(error, KernelFault) else None
        return cls(next(kinds, "device"), error_message(error), outcome)

    def error(self) -> GpuEnergyError:
        """Return the same error, to be raised in the search."""
        if self.kind == "kernel":
            return KernelFault(self.outcome or "runtime", self.message)
        return _ERRORS[self.kind](self.message)


Message = Ready | Started | Unfit | Told | Answer | Beaten | Failed
"""Any message from the process of a GPU."""


def framed_request(request: tuple[str, tuple[Any, ...]]) -> bytes:
    """Return the bytes of a request, as `read_request` reads them."""
    content = pickle.dumps(request)
    return _LENGTH.pack(len(content)) + content


def read_request(stream: IO[bytes]) -> tuple[str, tuple[Any, ...]] | None:
    """Read the next request; return None if there are no more."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = stream.read(size)
    if len(content) < size:
        return None
    request: tuple[str, tuple[Any, ...]] = pickle.loads(content)  # noqa: S301 -- the user's own
    return request


def read_file(stream: IO[bytes], path: Path, size: int) -> None:
    """Write the next ``size`` bytes of a stream to ``path``; they are read even if that fails.

    Raises:
        OSError: The file cannot be written.
    """
    left = size
    try:
        with path.open("wb") as file:
            while left and (piece := stream.read(min(left, _PIECE_BYTES))):
                left -= len(piece)
                file.write(piece)
    finally:
        while left and (piece := stream.read(min(left, _PIECE_BYTES))):
            left -= len(piece)
