"""Sets limits and clocks through zeusd, the Zeus daemon that sets them for users who are not root.

Its interface is HTTP over a Unix socket (https://ml.energy/zeus/zeusd/, version 0.3 and later):
``GET /discover`` lists its GPUs, and
``POST /gpu/set_power_limit?gpu_ids=0&power_limit_mw=300000&block=true`` sets a limit;
``/gpu/set_gpu_locked_clocks`` with ``min_clock_mhz`` and ``max_clock_mhz`` locks the clocks, and
``/gpu/reset_gpu_locked_clocks`` unlocks them. Its GPU numbers are NVML indices in its own process,
which may differ from ours. Newer versions give the PCI address of each GPU; with older ones, its
indices count as ours if it sees as many GPUs as we do.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pytest_gpuenergy.devices import Gpu, deny_writes, printable_text
from pytest_gpuenergy.support import (
    InputError,
    SetpointError,
    SettingRefusedError,
    is_socket,
    parse,
    typed,
)

SOCKET_VARIABLE, TOKEN_VARIABLE = "ZEUSD_SOCK_PATH", "ZEUSD_TOKEN"
SOCKETS = ("/run/zeusd/zeusd.sock", "/var/run/zeusd.sock")
"""The sockets on which zeusd listens by default, newest version first."""

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20
_MAX_REASON = 200
_LATE = f"no complete answer within {_TIMEOUT_S:g} s"
_CONTROL = "gpu-control"
_OK, _FAILED = 200, 500


class ZeusdWriter:
    """Asks the daemon at a socket to write the settings of a GPU.

    Args:
        gpu: the GPU.
        path: the path of the socket.
        gpu_id: the daemon's number of the GPU.
    """

    def __init__(self, gpu: Gpu, path: Path, gpu_id: int) -> None:
        self._gpu = gpu
        self._path = path
        self._gpu_id = gpu_id

    @property
    def name(self) -> str:
        return f"zeusd ({self._path})"

    def check_power_limit(self, limit_mw: int) -> None:
        """Do nothing: zeusd cannot be asked beforehand."""

    def write_power_limit(self, limit_mw: int) -> None:
        self._write(
            f"set the power limit of {self._gpu.name} to {limit_mw / 1e3:g} W",
            "set_power_limit",
            power_limit_mw=limit_mw,
        )

    def check_clock_lock(self, clock_mhz: int) -> None:
        """Do nothing: zeusd cannot be asked beforehand."""

    def lock_clocks(self, clock_mhz: int) -> None:
        self._write(
            f"lock the SM clocks of {self._gpu.name} to {clock_mhz} MHz",
            "set_gpu_locked_clocks",
            min_clock_mhz=clock_mhz,
            max_clock_mhz=clock_mhz,
        )

    def unlock_clocks(self) -> None:
        self._write(f"unlock the SM clocks of {self._gpu.name}", "reset_gpu_locked_clocks")

    def _write(self, what: str, route: str, **amounts: int) -> None:
        deny_writes()
        query = urlencode({"gpu_ids": self._gpu_id, **amounts, "block": "true"})
        kind: type[SetpointError] = SettingRefusedError
        try:
            status, answer = _ask(self._path, "POST", f"/gpu/{route}?{query}")
            problem = None
            if status != _OK:
                try:
                    errors = parse(answer)["errors"]
                    answer = "; ".join(str(error) for error in errors.values())
                except (ValueError, KeyError, TypeError, AttributeError):
                    pass  # the whole text is the message
                reason = " ".join(answer.split())[:_MAX_REASON] or "without a reason"
                problem = f"HTTP {status}: {reason}"
            if status >= _FAILED:  # NVML may have failed after it was called
                kind = SetpointError
        except _NoAnswerError as error:
            problem, kind = str(error), SetpointError
        if problem is not None:
            raise kind(
                f"zeusd at {self._path} did not {what} ({problem}): see its log, for example with "
                "journalctl -u zeusd."
            )


def find_zeusd(gpu: Gpu) -> ZeusdWriter | str:
    """Return a writer through this machine's zeusd, or a clause that says why it cannot be used."""
    stated = os.environ.get(SOCKET_VARIABLE)
    paths = [Path(path) for path in ([stated] if stated else SOCKETS)]
    try:
        path = next(filter(is_socket, paths), None)
    except InputError as error:
        return str(error).rstrip(".")
    if path is None:
        return f"no zeusd at {' or '.join(map(str, paths))}"
    try:
        return _offered(gpu, path)
    except _NoAnswerError as error:
        return f"zeusd at {path} does not respond: {error}"


def _offered(gpu: Gpu, path: Path) -> ZeusdWriter | str:
    status, answer = _ask(path, "GET", "/discover")
    try:
        offer = parse(answer) if status == _OK else None
        if not isinstance(offer, dict):
            raise ValueError(answer)
        groups = [str(group) for group in offer["enabled_api_groups"]]
        gpu_id = _id_of(gpu, offer)
        locked = bool(offer.get("auth_required"))
    except (ValueError, KeyError, TypeError, OverflowError):
        return f"zeusd at {path} does not report what it offers: version 0.3 or later is needed"
    if _CONTROL not in groups:
        return f"zeusd at {path} runs without --enable {_CONTROL}"
    if gpu_id is None:
        return f"zeusd at {path} does not report which of its GPUs is {gpu.uuid}"
    if locked and _CONTROL not in _scopes(path):
        return f"zeusd at {path} requires a token with the scope {_CONTROL} in {TOKEN_VARIABLE}"
    return ZeusdWriter(gpu, path, gpu_id)


def pci_key(address: str) -> tuple[int, int, int]:
    """Return domain, bus and device of a PCI address, such as ``0000:18:00.0``.

    Raises:
        ValueError: the text is not a PCI address.
    """
    match = re.fullmatch(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.[0-7]", address)
    if match is None:
        raise ValueError(address)
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)


def _id_of(gpu: Gpu, offer: dict[str, Any]) -> int | None:
    """Return the daemon's number of ``gpu``, or None if it cannot be determined."""
    nvml = gpu.nvml
    try:
        if "gpus" in offer:
            here = pci_key(printable_text(nvml.nvmlDeviceGetPciInfo(gpu.handle).busId))
            for entry in offer["gpus"]:
                if pci_key(entry["pci_address"]) == here:
                    return typed(entry["id"], int, "id")
            return None
        index = int(nvml.nvmlDeviceGetIndex(gpu.handle))
        ids = [int(number) for number in offer["gpu_ids"]]
        return index if ids == list(range(nvml.nvmlDeviceGetCount())) else None
    except nvml.NVMLError:
        return None


def _scopes(path: Path) -> list[str]:
    """Return the scopes that the daemon grants our token."""
    status, answer = _ask(path, "GET", "/auth/whoami")
    try:
        return [str(scope) for scope in parse(answer)["scopes"]] if status == _OK else []
    except (ValueError, KeyError, TypeError):
        return []


class _NoAnswerError(Exception):
    """The daemon cannot be reached, or does not speak HTTP."""


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(path: Path, method: str, target: str) -> tuple[int, str]:
    """Return the status and body of the daemon's response, limited in total time and in size."""
    token = os.environ.get(TOKEN_VARIABLE)
    connection = _SocketConnection(path)
    late = threading.Event()

    def give_up() -> None:
        late.set()
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)

    # A socket's timeout is per read, so a daemon that sends byte by byte could block us for ever.
    timer = threading.Timer(_TIMEOUT_S, give_up)
    timer.daemon = True
    try:
        connection.connect()
        timer.start()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        content = answer.read(_MAX_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise _NoAnswerError(_LATE) from None
        reason = " ".join((str(error) or type(error).__name__).split())
        raise _NoAnswerError(reason[:_MAX_REASON]) from None
    finally:
        timer.cancel()
        connection.close()
    if late.is_set():
        raise _NoAnswerError(_LATE)
    if len(content) > _MAX_BYTES:
        raise _NoAnswerError(f"its answer is larger than {_MAX_BYTES >> 20} MiB")
    return answer.status, content.decode(errors="replace")
