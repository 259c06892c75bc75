"""What samples of the effective SM clock say about the trials of a measurement."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.device import ClockSamples

_LEAST_COVERED = 0.5


def mean_clock_mhz(samples: ClockSamples | None, begin_s: float, end_s: float) -> float | None:
    """The mean clock from ``begin_s`` to ``end_s``.

    None if there are no samples, or if they cover less than half of that time.
    """
    if samples is None:
        return None
    covered_s = _overlaps_s(samples, begin_s, end_s)
    if covered_s.sum() < _LEAST_COVERED * (end_s - begin_s):
        return None
    return float(np.average(samples.mhz, weights=covered_s))


def _overlaps_s(samples: ClockSamples, begin_s: float, end_s: float) -> npt.NDArray[np.float64]:
    """How much of each sample's span lies between two moments: shape (n,)."""
    ends_s = np.minimum(samples.end_s, end_s) - np.maximum(samples.begin_s, begin_s)
    overlaps_s: npt.NDArray[np.float64] = np.maximum(ends_s, 0.0)
    return overlaps_s
