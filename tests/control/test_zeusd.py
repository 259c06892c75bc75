"""Setting a power limit through zeusd, with one that the test runs on a Unix socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from power_cards import PRIOR_MW, as_real, present_mw
from zeusd_fake import Zeusd

from pytest_gpuenergy.control import (
    Lease,
    Setpoint,
    ZeusdWriter,
    find_zeusd,
    pci_key,
    recorded_uuids,
    zeusd as zeusd_module,
)
from pytest_gpuenergy.devices import NvmlGpu
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, EmulatedDevice
from pytest_gpuenergy.support import SetpointError

CAP = Setpoint(300.0)


@pytest.fixture
def four(real: NvmlGpu, runner: Any) -> Iterator[list[NvmlGpu]]:
    """Four cards; ``real`` is the first of them."""
    with EmulatedDevice(DEFAULT_PROFILE, 3, runner=runner) as last:
        nvml = as_real(last).nvml
        yield [
            real,
            *(
                NvmlGpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i), last.name, uuid, last.clock)
                for i, uuid in ((i, DEFAULT_PROFILE.uuid(i)) for i in (1, 2, 3))
            ),
        ]


@pytest.fixture
def zeusd(four: list[NvmlGpu], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zeusd]:
    """A daemon that numbers the GPUs in the opposite order."""
    with Zeusd(tmp_path / "zeusd.sock", four[::-1]) as daemon:
        monkeypatch.setenv("ZEUSD_SOCK_PATH", str(daemon.path))
        yield daemon


def writer_of(gpu: NvmlGpu) -> ZeusdWriter:
    writer = find_zeusd(gpu)
    assert isinstance(writer, ZeusdWriter)
    return writer


def test_the_request_is_the_one_zeusd_knows(four, zeusd):
    writer_of(four[1]).write_power_limit(300_000)
    assert zeusd.requests == [
        "POST /gpu/set_power_limit?gpu_ids=2&power_limit_mw=300000&block=true"
    ]


def test_clocks_are_locked_and_unlocked_by_its_routes(four, zeusd):
    lease = Lease(four[1], writer_of(four[1]))
    lease.set(Setpoint(sm_clock_mhz=1500))
    lease.restore()
    assert zeusd.requests == [
        "POST /gpu/set_gpu_locked_clocks?gpu_ids=2&min_clock_mhz=1500&max_clock_mhz=1500"
        "&block=true",
        "POST /gpu/reset_gpu_locked_clocks?gpu_ids=2&block=true",
    ]


@pytest.mark.parametrize(
    ("status", "left"), [(400, False), (403, False), (500, True)], ids=["bad", "denied", "failed"]
)
def test_a_lock_that_zeusd_refuses_leaves_a_record_only_if_it_may_have_been_set(
    real, zeusd, status, left
):
    zeusd.failure = (status, '{"errors": {"3": "NVML error: unknown"}}')
    lease = Lease(real, writer_of(real))
    with pytest.raises(
        SetpointError, match="did not lock the SM clocks of NVIDIA H200 to 1500 MHz"
    ):
        lease.set(Setpoint(sm_clock_mhz=1500))
    assert bool(recorded_uuids()) is left
    zeusd.failure = None
    lease.restore()
    assert recorded_uuids() == []


@pytest.mark.parametrize("index", range(4))
def test_only_the_selected_gpu_is_touched(four, zeusd, index):
    before = [present_mw(gpu) for gpu in four]
    lease = Lease(four[index], writer_of(four[index]))
    lease.set(CAP)
    assert [present_mw(gpu) for gpu in four] == [
        300_000 if place == index else limit_mw for place, limit_mw in enumerate(before)
    ]
    lease.restore()
    assert [present_mw(gpu) for gpu in four] == before
    assert zeusd.limits_mw == [300_000, before[index]]


def test_an_older_zeusd_numbers_gpus_as_nvml_does(four, zeusd):
    zeusd.gpus = four
    zeusd.discovery = {"gpus": None, "gpu_ids": [0, 1, 2, 3]}
    writer_of(four[2]).write_power_limit(300_000)
    assert [present_mw(gpu) for gpu in four] == [PRIOR_MW, 700_000, 300_000, 700_000]


@pytest.mark.parametrize(
    ("discovery", "reason"),
    [
        ({"gpus": None, "gpu_ids": [0, 1]}, "does not report which of its GPUs is GPU-"),
        ({"gpus": []}, "does not report which of its GPUs is GPU-"),
        ({"enabled_api_groups": ["gpu-read"]}, "runs without --enable gpu-control"),
        ({"enabled_api_groups": None}, "version 0.3 or later is needed"),
        ({"gpus": [{"id": 0}]}, "version 0.3 or later is needed"),
        ({"gpus": [{"id": 0, "pci_address": "here"}]}, "version 0.3 or later is needed"),
    ],
)
def test_a_zeusd_that_cannot_help_says_why(four, zeusd, discovery, reason):
    zeusd.discovery = discovery
    assert reason in str(find_zeusd(four[3]))


@pytest.mark.parametrize(
    ("token", "scopes", "works"),
    [
        ("secret", ["gpu-control"], True),
        ("secret", ["gpu-read"], False),
        ("guess", ["gpu-control"], False),
        (None, ["gpu-control"], False),
    ],
)
def test_a_zeusd_that_asks_for_a_token(real, zeusd, monkeypatch, token, scopes, works):
    zeusd.token = ("secret", scopes)
    if token is not None:
        monkeypatch.setenv("ZEUSD_TOKEN", token)
    found = find_zeusd(real)
    if not works:
        assert "requires a token with the scope gpu-control in ZEUSD_TOKEN" in str(found)
        return
    writer_of(real).write_power_limit(300_000)
    assert present_mw(real) == 300_000


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, '{"errors": {"3": "NVML error: unknown"}}', "HTTP 500: NVML error: unknown"),
        (403, "NVML error: no permission", "HTTP 403: NVML error: no permission"),
        (404, "", "HTTP 404: without a reason"),
    ],
)
def test_a_refusal_changes_nothing_and_is_told(real, zeusd, status, body, said):
    zeusd.failure = (status, body)
    writer = writer_of(real)
    with pytest.raises(SetpointError, match=rf"did not set .* to 300 W \({said}\): see its log"):
        Lease(real, writer).set(CAP)
    assert present_mw(real) == PRIOR_MW
    assert recorded_uuids() == []


def test_a_zeusd_that_is_stopped_meanwhile_leaves_the_record(real, tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "z"))
    with Zeusd(tmp_path / "z", [real]):
        lease = Lease(real, writer_of(real))
        lease.set(CAP)
    with pytest.raises(
        SetpointError, match=r"not restored to 450 W.* did not set .*Connection refused"
    ):
        lease.restore()
    assert recorded_uuids() == [real.uuid]


def test_it_is_looked_for_where_it_listens_by_itself(real, tmp_path, monkeypatch):
    monkeypatch.delenv("ZEUSD_SOCK_PATH")
    path = tmp_path / "zeusd.sock"
    monkeypatch.setattr(zeusd_module, "SOCKETS", (str(tmp_path / "not"), str(path)))
    assert find_zeusd(real) == f"no zeusd at {tmp_path}/not or {path}"
    with Zeusd(path, [real]):
        assert isinstance(find_zeusd(real), ZeusdWriter)


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31))
def test_a_pci_address_is_the_same_in_both_ways_of_writing(domain, bus, device):
    nvml, lspci = f"{domain:08X}:{bus:02X}:{device:02X}.0", f"{domain:04x}:{bus:02x}:{device:02x}.0"
    assert pci_key(nvml) == pci_key(lspci) == (domain, bus, device)


@given(st.text(max_size=20))
def test_what_is_no_pci_address_is_a_value_error(words):
    try:
        pci_key(words)
    except ValueError:
        return
    assert words.count(":") == 2


Answer = Callable[[socket.socket, threading.Event], None]
Serve = Callable[[Answer], Path]
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Return a function that starts a daemon with one answer to every request."""
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


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"220 smtp ready\r\n", "does not respond: "),
        (b"", "does not respond: "),
        (OK + b"Content-Length: 2\r\n\r\n[]", "version 0.3 or later"),
        (OK + b"Content-Length: 5\r\n\r\n<!doc", "version 0.3 or later"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "version 0.3 or later"),
    ],
)
def test_what_is_no_zeusd_is_not_used(real, serve, words, reason):
    serve(sends(words))
    assert reason in str(find_zeusd(real))


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_answer_is_given_up(real, serve, answer):
    path = serve(answer)
    assert str(find_zeusd(real)).startswith(f"zeusd at {path} does not respond: ")


@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
@pytest.mark.slow
def test_a_slow_answer_is_given_up(real, serve, monkeypatch, answer):
    monkeypatch.setattr(zeusd_module, "_TIMEOUT_S", 0.2)
    path = serve(answer)
    assert find_zeusd(real) == (f"zeusd at {path} does not respond: no complete answer within 10 s")


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_no_offer(real, serve, content):
    length = f"Content-Length: {len(content)}\r\n\r\n".encode()
    path = serve(sends(OK + length + content))
    assert find_zeusd(real) == (
        f"zeusd at {path} does not report what it offers: version 0.3 or later is needed"
    )


@pytest.mark.parametrize(
    "content", [*NONSENSE.values(), b'{"errors": {"0": "' + b"x" * 9999 + b'"}}']
)
def test_nonsense_after_a_write_is_one_short_sentence(real, serve, content):
    length = f"Content-Length: {len(content)}\r\n\r\n".encode()
    path = serve(sends(b"HTTP/1.1 500 Oh\r\n" + length + content))
    with pytest.raises(SetpointError, match="did not set the power limit") as raised:
        ZeusdWriter(real, path, 0).write_power_limit(300_000)
    assert len(str(raised.value)) < 600
    assert "\n" not in str(raised.value)
    assert present_mw(real) == PRIOR_MW


@pytest.mark.parametrize("number", [True, 1.5, "0", None, [], {}])
def test_a_gpu_without_a_number_is_not_controlled(real, serve, number):
    address = real.nvml.nvmlDeviceGetPciInfo(real.handle).busId
    address = address.decode() if isinstance(address, bytes) else address
    found = {
        "enabled_api_groups": ["gpu-control"],
        "gpus": [{"id": number, "pci_address": address}],
    }
    content = json.dumps(found).encode()
    serve(sends(OK + f"Content-Length: {len(content)}\r\n\r\n".encode() + content))
    assert "version 0.3 or later is needed" in str(find_zeusd(real))
