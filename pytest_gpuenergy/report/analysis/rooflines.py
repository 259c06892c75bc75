"""Data rate, arithmetic intensity and part of a card's peak: the roofline of a measurement.

The roof at an intensity is the lower of two peaks by the vendor's datasheet: of arithmetic in the
workload's declared type, and of the device memory times the intensity (Williams, Waterman and
Patterson, "Roofline", CACM 52(4), 2009). A power cap or a lower clock does not lower the roof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_gpuenergy.record import Interval, Measurement, Peaks, peaks_of

Roof = Literal["compute", "memory"]
TF32_ERROR = 2.0**-10
"""Largest relative change of a product of two float32 numbers that are rounded to TF32."""
_BY_PEAK = ("float16", "bfloat16", "float32", "float64")
"""Types of tensors, the one whose arithmetic has the highest peak first."""


@dataclass(frozen=True)
class Roofline:
    """Where a measurement is under the roof.

    Attributes:
        gb_s: the least memory traffic of a launch by its time, in 1e9 bytes per second; None: no
            figures, or the traffic is unknown.
        gb_s_ci95: the interval of ``gb_s``, from that of the time.
        flop_per_byte: operations by least memory traffic; None if one of them is unknown.
        percent_of_peak: the speed in percent of the roof; None: no figures, or no known roof.
        percent_of_peak_ci95: the interval of ``percent_of_peak``.
        roof: the peak that is the lower one of the two.
    """

    gb_s: float | None = None
    gb_s_ci95: Interval | None = None
    flop_per_byte: float | None = None
    percent_of_peak: float | None = None
    percent_of_peak_ci95: Interval | None = None
    roof: Roof | None = None


def roofline(m: Measurement, gpu_name: str) -> Roofline:
    """Return the roofline of a measurement on a card with this name."""
    flops, moved = m.workload.flops, m.workload.bytes_moved
    intensity = flops / moved if flops > 0 and moved > 0 else None
    if m.time_ms is None or not m.time_ms > 0:
        return Roofline(flop_per_byte=intensity)
    gb_s = moved / m.time_ms / 1e6 if moved > 0 else None
    found = _floor(m, peaks_of(gpu_name))
    floor_ms, roof = (None, None) if found is None else found
    percent = None if floor_ms is None else 100 * floor_ms / m.time_ms
    return Roofline(
        gb_s,
        per_time(gb_s, m),
        intensity,
        percent,
        per_time(percent, m),
        roof,
    )


def per_time(rate: float | None, m: Measurement) -> Interval | None:
    """Return the interval of a rate that is inverse to the time."""
    ends = m.time_ms_ci95
    if rate is None or ends is None or m.time_ms is None or not ends.low > 0:
        return None
    return Interval(rate * m.time_ms / ends.high, rate * m.time_ms / ends.low)


def arithmetic(m: Measurement) -> str | None:
    """Return the data type or mode in which a workload may be computed; None if it does not say.

    For matrix products and convolutions it is the mode, or the type if there is no mode; for other
    workloads, the floating-point type of their tensors with the highest peak. Where the error bound
    allows the rounding of TF32, it is TF32 instead of float32.
    """
    parameters = m.workload.parameters
    kind = parameters.get("kind")
    if kind in ("gemm", "conv2d") and (mode := _text(parameters.get("mode"))) is not None:
        return mode
    found = _text(parameters.get("dtype"))
    if kind == "contract":
        types = {str(parameter).partition("[")[0] for parameter in parameters.values()}
        found = next((one for one in _BY_PEAK if one in types), None)
    loose = m.correctness is not None and m.correctness.max_relative_bound >= TF32_ERROR
    return "tf32" if found == "float32" and loose else found


def _floor(
    m: Measurement, peaks: Peaks | None
) -> tuple[float, Literal["compute", "memory"]] | None:
    """Return the least time of a launch in ms under the roof, and what sets it; None if unknown.

    Buffers that stay in the L2 are not moved to the device memory. The L2 is faster, but no
    datasheet says how fast: where it would set the roof, there is none.
    """
    if peaks is None:
        return None
    moved = m.workload.bytes_moved
    compute_ms = peaks.compute_ms(m.workload.flops, arithmetic(m) or "")
    if moved <= 0 or compute_ms is None:
        return None
    memory_ms = peaks.memory_ms(moved)
    if compute_ms >= memory_ms:
        return compute_ms, "compute"
    stays = m.cache != "cold" and moved <= peaks.l2_bytes
    return None if stays else (memory_ms, "memory")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
