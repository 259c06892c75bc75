"""What a replay found, and its views."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record import Measurement, RunInfo
from pytest_gpuenergy.replay.account import Account, Saving, Total, totals_of
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.report import schema_of
from pytest_gpuenergy.support import dump, plain, write_atomically

RESULTS = {False: "results", True: "results-emulated"}
"""Folder of the results, by whether the GPU is emulated."""
REPORT_JSON = "gpu_energy_report.json"


class ReplayReport(Struct, frozen=True):
    """What a replay found; stands in ``gpu_energy_report.json``.

    Attributes:
        run: where and with what it was replayed; ``emulated`` if recorded figures were, on an
            emulated GPU.
        profile: what was profiled.
        cache: state of the L2 cache in the replays.
        accounts: of each power limit, step and level that could be measured.
        savings: with several power limits, of each call of each step; the reference is the limit
            as it was found, or otherwise the highest.
        missing: by the id of a call that was not replayed, or the name of a level, the reason;
            with several power limits, the limit's label follows after ``@`` if it is for that only.
        measurements: of calls, layers and steps.
        totals: of all ranks together, where several share the model.
    """

    run: RunInfo
    profile: ProfileRecord
    cache: str
    accounts: tuple[Account, ...]
    savings: tuple[Saving, ...]
    missing: dict[str, str]
    measurements: tuple[Measurement, ...]
    totals: tuple[Total, ...] = ()
    schema_version: int = 1


def combined(reports: Sequence[ReplayReport]) -> ReplayReport:
    """The report of all ranks that share a model; that of a single one is as it was.

    Args:
        reports: of each rank.
    """
    first, *others = reports
    if not others:
        return first
    accounts = tuple(one for report in reports for one in report.accounts)
    return replace(
        first,
        accounts=accounts,
        totals=tuple(totals_of(accounts, len(reports))),
        savings=tuple(one for report in reports for one in report.savings),
        missing={
            f"rank{rank}/{key}": why
            for rank, report in enumerate(reports)
            for key, why in report.missing.items()
        },
        measurements=tuple(one for report in reports for one in report.measurements),
    )


def write_report(report: ReplayReport, folder: Path) -> Path:
    """Write ``gpu_energy_report.json`` to the results of a profile's folder.

    Returns:
        Its path.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / RESULTS[report.run.emulated] / REPORT_JSON
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, dump(report))
    return path


def schema_document() -> str:
    """The JSON Schema of ``gpu_energy_report.json``."""
    return dump(schema_of(ReplayReport, "Replay of a model by pytest-gpuenergy"))


def page_values(report: ReplayReport) -> dict[str, object]:
    """What the HTML page shows of a replay beside its measurements."""
    return {
        "model": report.profile.model,
        "steps": {str(one.step): report.profile.step_name(one.step) for one in report.accounts},
        "accounts": [
            {**plain(one), "missing": len(one.missing), "limited": list(one.limited)}
            for one in report.accounts
        ],
        "ranks": report.profile.ranks,
        "totals": plain(report.totals),
        "savings": plain(report.savings),
        "missing": [{"what": key, "why": why} for key, why in report.missing.items()],
    }
