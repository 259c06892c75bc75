"""Keeps GPU models apart, and finds the counterparts of measurements in an earlier run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from pytest_gpuenergy.record import Identity, Measurement, RunInfo
from pytest_gpuenergy.report.store import Report


class Counterparts:
    """The measurements of an earlier run, looked up by identity."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._known: dict[Identity, list[Measurement]] = defaultdict(list)
        self._items: dict[tuple[Identity, str], Measurement] = {}
        for measurement in measurements:
            self._known[measurement.identity].append(measurement)
            self._items[measurement.identity, measurement.node_id] = measurement

    def of(self, measurement: Measurement) -> Measurement | None:
        """Return the measurement with the same identity; if several have it, that of the same item.

        None when there is no match, or several and none of them of the same item.
        """
        identity = measurement.identity
        same_item = self._items.get((identity, measurement.node_id))
        if same_item is not None:
            return same_item
        known = self._known.get(identity, [])
        return known[0] if len(known) == 1 else None

    def several(self, measurement: Measurement) -> bool:
        """Return whether several measurements of the earlier run have its identity."""
        return len(self._known.get(measurement.identity, [])) > 1

    def unused(self, measurements: Iterable[Measurement]) -> Iterator[Measurement]:
        """Yield the measurements of the earlier run that match none of ``measurements``."""
        used = {id(self.of(measurement)) for measurement in measurements}
        return (one for known in self._known.values() for one in known if id(one) not in used)


class Models:
    """The GPU models of a report's measurements.

    Args:
        report: the report of one run or several.
    """

    def __init__(self, report: Report) -> None:
        self._run = report.run
        self._stations = {station.gpu_uuid: station for station in report.stations}

    @property
    def names(self) -> set[str]:
        """The names of all models that took part."""
        found = {station.gpu_name for station in self._stations.values()}
        return found or {self._run.gpu_name}

    def of(self, measurement: Measurement) -> str:
        """Return the model on which a measurement was made."""
        station = self._stations.get(measurement.gpu_uuid or "")
        return self._run.gpu_name if station is None else station.gpu_name


class AlikeCounterparts:
    """As `Counterparts`, of the measurements that an earlier report has of the same GPU models.

    Args:
        report: the later one.
        baseline: the earlier one.
    """

    def __init__(self, report: Report, baseline: Report) -> None:
        self._models = Models(report)
        self._earlier = counterparts_by_model(baseline)

    def of(self, measurement: Measurement) -> Measurement | None:
        """Return the measurement on the same model that `Counterparts.of` finds."""
        earlier = self._earlier.get(self._models.of(measurement))
        return None if earlier is None else earlier.of(measurement)


def counterparts_by_model(baseline: Report) -> dict[str, Counterparts]:
    """Return the measurements of each GPU model of an earlier report."""
    return {
        name: Counterparts(part.measurements)
        for part in by_model(baseline)
        for name in Models(part).names
    }


def by_model(report: Report) -> list[Report]:
    """Split a report by GPU model, as if each had been the only one.

    Each has the identity of the first GPU of its model.
    """
    models = Models(report)
    if len(models.names) < 2:
        return [report]
    found: dict[str, list[Measurement]] = {}
    for measurement in report.measurements:
        found.setdefault(models.of(measurement), []).append(measurement)
    parts = []
    for name, measurements in found.items():
        stations = tuple(one for one in report.stations if one.gpu_name == name)
        uuids = {station.gpu_uuid for station in stations}
        parts.append(
            replace(
                report,
                run=_run_on(report, name),
                measurements=tuple(measurements),
                anchors=tuple(one for one in report.anchors if one.gpu_uuid in uuids),
                stations=stations,
                board_checks=tuple(one for one in report.board_checks if one.gpu_uuid in uuids),
            )
        )
    return parts


def _run_on(report: Report, name: str) -> RunInfo:
    first = next((one for one in report.stations if one.gpu_name == name), None)
    if first is None or name == report.run.gpu_name:
        return report.run
    return replace(
        report.run,
        host=first.host,
        gpu_name=name,
        gpu_uuid=first.gpu_uuid,
        architecture=first.architecture,
        power_limits_w=first.power_limits_w,
        software=first.software,
        cap_table_w=(),
    )
