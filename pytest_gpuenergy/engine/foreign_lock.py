"""Whether somebody else seems to have locked a card's clocks, which NVML does not report.

A card at rest cannot tell, since its clock is low for another reason. Under a light load, which no
cap holds back, a card that is not locked runs at its highest clock, or NVML tells why it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuenergy.control import supported_clocks
from pytest_gpuenergy.devices import ClockSamples, Device, Gpu
from pytest_gpuenergy.energy import RESTRAINING_REASONS, read_conditions
from pytest_gpuenergy.record import Conditions
from pytest_gpuenergy.support import KernelFault, SetpointError

RAMP_S = 0.6
"""How long the clock may take to rise from that of a card at rest."""

READINGS, READING_S = 8, 0.05
"""How often the clock is then read, and the time between two readings."""

HIGHEST = 0.98
"""A card that reaches this fraction of its highest clock is not locked, as far as can be seen."""

SPREAD = 0.005
"""A clock that moves by more than this fraction is not pinned."""

_GPU_IDLE, _SYNC_BOOST = 0x1, 0x10
_EXPLAIN = RESTRAINING_REASONS | _GPU_IDLE | _SYNC_BOOST


def refuse_locked(gpu: Gpu) -> None:
    """Refuse a card whose clocks somebody else seems to have locked.

    A card that cannot run anything here, because it was opened for its settings only, is not
    refused: nothing is known of it.

    Raises:
        SetpointError: they seem to be locked, or the card does not run the load.
    """
    if not isinstance(gpu, Device):
        return
    try:
        pinned_mhz, highest_mhz = _pinned_mhz(gpu), supported_clocks(gpu)[-1]
    except KernelFault as fault:
        raise SetpointError(
            f"Whether somebody else has locked the SM clocks of {gpu.name} cannot be seen "
            f"({fault}): to lock them all the same, give --gpuenergy-allow clocks (commands: "
            "--allow clocks)."
        ) from None
    if pinned_mhz is not None:
        raise SetpointError(
            f"Somebody else seems to have locked the SM clocks of {gpu.name}: under a light load "
            f"they stay at {pinned_mhz:.0f} MHz of {highest_mhz} MHz, and NVML gives no reason. "
            "What they are locked to cannot be read, so it could not be restored: unlock them "
            "(nvidia-smi -rgc), or give --gpuenergy-allow clocks (commands: --allow clocks), after "
            "which they are unlocked."
        )


def pinned_at(
    readings: Sequence[Conditions], achieved: ClockSamples | None, highest_mhz: float
) -> float | None:
    """The clock in MHz at which a card under a light load is pinned; None if it is not.

    Args:
        readings: of the card's clock and event reasons during the load.
        achieved: the clock of an SM meanwhile; None if it is unknown.
        highest_mhz: the highest clock that the card supports.

    Returns:
        None too where the readings cannot tell: NVML explains the clock, or nothing is known.
    """
    if any((one.event_reasons or 0) & _EXPLAIN for one in readings):
        return None
    told = [float(one.sm_clock_mhz) for one in readings if one.sm_clock_mhz is not None]
    seen = [] if achieved is None else achieved.mhz.tolist()
    for clocks in (seen, told):
        if clocks and (
            max(clocks) >= HIGHEST * highest_mhz or max(clocks) - min(clocks) > SPREAD * max(clocks)
        ):
            return None
    return next((max(clocks) for clocks in (told, seen) if clocks), None)


def _pinned_mhz(device: Device) -> float | None:
    readings = []
    with device.light_load() as repeater:
        repeater.start()
        try:
            device.clock.sleep_s(RAMP_S)
            begin_s = device.clock.now_s()
            for _ in range(READINGS):
                readings.append(read_conditions(device))
                device.clock.sleep_s(READING_S)
        finally:
            timeline = repeater.stop()
    clocks = timeline.clocks
    if clocks is not None:
        late = clocks.begin_s >= begin_s
        clocks = ClockSamples(clocks.begin_s[late], clocks.end_s[late], clocks.mhz[late])
    return pinned_at(readings, clocks, supported_clocks(device)[-1])
