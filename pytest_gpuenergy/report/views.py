"""The JSON document and the classic CSV tree of a report, and how views are written."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_gpuenergy.record import Measurement, setpoint_folder, setpoint_order
from pytest_gpuenergy.report.boards import Boards, calibrated_items
from pytest_gpuenergy.report.models import by_model
from pytest_gpuenergy.report.standings import ReportDocument, standings
from pytest_gpuenergy.report.store import Report, is_raw
from pytest_gpuenergy.support import (
    InputError,
    ReportError,
    check_folder_writable,
    csv_text,
    dump,
    followed,
    lock,
    write_atomically,
    written_to,
)

COLUMNS = ("perf(GFLOP/s)", "energy(mJ)", "EDP(ms*mJ)")
DIGITS = 6
"""Significant digits of figures in the classic CSV tree; intervals are much wider than the last."""
EMULATED = "EMULATED.txt"
"""File in the classic CSV tree of a run on an emulated GPU."""
CLASSIC_CAPS = 5
"""Caps in a GPU's table when the report, from an older release or tool, does not list them."""
_LONGEST_NAME, _KEPT, _HASH_DIGITS = 200, 40, 8
Table = list[Sequence[str | int | float | None]]


def json_document(report: Report) -> str:
    """The report as JSON, ``schema_version`` 1, with the best of each workload."""
    best = tuple(one for part in by_model(report) for one in standings(part.measurements))
    boards = Boards(report)
    return dump(
        ReportDocument(
            report.run,
            report.measurements,
            report.anchors,
            report.stations,
            report.board_checks,
            best,
            boards.gains,
            calibrated_items(report, boards),
        )
    )


def write_json(report: Report, path: Path) -> None:
    """Write `json_document` to ``path`` atomically.

    Raises:
        ReportError: it cannot be written.
    """
    write_view(path, json_document(report))


def write_classic_csv(report: Report, folder: Path) -> None:
    """Write the classic CSV tree; failed kernels have no row.

    ``case1/powercap3/results.csv`` has ``id`` and three columns, sorted by id; ``case1/all.csv``
    repeats the three columns for each cap, see `_columns`. ``id`` is the kernel's rank if it has
    one, otherwise its label. Kernels with the same id, and repetitions of a kernel, have a row
    each. Figures have `DIGITS` significant digits. Of a run on several GPU models, each has a
    folder with a tree of its own. As its readers know the columns, it is a file `EMULATED` beside
    them that marks figures of an emulated GPU.

    Raises:
        ReportError: a file cannot be written.
    """
    parts = by_model(report)
    models = _safe_names(part.run.gpu_name for part in parts)
    for part in parts:
        _write_tree(part, folder / models[part.run.gpu_name] if len(parts) > 1 else folder)
    if report.run.emulated and report.measurements:
        text = f"The figures in this folder are those of an emulated {report.run.gpu_name}.\n"
        _write(folder / EMULATED, text)
    else:  # an emulated run may have written here before
        with contextlib.suppress(OSError):
            (folder / EMULATED).unlink()


def _write_tree(report: Report, folder: Path) -> None:
    table_caps = _table_caps(report)
    workloads = _by(report.measurements, lambda m: m.workload.name)
    folders = _safe_names(workloads)
    names = _safe_names({m.cap for m in report.measurements if m.measured})
    for workload, rows in workloads.items():
        place = folder / folders[workload]
        caps = _by(
            sorted(rows, key=setpoint_order), lambda m: setpoint_folder(names[m.cap], m.cap_index)
        )
        for cap, measured in caps.items():
            table: Table = [("id", *COLUMNS)]
            table += [(_identifier(m), *_figures(m)) for m in sorted(measured, key=_id_order)]
            _write(place / cap / "results.csv", csv_text(table))
        by_cap = [_numbered(caps.get(cap, [])) for cap in _columns(table_caps, caps)]
        table = [("id", *(COLUMNS * len(by_cap)))]
        firsts = {key: m for measured in reversed(by_cap) for key, m in measured.items()}
        for key in sorted(firsts, key=lambda key: (*_id_order(firsts[key]), *key)):
            found = [measured.get(key) for measured in by_cap]
            figures = [figure for m in found for figure in (_figures(m) if m else [None] * 3)]
            table.append((_identifier(firsts[key]), *figures))
        _write(place / "all.csv", csv_text(table))


class Target(NamedTuple):
    """The path of a view, and the option that names it."""

    option: str
    path: Path
    folder: bool = False


def check_targets(targets: Sequence[Target], read: Iterable[Path] = ()) -> None:
    """Check that no view would overwrite another, an input, or a run's measurements.

    Args:
        targets: all views that will be written.
        read: the files they are made from.

    Raises:
        InputError: a view would.
    """
    inputs = set(map(_real, read))
    known: list[tuple[Target, Path]] = []
    for target in targets:
        place = _real(target.path)
        _refuse_raw(target.path)
        if place in inputs:
            raise InputError(
                f"{target.option} {target.path} is also an input, and would be overwritten: "
                "choose another path."
            )
        for other, taken in known:
            if place == taken or _is_below(place, other, taken) or _is_below(taken, target, place):
                raise InputError(
                    f"{other.option} {other.path} and {target.option} {target.path} conflict: "
                    "give each a path of its own."
                )
        known.append((target, place))


def check_writable(path: Path, *, folder: bool) -> None:
    """Check, before anything is measured, that a view can be written later.

    Raises:
        InputError: a run stores its measurements there.
        ReportError: it cannot be written.
    """
    _refuse_raw(path)
    with _explained(path):
        target = followed(path) if folder else written_to(path).parent
        target.mkdir(parents=True, exist_ok=True)
        check_folder_writable(target)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_below(place: Path, target: Target, above: Path) -> bool:
    """Whether ``place`` lies below ``above``, although ``target`` will be a file there."""
    return not target.folder and above in place.parents


def _refuse_raw(path: Path) -> None:
    if is_raw(_real(path)):
        raise InputError(
            f"{path} is where a run stores its measurements: choose another path for the view."
        )


def _by(
    rows: Sequence[Measurement], key: Callable[[Measurement], str]
) -> Mapping[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.measured:
            groups[key(row)].append(row)
    return groups


def _numbered(rows: Sequence[Measurement]) -> dict[tuple[str, str, int], Measurement]:
    """Measurements by id, kernel hash, and a running number for repetitions."""
    found: dict[tuple[str, str, int], Measurement] = {}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        kernel = str(_identifier(row)), row.kernel.digest
        found[(*kernel, counts[kernel])] = row
        counts[kernel] += 1
    return found


def _table_caps(report: Report) -> list[str]:
    """Folders of the caps in the GPU's table, lowest first; none when none was requested."""
    measured = {m.cap_index for m in report.measurements if m.cap_index}
    if not measured and not report.run.cap_table_w:
        return []
    count = len(report.run.cap_table_w) or CLASSIC_CAPS
    return [f"powercap{index}" for index in sorted(measured | {*range(1, count + 1)})]


def _columns(table_caps: Sequence[str], caps: Iterable[str]) -> list[str]:
    """The caps in ``all.csv``: the whole table, measured or not, then caps outside it."""
    return [*table_caps, *(cap for cap in caps if cap not in table_caps)]


def _identifier(m: Measurement) -> str | int:
    return m.kernel.label if m.kernel.rank is None else m.kernel.rank


def _id_order(m: Measurement) -> tuple[bool, int, str]:
    return (m.kernel.rank is None, m.kernel.rank or 0, m.kernel.label)


def _figures(m: Measurement) -> list[float | None]:
    found = (m.gflops, m.energy_mj, m.edp_mj_ms)
    return [None if figure is None else float(f"{figure:.{DIGITS}g}") for figure in found]


def _safe_names(names: Iterable[str]) -> dict[str, str]:
    """Names of workloads or caps as safe folder names; the report may be untrusted.

    Of several names with one safe form, the name that is safe itself keeps it; to the others, and
    to long ones, a hash is added.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names, key=lambda name: (_safe(name) != name, name)):
        safe, length = _safe(name), _HASH_DIGITS
        while safe in taken or len(safe.encode()) > _LONGEST_NAME:
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            safe = f"{_safe(name)[:_KEPT]}-{digest[:length]}"
            length += 1
        found[name] = safe
        taken.add(safe)
    return found


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.+=" else "_" for c in name).lstrip(".") or "_"


def write_view(path: Path, content: str | bytes) -> None:
    """Write a view atomically, with its parent folders; a link is followed.

    Raises:
        InputError: a run stores its measurements there.
        ReportError: it cannot be written, or is not a regular file.
    """
    _refuse_raw(path)
    with _explained(path):
        target = written_to(path)
    _write(target, content)


@contextlib.contextmanager
def updating(path: Path) -> Iterator[None]:
    """Lock ``path`` while it is read and rewritten, so that no concurrent update is lost.

    Raises:
        ReportError: its folder cannot be created or locked.
    """
    with _explained(path):
        folder = written_to(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _explained(path):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, content: str | bytes) -> None:
    with _explained(path):
        folder = followed(path.parent)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / path.name, content)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"{path} cannot be written ({error.strerror}): choose a writable path."
        ) from None
