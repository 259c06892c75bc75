"""GPUs of other hosts as a search has them: what is said between both, and what is left out."""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack
from typing import NoReturn

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.engine import HostLostError, Settings
from pytest_gpuenergy.fleet import (
    MAX_LOSSES,
    Failed,
    FoundSlots,
    Message,
    ProbedGpu,
    ProbedHost,
    RemoteGpu,
    Slot,
    claim_fleet,
    framed_request,
    own_version,
    parse_fleet,
    read_file,
    read_request,
    search_team,
    slots,
)
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
    KernelFault,
    SetpointError,
    WorkerDiedError,
    WorkerTimeoutError,
    decode,
    encode,
)

ERRORS = (DeviceError, InputError, SetpointError, WorkerDiedError, WorkerTimeoutError)


@given(st.one_of(*(st.builds(kind, st.text(min_size=1)) for kind in ERRORS)))
def test_an_error_arrives_as_it_was_raised(error):
    arrived = decode(encode(Failed.of(error)), Message)  # type: ignore[arg-type]
    assert isinstance(arrived, Failed)
    found = arrived.error()
    assert (type(found), str(found)) == (type(error), str(error))


def test_a_fault_of_a_kernel_keeps_its_outcome():
    found = Failed.of(KernelFault("timeout", "It hung.")).error()
    assert isinstance(found, KernelFault)
    assert (found.outcome, str(found)) == ("timeout", "It hung.")


@given(st.binary(max_size=40), st.data())
def test_requests_that_are_cut_short_are_none(content, data):
    frame = framed_request(("run", (content,)))
    assert read_request(io.BytesIO(frame)) == ("run", (content,))
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert read_request(io.BytesIO(frame[:cut])) is None


def test_a_file_that_cannot_be_written_is_read_all_the_same(tmp_path):
    stream = io.BytesIO(b"content" + framed_request(("rest", ())))
    with pytest.raises(OSError, match="No such file"):
        read_file(stream, tmp_path / "none" / "file", len(b"content"))
    assert read_request(stream) == ("rest", ())


STARTED = '{"type":"started","host":"h","uuid":"GPU-1","name":"N","architecture":"sm_90"'


def gpu_that(code: str, wait_s: float = 60.0) -> RemoteGpu:
    """A GPU whose process runs this code in the place of ours."""
    return RemoteGpu(Slot((sys.executable, "-c", code), "h1", "GPU-1"), {}, wait_s, print)


HEARS = "import sys; sys.stdin.buffer.read1()\n"


def says(*lines: str) -> str:
    """Code that hears something, prints a message, hears more, and so on, among other lines."""
    parts = [f"{HEARS}print('gpuenergy-gpu: ' + {line!r}, flush=True)\n" for line in lines]
    return "print('Welcome!', flush=True)\n" + "".join(parts)


READY = '{"type":"ready"}'
FOUND = f'{STARTED},"emulated":true,"versions":{{}}}}'
DONE = '{"type":"answer"}'


def test_lines_of_a_login_shell_are_ignored():
    gpu = gpu_that(says(READY, FOUND, DONE) + HEARS)
    gpu.start()
    assert gpu.claimed.name == "N"
    gpu.call("is_ready")
    gpu.retire()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('No such module.')", "h1: No such module."),
        ("raise SystemExit(3)", "h1: its command ended with exit code 3."),
        (says(READY, '{"type":"unfit","reason":"It is in MIG mode."}'), "h1: It is in MIG mode."),
        (says(READY, DONE), "h1: its answer is not understood."),
        (says("{}"), "h1: its answer cannot be read: type is missing."),
        (says(READY, FOUND.replace("GPU-1", "GPU-2")), "h1: its GPU GPU-1 is gone."),
    ],
)
def test_why_a_gpu_cannot_be_used(code, said):
    with pytest.raises(DeviceError) as caught:
        gpu_that(code).start()
    assert str(caught.value) == said


def test_a_process_that_does_not_start_in_time_is_ended():
    with pytest.raises(DeviceError, match=r"no process started within 0.01 s \(wait=SECONDS"):
        gpu_that("import signal; signal.pause()", wait_s=0.01).start()


def test_a_gpu_that_is_lost_again_and_again_is_given_up():
    gpu = gpu_that(f"{says(READY, FOUND)}{HEARS}raise SystemExit('The host burns.')")
    for _ in range(MAX_LOSSES + 1):
        with pytest.raises(HostLostError, match=r"was lost: The host burns\."):
            gpu.call("rest")
    with pytest.raises(DeviceError, match=f"was lost {MAX_LOSSES + 1} times"):
        gpu.call("rest")


def test_the_energy_of_a_gpu_that_is_lost_is_not_known():
    gpu = gpu_that(says(READY, FOUND, '{"type":"answer","value":5.0}'))
    gpu.start()
    assert gpu.energy_mj() == 5.0
    assert gpu.energy_mj() is None
    assert gpu.energy_mj() is None  # and nobody is started for it
    assert len(gpu.losses) == 1


def test_a_program_that_is_missing_is_named():
    with pytest.raises(DeviceError, match="no-such-program cannot be started"):
        RemoteGpu(Slot(("no-such-program",), "h1"), {}, 1.0, print).start()


def a_gpu(number: int, name: str, **unfit: str) -> ProbedGpu:
    return ProbedGpu(number, f"GPU-{name}-{number}", name, False, "580", **unfit)


def test_gpus_of_another_model_than_most_are_left_out(monkeypatch):
    found = [
        ProbedHost("h1", "", own_version(), (a_gpu(0, "A100"), a_gpu(1, "H200")), label="h1"),
        ProbedHost("h2", "", own_version(), (a_gpu(0, "H200"), a_gpu(1, "H200")), label="h2"),
        ProbedHost(
            "h3",
            "",
            own_version(),
            tuple(a_gpu(number, "A100", no_measuring="It is in MIG mode.") for number in range(3)),
            label="h3",
        ),
    ]
    started: list[str | None] = []

    class Refusing(RemoteGpu):
        def start(self) -> NoReturn:
            started.append(self._slot.uuid)
            raise DeviceError(f"{self.host}: it is in use.")

    monkeypatch.setattr(slots, "ask_hosts", lambda *_: found)
    monkeypatch.setattr(search_team, "RemoteGpu", Refusing)
    told: list[str] = []
    fleet, settings = parse_fleet("ssh:h1,h2,h3"), Settings("current", "current", False)
    with ExitStack() as stack, pytest.raises(InputError, match=r"--fleet .* it is in use"):
        claim_fleet(stack, fleet, "auto", settings, told.append, "--fleet")
    assert sorted(filter(None, started)) == ["GPU-H200-0", "GPU-H200-1", "GPU-H200-1"]
    reason = "the search is on H200, with which its figures cannot be compared."
    assert f"fleet: left out: h1, GPU 0 (A100): {reason}" in told
    assert "fleet: left out: h3, GPU 0 (A100): It is in MIG mode." in told


def test_gpus_that_are_set_unlike_most_are_left_out(monkeypatch):
    def slot(number: int, limit_w: int, name: str = "N") -> Slot:
        found = FOUND.replace("GPU-1", f"GPU-{number}").replace('"N"', f'"{name}"')
        code = says(READY, f'{found[:-1]},"power_limit_w":{limit_w}}}') + HEARS
        return Slot((sys.executable, "-c", code), f"h{number}")

    wanted = (slot(1, 500), slot(2, 700), slot(3, 700), slot(4, 500, "M"))
    monkeypatch.setattr(search_team, "find_slots", lambda *_, **__: FoundSlots(wanted))
    told: list[str] = []
    settings = Settings("current", "current", False)
    with ExitStack() as stack:
        fleet = parse_fleet("slurm: x4", "--fleet")
        found = claim_fleet(stack, fleet, "auto", settings, told.append, "--fleet")
        assert [device.uuid for device in found.devices] == ["GPU-2", "GPU-3"]
        assert found.team.working == ("GPU-2", "GPU-3")
    setting, model, fleet_line = told
    assert model.startswith("fleet: left out: h4 (GPU-4): the search is on N, with which its")
    assert setting.startswith("fleet: left out: h1 (GPU-1): it is at 500W and the search at 700W")
    assert fleet_line == "fleet: slurm: x4: 2 GPUs: h2 (1), h3 (1)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("k8s:x",), "--fleet 'k8s:x': give ray"),
        (("ssh:",), "--fleet 'ssh:': '' is not the name of a host"),
        (("ssh:h1", "--gpu-device", "0"), "--gpu-device 0 names a GPU of one host"),
        (("ssh:h1", "--gpu-device", "0,1"), "--gpu-device 0,1 names GPUs of one host, but a fleet"),
    ],
)
def test_a_fleet_that_is_not_understood_is_refused(tmp_path, capsys, words, said):
    what = ("tune", "--shape", "gemm:MNK=32", "--out", str(tmp_path), "--fleet")
    assert main([*what, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("no_ssh")
def test_a_fleet_without_a_usable_gpu_ends_with_the_reasons(tmp_path, capsys):
    what = ("tune", "--shape", "gemm:MNK=32", "--out", str(tmp_path), "--fleet", "ssh:h1")
    assert main(what) == 2
    assert "no GPU of this fleet can be used. h1: no route." in capsys.readouterr().err
