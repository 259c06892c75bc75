"""Measurements of replayed calls and steps, as accounts and savings are computed from."""

from __future__ import annotations

from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, WorkloadInfo


def measurement(
    time_ms: float, energy_mj: float, half_width_mj: float | None = None, **changes: object
) -> Measurement:
    """A call's measurement; the interval of its energy is 1 % wide to either side if not given."""
    half_mj = 0.01 * energy_mj if half_width_mj is None else half_width_mj
    plain = Measurement(
        node_id="replay",
        workload=WorkloadInfo("model", {}, 0, 0),
        kernel=KernelInfo("call", "", "replay"),
        outcome="correct",
        cap="current",
        time_ms=time_ms,
        energy_mj=energy_mj,
        energy_mj_ci95=Interval(energy_mj - half_mj, energy_mj + half_mj),
        raw_energy_mj=energy_mj,
    )
    return replace(plain, **changes)
