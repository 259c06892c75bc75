"""Matches the measurements of a later run to those of an earlier run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from pytest_gpuenergy.record import Identity, Measurement


class Counterparts:
    """The measurements of an earlier run, looked up by identity."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._known: dict[Identity, list[Measurement]] = defaultdict(list)
        self._items: dict[tuple[Identity, str], Measurement] = {}
        for measurement in measurements:
            self._known[measurement.identity].append(measurement)
            self._items[measurement.identity, measurement.node_id] = measurement

    def of(self, measurement: Measurement) -> Measurement | None:
        """The measurement with the same identity; if there are several, the one of the same item.

        None when there is no match, or several and none of them of the same item.
        """
        identity = measurement.identity
        same_item = self._items.get((identity, measurement.node_id))
        if same_item is not None:
            return same_item
        known = self._known.get(identity, [])
        return known[0] if len(known) == 1 else None

    def several(self, measurement: Measurement) -> bool:
        """Whether several measurements of the earlier run have its identity."""
        return len(self._known.get(measurement.identity, [])) > 1

    def unused(self, measurements: Iterable[Measurement]) -> Iterator[Measurement]:
        """The measurements of the earlier run that match none of ``measurements``."""
        used = {id(self.of(measurement)) for measurement in measurements}
        return (one for known in self._known.values() for one in known if id(one) not in used)
