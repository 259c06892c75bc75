"""Which measurement of an earlier run belongs to one of a later run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from pytest_gpuenergy.record.identity import Identity
from pytest_gpuenergy.record.measurement import Measurement


class Counterparts:
    """Measurements of an earlier run, found by their identity."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._known: dict[Identity, list[Measurement]] = defaultdict(list)
        self._items: dict[tuple[Identity, str], Measurement] = {}
        for measurement in measurements:
            self._known[measurement.identity].append(measurement)
            self._items[measurement.identity, measurement.node_id] = measurement

    def of(self, measurement: Measurement) -> Measurement | None:
        """The one of the same identity; of several, that of the same item."""
        identity = measurement.identity
        same_item = self._items.get((identity, measurement.node_id))
        if same_item is not None:
            return same_item
        known = self._known.get(identity, [])
        return known[0] if len(known) == 1 else None

    def several(self, measurement: Measurement) -> bool:
        """Whether more than one has its identity."""
        return len(self._known.get(measurement.identity, [])) > 1

    def unused(self, measurements: Iterable[Measurement]) -> Iterator[Measurement]:
        """Those that are nobody's counterpart among ``measurements``."""
        used = {id(self.of(measurement)) for measurement in measurements}
        return (one for known in self._known.values() for one in known if id(one) not in used)
