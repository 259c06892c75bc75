"""Finds the states of a card, at which its SM clock stays, in samples of the effective clock.

If nothing limits it, the clock of some cards stays within 0.01 % for seconds or minutes and then
steps within a second to another level, by 0.05 to 0.6 %; the power steps by about 1 % with it
(``docs/notes/card-states.md``). Each level is a state of the card. Under a power cap that binds,
the clock varies all the time, and there are no states.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices import ClockSamples
from pytest_gpuenergy.record import ClockState

MIN_STEP = 4e-4
"""The smallest relative change of the clock that is a step."""

MIN_SHARE = 0.05
"""The smallest share of the trials for which a state counts; below it, a state changes their means
by less than 0.1 %."""

_MIN_COVERED = 0.5
"""The smallest share of a time that samples must cover for a mean clock."""
_TRANSIENT_S = 0.3
"""The time in which the clock rises from that of an idle card."""
_MIN_SAMPLES = 6
_SIDE = 3
"""The number of samples on either side of a step that are compared."""
_SIGNIFICANT = 5.0
"""The size of a step in standard deviations of such comparisons elsewhere."""
_DISTINCT = 3.0
"""The size of a step in standard deviations of the samples of a level."""
_STEADY = 2.5e-4
"""The largest relative standard deviation of the samples of a level."""

_Floats = npt.NDArray[np.float64]


def mean_clock_mhz(samples: ClockSamples | None, begin_s: float, end_s: float) -> float | None:
    """Return the mean clock from ``begin_s`` to ``end_s``.

    None if there are no samples, or if they cover less than half of that time.
    """
    if samples is None:
        return None
    covered_s = _overlaps_s(samples, begin_s, end_s)
    if covered_s.sum() < _MIN_COVERED * (end_s - begin_s):
        return None
    return float(np.average(samples.mhz, weights=covered_s))


def clock_states(
    samples: ClockSamples | None, start_s: float, begin_s: float, end_s: float
) -> tuple[ClockState, ...]:
    """Return the states of the card during the heat-up and the trials, in order of appearance.

    Args:
        samples: the samples of a run that no power cap and no slowdown has limited.
        start_s: the start of the run.
        begin_s: the start of the trials.
        end_s: the end of the trials.

    Returns:
        The states; none if there are too few samples, or if the clock changes other than in steps
        during the trials.
    """
    if samples is None:
        return ()
    chosen = (samples.begin_s >= start_s + _TRANSIENT_S) & (samples.begin_s < end_s)
    chosen &= samples.mhz > 0
    logs = np.log(samples.mhz[chosen])
    weights_s = _overlaps_s(samples, begin_s, end_s)[chosen]
    if len(logs) < _MIN_SAMPLES or not weights_s.sum():
        return ()
    cuts = step_indices(logs)
    found: dict[float, float] = {}
    for level, part_s in zip(np.split(logs, cuts), np.split(weights_s, cuts), strict=True):
        middle, time_s = float(np.median(level)), float(part_s.sum())
        if _spread(level) <= _STEADY:
            # The card may have been in this state before.
            same = next(
                (earlier for earlier in found if abs(earlier - middle) < MIN_STEP / 2), middle
            )
            found[same] = found.get(same, 0.0) + time_s
        elif time_s:
            return ()
    trials_s = float(weights_s.sum())
    return tuple(
        ClockState(f"{np.exp(level):.1f} MHz", float(np.exp(level)), time_s / trials_s)
        for level, time_s in found.items()
    )


def has_clock_step(states: Sequence[ClockState]) -> bool:
    """Return whether the card changed its state during the trials, for more than a moment."""
    return sum(state.share >= MIN_SHARE for state in states) > 1


def step_indices(logs: _Floats) -> list[int]:
    """Return the indices at which a new level begins.

    The medians of three samples on either side are compared, after the common drift has been
    subtracted. A change is a step if it exceeds `MIN_STEP` and five robust standard deviations of
    all such changes, is the largest nearby, and separates levels by more than they scatter. Noise,
    outliers, steady drifts and random walks thus have no steps.

    Args:
        logs: the natural logarithms of successive clocks.
    """
    if len(logs) < _MIN_SAMPLES:
        return []
    sides = np.median(
        np.lib.stride_tricks.sliding_window_view(np.pad(logs, 1, mode="edge"), _SIDE), axis=1
    )
    changes = sides[_SIDE:] - sides[:-_SIDE]  # the first change is at index 2
    changes = np.abs(changes - np.median(changes))
    least = max(MIN_STEP, _SIGNIFICANT * float(np.median(changes)) / 0.6745)
    cuts: list[int] = []
    for at in np.argsort(-changes, kind="stable"):
        if changes[at] < least:
            break
        if all(abs(at + 2 - cut) >= _SIDE for cut in cuts):
            cuts.append(int(at) + 2)
    return [_refined_cut(logs, cut) for cut in _distinct(logs, sorted(cuts))]


def _distinct(logs: _Floats, cuts: list[int]) -> list[int]:
    """Return the cuts whose two sides differ by more than they scatter."""
    while cuts:
        levels = np.split(logs, cuts)
        apart = [
            abs(float(np.median(after) - np.median(before)))
            - max(MIN_STEP, _DISTINCT * max(_spread(before), _spread(after)))
            for before, after in pairwise(levels)
        ]
        worst = int(np.argmin(apart))
        if apart[worst] >= 0:
            break
        cuts = cuts[:worst] + cuts[worst + 1 :]
    return cuts


def _refined_cut(logs: _Floats, cut: int) -> int:
    """Return the cut, or its neighbour if that divides the samples nearby better.

    Medians of three samples place a cut only to within one sample.
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
    """Return a standard deviation that a few outliers do not change."""
    return float(np.median(np.abs(values - np.median(values)))) / 0.6745


def _overlaps_s(samples: ClockSamples, begin_s: float, end_s: float) -> _Floats:
    """Return the part of each sample's span that lies between two moments, shape (n,)."""
    ends_s = np.minimum(samples.end_s, end_s) - np.maximum(samples.begin_s, begin_s)
    overlaps_s: _Floats = np.maximum(ends_s, 0.0)
    return overlaps_s
