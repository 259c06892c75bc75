"""A kernel that is launched on an emulated card, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_gpuenergy.devices import Launches, Timeline
from pytest_gpuenergy.emulator.card import Card
from pytest_gpuenergy.emulator.faults import LAUNCH
from pytest_gpuenergy.emulator.governor import Demand
from pytest_gpuenergy.emulator.load import Load
from pytest_gpuenergy.emulator.owner import Owner
from pytest_gpuenergy.emulator.state import CardState
from pytest_gpuenergy.support import DeviceError, KernelFault

_FIRST_LAUNCH_NS = 20_000
# On an H200 a kernel of 19.4 us took 32.6 us when launched and timed singly. The time that a host
# takes for a launch is a guess.
_TIMED_SINGLY_S = 13e-6
_HOST_LAUNCH_S = 5e-6


def strike(state: CardState) -> None:
    """Let the next launch fail if a fault of launches, or of everything, is in force.

    Raises:
        KernelFault: it is.
    """
    error = state.struck_by(LAUNCH, always=True)
    if error is not None:
        raise KernelFault("runtime", f"The launch failed on the emulated GPU: {error}.")


class VirtualRepeater:
    """A `KernelRepeater` in virtual time: a load on the card that stands for the launches.

    Args:
        state: of the card.
        demand: of one run of the kernel.
        timeout_s: that a run may take.
        placements: see `Timeline`.
    """

    def __init__(self, state: CardState, demand: Demand, timeout_s: float, placements: int) -> None:
        self._state = state
        self._demand = demand
        self._timeout_s = timeout_s
        self._placements = placements
        self._running = False

    def start(self) -> None:
        """Put the load on the card.

        Raises:
            KernelFault: a fault strikes the launch.
            DeviceError: the card already runs a kernel.
        """
        strike(self._state)
        with self._state.change() as card:
            self._begin(card, self._demand)
            card.advance(card.now_ns + _FIRST_LAUNCH_NS)
        self._running = True

    def stop(self) -> Timeline:
        """Finish the batch under way and take the load off the card.

        Raises:
            KernelFault: a fault strikes, a run takes longer than it may, or another process took
                the load off the card.
            RuntimeError: it was not started.
        """
        if not self._running:
            raise RuntimeError("stop() without start()")
        self._running = False
        with self._state.change() as card:
            load = card.load
            if load is None or load.owner != Owner.me():
                raise KernelFault("runtime", "The emulated GPU lost the kernel that it ran.")
            run_s = load.marks[-1][2] / 1e9
            if run_s <= self._timeout_s:
                runs = load.batch_end(card.now_ns)
                while (end_ns := load.moment(runs)) > card.now_ns:
                    card.advance(min(end_ns, card.edge_ns))
            card.stop()
        strike(self._state)
        self._refuse(run_s, "One run takes")
        return replace(load.timeline(runs), placements=self._placements)

    def launch(self, count: int) -> Launches:
        """Launch singly; the host's launch rate limits how busy short kernels keep the card."""
        demand, idle_w = self._demand, self._state.profile.idle_w
        if demand.time_s < _HOST_LAUNCH_S:
            busy = demand.time_s / _HOST_LAUNCH_S
            power_w = idle_w + busy * (demand.power_w - idle_w)
            demand = replace(demand, time_s=_HOST_LAUNCH_S, power_w=power_w)
        strike(self._state)
        with self._state.change() as card:
            begin_ns = card.now_ns
            load = self._begin(card, demand)
            try:
                self._refuse(count * load.marks[0][2] / 1e9, f"{count} launches take")
                while (end_ns := load.moment(count)) > card.now_ns:
                    card.advance(min(end_ns, card.edge_ns))
            finally:
                card.stop()
        strike(self._state)
        gpu_s = (end_ns - begin_ns) / 1e9 + _TIMED_SINGLY_S
        return Launches(count, begin_ns / 1e9, end_ns / 1e9, gpu_s)

    def relaunch(self, *, once: bool) -> Iterator[int]:  # noqa: ARG002 -- nothing was launched
        """Nothing: the measured launches are virtual, and `HostKernel` stands in for them."""
        yield from ()

    def abandon(self) -> None:
        """Take the load off the card unless it was stopped already."""
        if self._running:
            self._running = False
            with self._state.change() as card:
                if card.load is not None and card.load.owner == Owner.me():
                    card.stop()

    def _begin(self, card: Card, demand: Demand) -> Load:
        if card.load is not None:
            raise DeviceError(
                f"The emulated {self._state.profile.name} already runs a kernel of process "
                f"{card.load.owner.pid}: let it finish first."
            )
        load = Load(Owner.me(), demand)
        card.start(load)
        return load

    def _refuse(self, duration_s: float, what: str) -> None:
        if duration_s > self._timeout_s:
            raise KernelFault(
                "timeout",
                f"{what} {duration_s:.3g} s on the emulated GPU, longer than the "
                f"{self._timeout_s:g} s it may take.",
            )
