"""Windows between edges of the energy source, with what a timeline says about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_gpuenergy.devices import Timeline
from pytest_gpuenergy.record import Window


def cut_windows(
    times_s: Sequence[float], energies_mj: Sequence[float], timeline: Timeline
) -> tuple[Window, ...]:
    """The windows between successive edges, with the launches and GPU time within them."""
    launches = np.interp(times_s, timeline.time_s, timeline.launches)
    busy_s = np.interp(times_s, timeline.time_s, timeline.busy_s)
    table = zip(
        np.diff(times_s),
        np.diff(energies_mj) / 1e3,
        np.diff(launches),
        np.diff(busy_s),
        strict=True,
    )
    return tuple(Window(*(float(value) for value in row)) for row in table)


def placement_variance(timeline: Timeline, begin_s: float, end_s: float) -> float:
    """Relative variance of the mean time because only a sample of memory placements was measured.

    This is the squared standard error, relative to the mean, of the mean over
    `Timeline.placements`: the variance of their means divided by their number. Only batches that
    ended after ``begin_s`` and no later than ``end_s`` count. 0 if fewer than two placements have
    such batches.
    """
    inside = (timeline.time_s[1:] > begin_s) & (timeline.time_s[1:] <= end_s)
    turns = np.arange(len(inside)) % timeline.placements
    launches, busy_s = np.diff(timeline.launches), np.diff(timeline.busy_s)
    times_s = [
        busy_s[own].sum() / launches[own].sum()
        for turn in range(timeline.placements)
        if launches[own := inside & (turns == turn)].sum() > 0
    ]
    if len(times_s) < 2:
        return 0.0
    return float(np.var(times_s, ddof=1) / len(times_s) / np.mean(times_s) ** 2)
