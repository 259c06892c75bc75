"""What one measurement of a kernel found."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.energy.thermal import Settling
from pytest_gpuenergy.record import ClockState, Conditions, Estimate, Metric, Window


@dataclass(frozen=True)
class Reading:
    """Time, energy and energy-delay product of one launch, and the conditions they hold under.

    Attributes:
        time_ms: mean time of a launch.
        energy_mj: mean energy of a launch on a card that has settled under the kernel.
        edp_mj_ms: mean product of the two.
        power_w: mean power of the settled card.
        raw_energy_mj: mean energy of a launch at the temperature of the trials.
        warm_trials: windows at the end of the heat-up; they count for the scatter only.
        trials: the windows that the figures are the means of.
        start: state of the card before the heat-up.
        begin: state of the card before the trials.
        end: state of the card after the trials.
        flags: names of what makes the reading doubtful; empty when it is clean.
        energy_source: name of the `EnergySource`.
        settling: of the temperature; None if it is not known.
        settling_error: relative standard error of the energy from the way of the temperature that
            is still to go.
        heat_wall_s: the host's time until the trials began.
        event_reasons: NVML's clock-event reasons at any edge of the trials.
        temperature_c: mean over the trials; None if the card does not report it.
        effective_sm_clock_mhz: mean clock of an SM over the trials; None if it is unknown.
        clock_states: of the card during heat-up and trials; empty where they are unknown.
    """

    time_ms: Estimate
    energy_mj: Estimate
    edp_mj_ms: Estimate
    power_w: float
    raw_energy_mj: float
    warm_trials: tuple[Window, ...]
    trials: tuple[Window, ...]
    start: Conditions
    begin: Conditions
    end: Conditions
    flags: tuple[str, ...] = ()
    energy_source: str = "counter"
    heat_wall_s: float = 0.0
    event_reasons: int = 0
    temperature_c: float | None = None
    effective_sm_clock_mhz: float | None = None
    clock_states: tuple[ClockState, ...] = ()
    settling: Settling | None = None
    settling_error: float = 0.0

    def estimate(self, metric: Metric) -> Estimate:
        """The figure of ``metric`` with its interval."""
        found: Estimate = getattr(self, metric.field)
        return found
