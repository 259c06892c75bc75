"""The tidy table: one row per measurement, one column per field, for data frames."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record import Calibrated, Measurement, RunInfo
from pytest_gpuenergy.report.analysis.best_kernels import Marks, best_of_each
from pytest_gpuenergy.report.analysis.board_calibration import Boards
from pytest_gpuenergy.report.analysis.gpu_models import Models, by_model
from pytest_gpuenergy.report.analysis.rooflines import Roofline, roofline
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.view_files import write_view
from pytest_gpuenergy.support import Cell, InputError, ReportError, csv_text, encode, needs

Value = str | int | float | bool

LAUNCH_AXES = (
    *("grid_x", "grid_y", "grid_z", "blocks"),
    *("block_x", "block_y", "block_z", "threads", "shared_bytes"),
)
PARAMETER, WORKLOAD = "parameter_", "workload_"


def axis_values(m: Measurement) -> dict[str, Value]:
    """Return the values of a measurement by axis; an axis that it has no value for is missing.

    `LAUNCH_AXES` are those of the launch with the most threads: its blocks in each direction and in
    total, the threads of a block, and the bytes of shared memory of a block, dynamic and static.
    ``parameter_`` and a name are pytest's parameters of the item, ``workload_`` and a name those of
    the workload.
    """
    values: dict[str, Value] = {}
    if m.kernel.launches:
        launch = max(m.kernel.launches, key=lambda launch: launch.blocks * launch.threads)
        sizes = (*launch.grid, launch.blocks, *launch.block, launch.threads)
        values |= zip(LAUNCH_AXES, sizes, strict=False)
        if launch.shared_bytes is not None and launch.static_shared_bytes is not None:
            values["shared_bytes"] = launch.shared_bytes + launch.static_shared_bytes
    values |= {f"{PARAMETER}{name}": value for name, value in m.parameters.items()}
    values |= {f"{WORKLOAD}{name}": value for name, value in m.workload.parameters.items()}
    return values


def parameter_kinds(measurements: Iterable[Measurement]) -> dict[str, type]:
    """Return the names of all parameters of items, in order of appearance, each with its type.

    A parameter with values of several types is text, unless all are numbers.
    """
    kinds: dict[str, set[type]] = {}
    for m in measurements:
        for name, value in m.parameters.items():
            kinds.setdefault(name, set()).add(type(value))
    return {
        name: found.pop() if len(found) == 1 else float if found == {int, float} else str
        for name, found in kinds.items()
    }


_RUN_FIELDS = ("run_id", "gpu_name", "emulated", "legacy")


class TidyRow(NamedTuple):
    """The records that a row shows: of the run, the measurement, and what follows from both."""

    run: RunInfo
    measurement: Measurement
    roofline: Roofline
    calibrated: Calibrated
    derived: Mapping[str, Any]


@dataclass(frozen=True)
class TidyColumn:
    """A column's name, the type of its cells, which may also be empty, and its source.

    ``path`` lists the fields that lead to the cell through nested records, starting at one of the
    records of a `TidyRow`; it is empty for a cell that the row has among ``derived``.
    """

    name: str
    kind: type
    path: tuple[str, ...]

    def cell(self, row: TidyRow) -> Cell:
        """This column's cell in a row of the table."""
        if not self.path:
            found = row.derived.get(self.name)
            return found if found is None else typing.cast(Cell, self.kind(found))
        value: Any = row
        for name in self.path:
            value = None if value is None else getattr(value, name)
        if isinstance(value, Mapping):
            return json.dumps(value)
        if isinstance(value, tuple):
            return len(value) if self.kind is int else " ".join(map(str, value))
        return typing.cast(Cell, value)


def tidy_columns(measurements: Iterable[Measurement] = ()) -> list[TidyColumn]:
    """Return the columns: the run's identity, every field of a measurement, derived values.

    Names of nested fields are joined with ``_``: ``kernel_label``, ``time_ms_ci95_low``. Mappings
    are JSON text, flags and seeds are joined with spaces, and trials are given as their number.
    ``best_of`` has the metrics by which the measurement may be the best of its workload, within
    noise; ``pareto`` is ``front``, ``within noise`` of the front, or empty. `LAUNCH_AXES` of the
    largest launch follow, and a column ``parameter_NAME`` for each parameter of the items of
    ``measurements``.
    """
    kinds = typing.get_type_hints(RunInfo)
    run = [TidyColumn(name, kinds[name], ("run", name)) for name in _RUN_FIELDS]
    parameters = parameter_kinds(measurements)
    return [
        *run,
        *_columns(Measurement, ("measurement",)),
        *_columns(Roofline, ("roofline",)),
        *_columns(Calibrated, ("calibrated",)),
        *(TidyColumn(name, str, ()) for name in ("best_of", "pareto")),
        *(TidyColumn(name, int, ()) for name in LAUNCH_AXES),
        *(TidyColumn(f"{PARAMETER}{name}", kind, ()) for name, kind in parameters.items()),
    ]


def tidy_rows(report: Report) -> Iterator[list[Cell]]:
    """Yield a row per measurement, with cells in the order of `tidy_columns` of all of them.

    ``gpu_name`` is the model on which it was made, also in a run on several.
    """
    columns = tidy_columns(report.measurements)
    marks = Marks([entry for part in by_model(report) for entry in best_of_each(part.measurements)])
    models, boards = Models(report), Boards(report)
    for m in report.measurements:
        near = "within noise" if id(m) in marks.near else ""
        pareto = "front" if id(m) in marks.front else near
        derived = {"best_of": " ".join(marks.best_of(m)), "pareto": pareto, **axis_values(m)}
        run = replace(report.run, gpu_name=models.of(m))
        row = TidyRow(run, m, roofline(m, run.gpu_name), boards.calibrated(m), derived)
        yield [column.cell(row) for column in columns]


def tidy_csv(report: Report) -> str:
    """Return the table as CSV with a header, in full precision; missing figures are empty."""
    header = [column.name for column in tidy_columns(report.measurements)]
    return csv_text([header, *tidy_rows(report)])


def check_parquet() -> None:
    """Check that Parquet can be written.

    Raises:
        InputError: pyarrow is not installed, or cannot be loaded.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        advice = "pip install 'pytest-gpuenergy[parquet]'"
        raise InputError(needs("Parquet", "pyarrow", advice, error)) from None


def write_parquet(report: Report, path: Path) -> None:
    """Write the table as Parquet; the metadata key ``gpuenergy`` has the run's identity as JSON.

    Raises:
        InputError: pyarrow is not installed.
        ReportError: it cannot be written.
    """
    check_parquet()
    import pyarrow
    import pyarrow.parquet

    types_of = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    columns = tidy_columns(report.measurements)
    schema = pyarrow.schema(
        [(column.name, types_of[column.kind]) for column in columns],
        metadata={"gpuenergy": encode(report.run)},
    )
    rows = [dict(zip(schema.names, row, strict=True)) for row in tidy_rows(report)]
    sink = pyarrow.BufferOutputStream()
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), sink)
    except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise ReportError(f"{path} cannot be written as Parquet: {error}.") from None
    write_view(path, sink.getvalue().to_pybytes())


def _columns(record: type, path: tuple[str, ...]) -> Iterator[TidyColumn]:
    """Yield the columns of a record's fields, and of the fields of the records in it."""
    for field, hint in typing.get_type_hints(record).items():
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        name = (*path, field)
        if _is_record(hint):
            yield from _columns(hint, name)
            continue
        kind = hint if hint in (str, int, float, bool) else str
        if typing.get_origin(hint) is tuple and _is_record(typing.get_args(hint)[0]):
            kind = int  # how many there are
        yield TidyColumn("_".join(name[1:]), kind, name)


def _is_record(hint: Any) -> typing.TypeGuard[type[Struct]]:
    return isinstance(hint, type) and issubclass(hint, Struct)
