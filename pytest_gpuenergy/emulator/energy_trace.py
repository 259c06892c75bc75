"""The energy that an emulated card has drawn, as a function of virtual time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HISTORY_NS = 3_500_000_000
"""How far back the energy is known exactly."""

_MOST_SEGMENTS = 256  # are kept, or as many as `HISTORY_NS` holds


@dataclass
class EnergyTrace:
    """Energy at the ends of segments of constant power, in exact integers (mW x ns = pJ).

    Attributes:
        times_ns: the end of each segment, oldest first.
        energies_pj: the energy drawn until then.
        power_mw: of the segment that has begun and not ended.
    """

    times_ns: list[int]
    energies_pj: list[int]
    power_mw: int = 0

    def close(self, at_ns: int) -> None:
        """End the present segment; the next one has the same power until it is changed."""
        if at_ns > self.times_ns[-1]:
            self.energies_pj.append(self.at_pj(at_ns))
            self.times_ns.append(at_ns)
            if len(self.times_ns) > _MOST_SEGMENTS:
                keep = bisect_right(self.times_ns, at_ns - HISTORY_NS) - 1
                del self.times_ns[: max(0, keep)], self.energies_pj[: max(0, keep)]

    def at_pj(self, at_ns: int) -> int:
        """The energy drawn until ``at_ns``; before the oldest segment: until its beginning."""
        times, energies = self.times_ns, self.energies_pj
        if at_ns >= times[-1]:
            return energies[-1] + self.power_mw * (at_ns - times[-1])
        after = bisect_right(times, at_ns)
        if after == 0:
            return energies[0]
        start_ns, start_pj = times[after - 1], energies[after - 1]
        rise_pj = energies[after] - start_pj
        return start_pj + rise_pj * (at_ns - start_ns) // (times[after] - start_ns)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "times_ns": self.times_ns,
            "energies_pj": self.energies_pj,
            "power_mw": self.power_mw,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnergyTrace:
        """From what `to_json` gave, among other keys.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        times_ns, energies_pj = ([int(n) for n in data[k]] for k in ("times_ns", "energies_pj"))
        if not times_ns or len(times_ns) != len(energies_pj):
            raise ValueError("history")
        return cls(times_ns, energies_pj, int(data["power_mw"]))
