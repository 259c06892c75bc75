"""Keeps GPU models apart, and finds the counterparts of measurements in an earlier run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from pytest_gpuenergy.record import Identity, Measurement
from pytest_gpuenergy.report.store import Report


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


class Counterparts:
    """The measurements of an earlier run, looked up by identity.

    Args:
        measurements: the measurements.
        models: the GPU models of the run, to keep them apart; None: all count as one.
    """

    def __init__(self, measurements: Iterable[Measurement], models: Models | None = None) -> None:
        self._known: dict[tuple[str, Identity], list[Measurement]] = defaultdict(list)
        for measurement in measurements:
            model = models.of(measurement) if models else ""
            self._known[model, measurement.identity].append(measurement)

    def of(self, measurement: Measurement, model: str = "") -> Measurement | None:
        """Return the measurement with the same identity; if several have it, that of the same item.

        None when there is no match, or several and none of them of the same item.

        Args:
            measurement: a measurement of a later run.
            model: the GPU model to look at, where they are kept apart.
        """
        known = self._known.get((model, measurement.identity), [])
        same_item = [candidate for candidate in known if candidate.node_id == measurement.node_id]
        if same_item:
            return same_item[-1]
        return known[0] if len(known) == 1 else None

    def several(self, measurement: Measurement) -> bool:
        """Return whether several measurements of the earlier run have its identity."""
        return len(self._known.get(("", measurement.identity), [])) > 1

    def unused(self, measurements: Iterable[Measurement]) -> Iterator[Measurement]:
        """Yield the measurements of the earlier run that match none of ``measurements``."""
        used = {id(self.of(measurement)) for measurement in measurements}
        return (
            candidate
            for known in self._known.values()
            for candidate in known
            if id(candidate) not in used
        )


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
        stations = tuple(station for station in report.stations if station.gpu_name == name)
        uuids = {station.gpu_uuid for station in stations}
        run = report.run
        if stations and name != run.gpu_name:
            run = replace(
                run,
                host=stations[0].host,
                gpu_name=name,
                gpu_uuid=stations[0].gpu_uuid,
                architecture=stations[0].architecture,
                power_limits_w=stations[0].power_limits_w,
                software=stations[0].software,
                cap_table_w=(),
            )
        parts.append(
            replace(
                report,
                run=run,
                measurements=tuple(measurements),
                anchors=tuple(anchor for anchor in report.anchors if anchor.gpu_uuid in uuids),
                stations=stations,
                board_checks=tuple(
                    board_check
                    for board_check in report.board_checks
                    if board_check.gpu_uuid in uuids
                ),
            )
        )
    return parts
