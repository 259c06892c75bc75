"""Whether a card kept to the clock to which its SMs were locked, by what was measured."""

from __future__ import annotations

from pytest_gpuenergy.energy import RESTRAINING_REASONS, Reading

TOLERANCE = 0.02
"""A clock that differs from the lock by less than this fraction keeps to it.

The clocks of two kernels on an H200 that NVML reported to be the same differed by up to 1 %.
"""


def lock_flags(reading: Reading, locked_mhz: int | None) -> tuple[str, ...]:
    """Validity flags of a measurement under a lock.

    ``lock_lost``: the clock kept to the lock when the trials began, and exceeded it later.
    ``clock_above_lock``: it exceeded the lock throughout. ``clock_below_lock``: it stayed below the
    lock, and NVML gives no reason, such as a power cap, for that.

    Args:
        reading: what was measured.
        locked_mhz: the clock that the SMs were locked to; None without a lock.
    """
    if locked_mhz is None:
        return ()
    achieved_mhz = _achieved_mhz(reading)
    above = [mhz for mhz in achieved_mhz if mhz > (1 + TOLERANCE) * locked_mhz]
    if above:
        kept_at_first = _is_at(reading.begin.sm_clock_mhz, locked_mhz)
        return ("lock_lost" if kept_at_first else "clock_above_lock",)
    below = any(mhz < (1 - TOLERANCE) * locked_mhz for mhz in achieved_mhz)
    explained = reading.event_reasons & RESTRAINING_REASONS
    return ("clock_below_lock",) if below and not explained else ()


def keeps_to_lock(reading: Reading, locked_mhz: int | None) -> bool:
    """Whether it was a lock that held the clock, rather than a power cap."""
    if locked_mhz is None:
        return False
    achieved_mhz = _achieved_mhz(reading)
    return bool(achieved_mhz) and all(_is_at(mhz, locked_mhz) for mhz in achieved_mhz)


def _is_at(mhz: float | None, locked_mhz: int) -> bool:
    return mhz is not None and abs(mhz / locked_mhz - 1) <= TOLERANCE


def _achieved_mhz(reading: Reading) -> list[float]:
    """The mean clock of an SM, or what NVML reports where that is unknown, and that at the end."""
    mean_mhz: float | None = reading.effective_sm_clock_mhz
    if mean_mhz is None:
        mean_mhz = reading.begin.sm_clock_mhz
    return [float(mhz) for mhz in (mean_mhz, reading.end.sm_clock_mhz) if mhz is not None]
