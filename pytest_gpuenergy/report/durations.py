"""Where the wall time of a run was spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuenergy.record import PHASES, Measurement
from pytest_gpuenergy.support import span

SLOWEST = 5


def duration_lines(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Each phase's share of the items' wall time, then the slowest items; none without items.

    Kernels are compiled ahead in the background: ``compile`` is the time an item waited for it.
    """
    total_s = sum(m.wall_s for m in measurements)
    if total_s <= 0:
        return
    count = len(measurements)
    yield f"wall time of {count} item{'' if count == 1 else 's'}: {span(total_s)}"
    for name in PHASES:
        spent_s = sum(m.phases_s.get(name, 0.0) for m in measurements)
        yield f"  {name:<8} {span(spent_s):>9} {spent_s / total_s:6.1%}"
    rest_s = total_s - sum(sum(m.phases_s.values()) for m in measurements)
    yield f"  {'rest':<8} {span(rest_s):>9} {rest_s / total_s:6.1%}"
    yield "slowest items"
    for m in sorted(measurements, key=lambda m: m.wall_s, reverse=True)[:SLOWEST]:
        parts = ", ".join(f"{name} {span(seconds)}" for name, seconds in m.phases_s.items())
        yield f"  {span(m.wall_s):>9} {m.node_id}{f' ({parts})' if parts else ''}"
