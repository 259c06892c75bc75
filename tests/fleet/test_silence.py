"""Connections that are cut without a word: neither side waits, and no power limit is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import has_ended, said_through

from pytest_gpuenergy.engine import HostLostError
from pytest_gpuenergy.fleet import BEAT, BEATS, RemoteGpu, Slot, Watch, framed_request, own_version

if TYPE_CHECKING:
    from conftest import Hosts

ITEMS = """
import os, signal
import pytest
from pathlib import Path

HOME = Path(os.environ["HOME"])

@pytest.mark.parametrize("number", range(2))
def test_item(number, powercap):
    if not (HOME / "once").exists():
        (HOME / "once").touch()
        (HOME.parent / "fifo").write_text(f"{os.getpid()} {os.getppid()}")
        ACTION
"""


def limit_w(state: Path) -> float:
    (file,) = (state / "emulated").glob("GPU-*.json")
    return float(json.loads(file.read_text())["limit_mw"]) / 1e3


@pytest.fixture
def warm_python() -> Path:
    """Give each process the parent that has started it, which is stopped."""
    return Path(sys.executable)


@pytest.fixture
def run_items(
    hosts: Hosts, pytester: pytest.Pytester, run_fleet: Callable[..., pytest.RunResult]
) -> Callable[..., pytest.RunResult]:
    """Run two items, of which the first one does something when it has told two process ids."""

    def run_them(action: str, at_first: Callable[[int, int], object]) -> pytest.RunResult:
        (hosts.project / "test_scale.py").unlink()
        pytester.makepyfile(test_item=ITEMS.replace("ACTION", action))
        hosts.add("h1")
        os.mkfifo(fifo := hosts.folder / "fifo")

        def listen() -> None:
            at_first(*map(int, said_through(fifo).split()))

        listener = threading.Thread(target=listen)
        listener.start()
        result = run_fleet(f"{hosts.text('h1')} silence=2", "--powercap", "1")
        listener.join()
        return result

    return run_them


@pytest.mark.slow
def test_a_worker_that_hears_nothing_restores_the_limit_and_ends(hosts, run_items):
    state = hosts.folder / "h1" / "state"
    seen: list[object] = []

    def wait_for_the_end(worker: int, relay: int) -> None:
        """What the worker hears comes through the relay, which is stopped; it keeps its pipes."""
        try:
            seen.append(limit_w(state))
            seen.append(has_ended(worker))
            seen.append(limit_w(state))
            seen.extend(state.glob("leases/*"))
        finally:
            os.kill(relay, signal.SIGCONT)

    stop = "os.kill(os.getppid(), signal.SIGSTOP); signal.pause()"
    result = run_items(stop, wait_for_the_end)
    assert seen == [200, True, 700]
    result.stdout.fnmatch_lines(["*node down: h1 was lost*", "replacing crashed worker *"])
    result.assert_outcomes(passed=2)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_worker_that_says_nothing_is_given_up_and_replaced(run_items):
    result = run_items("os.kill(os.getpid(), signal.SIGSTOP)", lambda *_: None)
    result.stdout.fnmatch_lines(["*node down: h1 was lost: it has not answered for 10 s."])
    result.assert_outcomes(passed=2)


@pytest.mark.slow
@pytest.mark.usefixtures("host_cache")
def test_a_gpu_of_a_search_that_is_cut_off_gets_its_limit_back(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUENERGY_STATE", str(tmp_path))
    asked = {
        "version": own_version(),
        "device": "emulated",
        "powercap": "300W",
        "smclock": "current",
        "allow_clocks": False,
        "silence_s": 1.0,
    }
    code = "from pytest_gpuenergy.fleet.gpu_server import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        beats, enough = process.stdin, threading.Event()

        def beat() -> None:
            while not enough.wait(0.1):
                beats.write(framed_request((BEAT, ())))
                beats.flush()

        beats.write(framed_request(("begin", (asked,))) + framed_request((BEAT, ())))
        beats.flush()
        beating = threading.Thread(target=beat)
        beating.start()
        try:
            said: set[str] = set()
            while "started" not in said:  # a loaded machine may take seconds to begin
                said.add(json.loads(process.stdout.readline().split(b": ", 1)[1])["type"])
        finally:
            enough.set()
            beating.join()
        assert said == {"ready", "beaten", "started"}
        assert limit_w(tmp_path) == 300
        assert has_ended(process.pid)
        assert limit_w(tmp_path) == 700
    assert not list(tmp_path.glob("leases/*"))


MARK = "gpuenergy-gpu: "
FOUND = (
    '{"type":"started","host":"h","uuid":"GPU-1","name":"N","architecture":"sm_90",'
    '"emulated":true,"versions":{}}'
)


@pytest.mark.slow
def test_a_gpu_of_a_search_that_says_nothing_is_lost():
    says = f"print('{MARK}' + line, flush=True)"
    code = (
        f"import signal\nfor line in ('{{\"type\":\"ready\"}}', '{FOUND}'): {says}\nsignal.pause()"
    )
    gpu = RemoteGpu(Slot((sys.executable, "-c", code), "h1", "GPU-1"), {}, 60.0, print, 0.1)
    with pytest.raises(HostLostError, match=r"was lost: it has not answered for 0\.5 s\."):
        gpu.call("rest")


def test_a_silence_begins_anew_with_every_sign(monkeypatch):
    periods: list[float] = []
    silent_after: list[int] = []
    watch = Watch(lambda: silent_after.append(len(periods)), silence_s=1.0)

    def wait(period_s: float) -> bool:
        periods.append(period_s)
        if len(periods) <= 60:
            watch.heard()
        return False

    monkeypatch.setattr(watch._stopping, "wait", wait)
    watch.run()
    assert silent_after == [60 + BEATS]
    assert sum(periods[60:]) == pytest.approx(1.0)
