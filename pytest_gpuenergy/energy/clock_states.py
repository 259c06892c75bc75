"""What samples of the effective SM clock say about the trials of a measurement.

Where nothing limits it, the clock of some cards stays within 0.01 % for seconds or minutes and then
steps within a second to another level, by 0.05 to 0.6 %; the power steps by about 1 % with it
(``docs/notes/card-states.md``). Each level is a state of the card. Under a power cap that binds,
the clock moves all the time, and there are no states.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices import ClockSamples
from pytest_gpuenergy.record import ClockState

LEAST_STEP = 4e-4
"""A smaller relative change of the clock is not a step."""

LEAST_SHARE = 0.05
"""A state that held for a smaller part of the trials changes their means by less than 0.1 %."""

_LEAST_COVERED = 0.5
_TRANSIENT_S = 0.3  # in which the clock rises from that of an idle card
_LEAST_SAMPLES = 6
_SIDE = 3  # samples on either side of a step that are compared
_SIGNIFICANT = 5.0  # standard deviations of such comparisons elsewhere
_DISTINCT = 3.0  # standard deviations of the samples of a level
_STEADY = 2.5e-4  # largest relative standard deviation of the samples of a level

_Floats = npt.NDArray[np.float64]


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


def clock_states(
    samples: ClockSamples | None, start_s: float, begin_s: float, end_s: float
) -> tuple[ClockState, ...]:
    """The states of the card during the heat-up and the trials, in order of appearance.

    Args:
        samples: of a run that nothing held back: no power cap and no slowdown.
        start_s: when the run began.
        begin_s: when the trials began.
        end_s: when they ended.

    Returns:
        Nothing if there are too few samples, or if the clock moves other than in steps during the
        trials.
    """
    if samples is None:
        return ()
    chosen = (samples.begin_s >= start_s + _TRANSIENT_S) & (samples.begin_s < end_s)
    chosen &= samples.mhz > 0
    logs = np.log(samples.mhz[chosen])
    weights_s = _overlaps_s(samples, begin_s, end_s)[chosen]
    if len(logs) < _LEAST_SAMPLES or not weights_s.sum():
        return ()
    cuts = steps(logs)
    found: dict[float, float] = {}
    for level, part_s in zip(np.split(logs, cuts), np.split(weights_s, cuts), strict=True):
        middle, time_s = float(np.median(level)), float(part_s.sum())
        if _spread(level) <= _STEADY:
            # The card may have been in this state before.
            same = next((one for one in found if abs(one - middle) < LEAST_STEP / 2), middle)
            found[same] = found.get(same, 0.0) + time_s
        elif time_s:
            return ()
    trials_s = float(weights_s.sum())
    return tuple(
        ClockState(f"{np.exp(level):.1f} MHz", float(np.exp(level)), time_s / trials_s)
        for level, time_s in found.items()
    )


def stepped(states: Sequence[ClockState]) -> bool:
    """Whether the card changed its state during the trials, for more than a moment."""
    return sum(state.share >= LEAST_SHARE for state in states) > 1


def steps(logs: _Floats) -> list[int]:
    """Indices at which a new level begins.

    The medians of three samples on either side are compared, less what a drift common to all of
    them explains. A change counts that exceeds `LEAST_STEP` and five robust standard deviations of
    all such changes, is the largest nearby, and separates levels by more than they scatter. So
    noise, outliers, steady drifts and random walks have no steps.

    Args:
        logs: natural logarithms of successive clocks.
    """
    if len(logs) < _LEAST_SAMPLES:
        return []
    sides = np.median(
        np.lib.stride_tricks.sliding_window_view(np.pad(logs, 1, mode="edge"), _SIDE), axis=1
    )
    changes = sides[_SIDE:] - sides[:-_SIDE]  # the first one is at index 2
    changes = np.abs(changes - np.median(changes))
    least = max(LEAST_STEP, _SIGNIFICANT * float(np.median(changes)) / 0.6745)
    cuts: list[int] = []
    for at in np.argsort(-changes, kind="stable"):
        if changes[at] < least:
            break
        if all(abs(at + 2 - cut) >= _SIDE for cut in cuts):
            cuts.append(int(at) + 2)
    return [_moved(logs, cut) for cut in _distinct(logs, sorted(cuts))]


def _distinct(logs: _Floats, cuts: list[int]) -> list[int]:
    """The cuts without those whose two sides hardly differ."""
    while cuts:
        levels = np.split(logs, cuts)
        apart = [
            abs(float(np.median(after) - np.median(before)))
            - max(LEAST_STEP, _DISTINCT * max(_spread(before), _spread(after)))
            for before, after in pairwise(levels)
        ]
        worst = int(np.argmin(apart))
        if apart[worst] >= 0:
            break
        cuts = cuts[:worst] + cuts[worst + 1 :]
    return cuts


def _moved(logs: _Floats, cut: int) -> int:
    """The cut, or its neighbour if that divides the samples nearby better.

    Medians of three place a cut no better than to one sample.
    """
    near = logs[max(0, cut - _SIDE) : cut + _SIDE]
    middle = min(cut, _SIDE)
    before, after = np.median(near[:middle]), np.median(near[middle:])
    unlike = [
        np.abs(near[:at] - before).sum() + np.abs(near[at:] - after).sum()
        for at in (middle - 1, middle, middle + 1)
    ]
    return cut - 1 + int(np.argmin(unlike))


def _spread(values: _Floats) -> float:
    """A standard deviation that a few outliers do not change."""
    return float(np.median(np.abs(values - np.median(values)))) / 0.6745


def _overlaps_s(samples: ClockSamples, begin_s: float, end_s: float) -> _Floats:
    """How much of each sample's span lies between two moments: shape (n,)."""
    ends_s = np.minimum(samples.end_s, end_s) - np.maximum(samples.begin_s, begin_s)
    overlaps_s: _Floats = np.maximum(ends_s, 0.0)
    return overlaps_s
