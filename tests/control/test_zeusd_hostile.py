"""A zeusd that answers without end, drop by drop, too much, or nonsense."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from power_cards import PRIOR_MW, present_mw

from pytest_gpuenergy.control import ZeusdWriter, find_zeusd, zeusd as zeusd_module
from pytest_gpuenergy.devices import NvmlGpu
from pytest_gpuenergy.support import SetpointError

Answer = Callable[[socket.socket, threading.Event], None]
Serve = Callable[[Answer], Path]
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a daemon that gives one answer to every request."""
    stop, threads = threading.Event(), []
    server = socket.socket(socket.AF_UNIX)
    path = tmp_path / "z.sock"
    server.bind(str(path))
    server.listen()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(path))

    def start(answer: Answer) -> Path:
        def run() -> None:
            while not stop.is_set():
                with suppress(OSError), server.accept()[0] as connection:
                    connection.recv(1 << 16)
                    answer(connection, stop)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return path

    yield start
    stop.set()
    with socket.socket(socket.AF_UNIX) as last:
        last.connect(str(path))
    for thread in threads:
        thread.join()
    server.close()


def sends(content: bytes) -> Answer:
    return lambda connection, _: connection.sendall(content)


def repeats(first: bytes, more: bytes, pause_s: float) -> Answer:
    def answer(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(first)
        while not stop.wait(pause_s):
            connection.sendall(more)

    return answer


ENDLESS = {
    "a body": repeats(OK + b"\r\n", b" " * 65536, 0.0),
    "a body in chunks": repeats(
        OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n", 0.0
    ),
    "headers": repeats(OK, b"X-Y: " + b"z" * 1000 + b"\r\n", 0.0),
    "a header": repeats(OK, b"z" * 65536, 0.0),
    "a status": repeats(b"", b"H" * 65536, 0.0),
}
SLOW = {
    "a body": repeats(OK + b"Content-Length: 1000000\r\n\r\n", b" ", 0.01),
    "headers": repeats(OK, b"z", 0.01),
    "nothing": repeats(b"", b"", 0.01),
    "promises": repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
}
NONSENSE = {
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "infinite": b'{"enabled_api_groups": ["gpu-control"], "gpu_ids": [Infinity]}',
    "too large": b'{"enabled_api_groups": ["gpu-control"], "gpu_ids": [1e400]}',
    "many digits": b'{"enabled_api_groups": ["gpu-control"], "gpu_ids": [' + b"9" * 10_000 + b"]}",
    "bytes": b"\xff\xfe\x00" * 100,
    "text": b'"enabled_api_groups"',
    "nothing": b"",
}

LONG = b'{"errors": {"0": "' + b"x" * 9999 + b'"}}'


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_answer_is_given_up(real: NvmlGpu, serve: Serve, answer: Answer) -> None:
    path = serve(answer)
    assert str(find_zeusd(real)).startswith(f"zeusd at {path} does not respond: ")


@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
def test_a_slow_answer_is_given_up(
    real: NvmlGpu, serve: Serve, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(zeusd_module, "_TIMEOUT_S", 0.2)
    path = serve(answer)
    assert find_zeusd(real) == (f"zeusd at {path} does not respond: no complete answer within 10 s")


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_no_offer(real: NvmlGpu, serve: Serve, content: bytes) -> None:
    length = f"Content-Length: {len(content)}\r\n\r\n".encode()
    path = serve(sends(OK + length + content))
    assert find_zeusd(real) == (
        f"zeusd at {path} does not report what it offers: version 0.3 or later is needed"
    )


@pytest.mark.parametrize(
    "content", [*NONSENSE.values(), b'{"errors": {"0": "' + b"x" * 9999 + b'"}}']
)
def test_nonsense_after_a_write_is_one_short_sentence(
    real: NvmlGpu, serve: Serve, content: bytes
) -> None:
    length = f"Content-Length: {len(content)}\r\n\r\n".encode()
    path = serve(sends(b"HTTP/1.1 500 Oh\r\n" + length + content))
    with pytest.raises(SetpointError, match="did not set the power limit") as raised:
        ZeusdWriter(real, path, 0).write_power_limit(300_000)
    assert len(str(raised.value)) < 600
    assert "\n" not in str(raised.value)
    assert present_mw(real) == PRIOR_MW


@pytest.mark.parametrize("number", [True, 1.5, "0", None, [], {}])
def test_a_gpu_without_a_number_is_not_controlled(
    real: NvmlGpu, serve: Serve, number: object
) -> None:
    address = real.nvml.nvmlDeviceGetPciInfo(real.handle).busId
    address = address.decode() if isinstance(address, bytes) else address
    found = {
        "enabled_api_groups": ["gpu-control"],
        "gpus": [{"id": number, "pci_address": address}],
    }
    content = json.dumps(found).encode()
    serve(sends(OK + f"Content-Length: {len(content)}\r\n\r\n".encode() + content))
    assert "version 0.3 or later is needed" in str(find_zeusd(real))
