"""Serves a GPU to a search on another host: claims the GPU, and evaluates candidates on it.

`remote_gpu` has the interpreter of the GPU's host call `serve`. As in a search on its own host,
this process holds the GPU and its settings, and another process, which may die, runs the
candidates. When the input ends, the search is done or gone. This process then restores the settings
and ends, whatever it is doing.
"""

from __future__ import annotations

import io
import os
import signal
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import LOCK_WAIT_S, Evaluation, GpuWorker, Settings, Station, claim
from pytest_gpuenergy.fleet.gpu_messages import (
    BEAT,
    INPUTS,
    MARK,
    PREPARE,
    Answer,
    Beaten,
    Failed,
    Message,
    Ready,
    Started,
    Told,
    Unfit,
    read_file,
    read_request,
)
from pytest_gpuenergy.fleet.heartbeat import HeardInput, Watch, hang_up, takes_more
from pytest_gpuenergy.fleet.probe import other_version, own_gpu, own_version
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import (
    DeviceError,
    GpuEnergyError,
    KernelFault,
    Worker,
    disk_folder,
    encode,
    error_message,
    host_name,
    name_emulated_host,
)
from pytest_gpuenergy.tuning import StationConfirmer, TimingTask

_RESTS_WITHIN_S = 120.0


def serve() -> None:
    """Serve the search at the other end of this process's input and output until it ends.

    The first request has a dictionary: ``version``, that of the search; ``device``, the value of
    ``--gpu-device``; ``powercap``, ``smclock`` and ``allow_clocks``, see `Settings`; and
    ``silence_s``, the time after which this process ends if it hears nothing. Sends `Ready`, then
    `Started` or `Unfit`, then an answer to each request.
    """
    pipes = _Pipes()
    name_emulated_host()
    with suppress(KeyboardInterrupt), ExitStack() as stack:  # the end of the input interrupts this
        folder = stack.enter_context(disk_folder())
        pipes.send(Ready())
        first = read_request(pipes.input)
        if first is None:
            return
        (request,) = first[1]
        pipes.watch(request["silence_s"])
        listener = _Listener(pipes, folder)
        listener.start()
        try:
            gpu = listener.gpu = _claim_gpu(stack, pipes, request, folder)
        except (GpuEnergyError, OSError) as error:
            pipes.send(Unfit(error_message(error)))
            return
        pipes.send(gpu.described())
        while True:
            pipes.send(gpu.answer(*listener.requests.get()))


def _claim_gpu(
    stack: ExitStack, pipes: _Pipes, request: dict[str, Any], folder: Path
) -> _ServedGpu:
    """Claim the GPU that the environment names, until the stack is closed.

    Raises:
        GpuEnergyError, OSError: It cannot be used.
    """
    if request["version"] != own_version():
        raise DeviceError(other_version(own_version(), request["version"]))
    settings = Settings(request["powercap"], request["smclock"], request["allow_clocks"])
    spec = request["device"]
    gpu = own_gpu(spec, capping=settings.writes)
    device = stack.enter_context(open_device(spec, index=gpu.index))
    station = claim(
        stack, device, settings, lambda text: pipes.send(Told(text)), lock_wait_s=LOCK_WAIT_S
    )
    worker = GpuWorker.process(device, spec, gpu.index)
    stack.callback(worker.retire)
    return _ServedGpu(pipes, station, worker, folder)


class _Pipes:
    """The pipes to the search; everything else that is printed goes to the standard error.

    Attributes:
        input: The stream of requests.
    """

    def __init__(self) -> None:
        self._pieces = HeardInput(os.dup(0))
        self.input = io.BufferedReader(self._pieces)
        self._output = os.dup(1)
        self._sending = threading.Lock()
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 -- for its descriptor
            os.dup2(nothing.fileno(), 0)

    def send(self, message: Message) -> None:
        """Send a message. A search that is gone is noticed at the end of the input, not here."""
        rest = b"%s%s\n" % (MARK, encode(message))
        with self._sending, suppress(OSError):
            while rest:
                rest = rest[os.write(self._output, rest) :]

    def watch(self, silence_s: float) -> None:
        """Interrupt this process once it has heard nothing for ``silence_s``."""
        self._pieces.watch(Watch(self._end, silence_s))

    def answer_beat(self) -> None:
        """Answer a beat, unless that would wait for a reader."""
        if takes_more(self._output):
            self.send(Beaten())

    def _end(self) -> None:
        hang_up(self._output)
        os.kill(os.getpid(), signal.SIGTERM)


class _Listener(threading.Thread):
    """Receives requests, also while another is answered, and interrupts the process at their end.

    Attributes:
        requests: The requests to be answered.
        gpu: The claimed GPU, which compiles kernels ahead; None until it is claimed.
    """

    def __init__(self, pipes: _Pipes, folder: Path) -> None:
        super().__init__(daemon=True)
        self.requests: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self.gpu: _ServedGpu | None = None
        self._pipes = pipes
        self._folder = folder

    def run(self) -> None:
        try:
            while (request := read_request(self._pipes.input)) is not None:
                name, arguments = request
                if name == INPUTS:
                    self._take_inputs(*arguments)
                elif name == BEAT:
                    self._pipes.answer_beat()
                elif name == PREPARE:
                    if self.gpu is not None:
                        self.gpu.device.prepare(*arguments)
                else:
                    self.requests.put(request)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def _take_inputs(self, name: str, size: int) -> None:
        """Store the inputs of a workload, and delete those of the previous one."""
        problem = ""
        with suppress(OSError):
            for old in self._folder.iterdir():
                old.unlink()
        try:
            read_file(self._pipes.input, self._folder / name, size)
        except OSError as error:
            problem = error_message(error)
        if self.gpu is not None:
            self.gpu.problem = problem


class _ServedGpu:
    """Answers requests about a claimed GPU.

    Args:
        pipes: The pipes to the search.
        station: The claimed GPU.
        worker: The process of the GPU, which times candidates.
        folder: The folder of the inputs.

    Attributes:
        device: The claimed GPU.
        problem: Why the inputs could not be stored; empty if they were.
    """

    def __init__(self, pipes: _Pipes, station: Station, worker: Worker, folder: Path) -> None:
        self.device: Device = station.device
        self.problem = ""
        self._worker = worker
        self._folder = folder
        self._confirm = StationConfirmer(station, lambda text: pipes.send(Told(text)))

    def described(self) -> Started:
        """Return the description of the GPU for the search."""
        device, enforced = self.device, enforced_setpoint(self.device)
        try:
            cores = int(device.nvml.nvmlDeviceGetNumGpuCores(device.handle))
        except device.nvml.NVMLError:
            cores = None
        return Started(
            host_name(emulated=device.emulated),
            device.uuid,
            device.name,
            device.architecture,
            device.emulated,
            device.describe(),
            cores,
            enforced.power_limit_w,
            enforced.sm_clock_mhz,
        )

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Message:
        """Return the answer to a request, which may be that it has failed."""
        try:
            if name == "run":
                return Answer(self._run_task(*arguments))
            if name == "energy_mj":
                return Answer(self._energy_mj())
            if name == "rest":
                self._rest()
            if name == "confirm":
                self._rest()
                kernel, workload, energy = arguments
                return Answer(self._confirm(kernel, workload, energy=energy))
        except (GpuEnergyError, OSError) as error:
            return Failed.of(error)
        return Answer()

    def _run_task(self, task: TimingTask, timeout_s: float | None) -> Evaluation:
        if self.problem:
            raise DeviceError(self.problem)
        try:
            self.device.compile(task.job.kernel)  # into the cache that the other process shares
        except KernelFault as fault:
            return Evaluation(outcome=fault.outcome, message=str(fault), gpu=self.device.uuid)
        task = replace(task, inputs=self._folder / task.inputs.name)
        result: Evaluation = self._worker.call("run", task, timeout_s=timeout_s)
        return result

    def _rest(self) -> None:
        with suppress(DeviceError):  # a process that has died keeps no context
            if self._worker.pid is not None:
                self._worker.call("rest", timeout_s=_RESTS_WITHIN_S)

    def _energy_mj(self) -> float | None:
        device = self.device
        if device.emulated:  # its candidates run on cards of their own
            return None
        try:
            return float(device.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle))
        except device.nvml.NVMLError:
            return None
