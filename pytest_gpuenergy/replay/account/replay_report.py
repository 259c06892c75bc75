"""The report of a replay: its file, its text in a terminal, and its values on the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record import Measurement, RunInfo
from pytest_gpuenergy.replay.account.account import GRAPH, Account, Saving, Total, total_over_ranks
from pytest_gpuenergy.replay.account.change_savings import ChangeSaving, change_lines
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.report import document_schema
from pytest_gpuenergy.support import (
    aligned,
    dump,
    emulated_mark,
    plain,
    plain_numbers,
    write_atomically,
)

RESULTS = {False: "results", True: "results-emulated"}
"""The folder of the results within that of the profile, by whether the GPU is emulated."""
REPORT_JSON = "gpu_energy_report.json"


class ReplayReport(Struct, frozen=True):
    """The results of a replay, as ``gpu_energy_report.json`` has them.

    Attributes:
        run: Where and with what options it was replayed; ``emulated`` if an emulated GPU replayed
            recorded figures.
        profile: What was profiled.
        cache: The state of the L2 cache in the replay.
        accounts: The accounts of each power limit, step and level that could be measured.
        savings: With several power limits, the savings of each call of each step. The reference is
            the limit as it was found or, if that was not measured, the highest.
        missing: The reason for each call that was not replayed, by its id, or for each level, by
            its name. ``@`` and the label of a power limit follow if it concerns this limit alone.
        measurements: The measurements of calls, layers and steps.
        totals: The sums over all ranks, where several share the model.
        changes: What changes of calls would save in each step, if such were measured.
        schema_version: The version of this form.
    """

    run: RunInfo
    profile: ProfileRecord
    cache: str
    accounts: tuple[Account, ...]
    savings: tuple[Saving, ...]
    missing: dict[str, str]
    measurements: tuple[Measurement, ...]
    totals: tuple[Total, ...] = ()
    changes: tuple[ChangeSaving, ...] = ()
    schema_version: int = 1


def combined(reports: Sequence[ReplayReport]) -> ReplayReport:
    """Combine the reports of the ranks that share a model; a single report is left as it is."""
    first, *others = reports
    if not others:
        return first
    accounts = tuple(account for report in reports for account in report.accounts)
    return replace(
        first,
        accounts=accounts,
        totals=tuple(total_over_ranks(accounts, len(reports))),
        savings=tuple(saving for report in reports for saving in report.savings),
        missing={
            f"rank{rank}/{key}": why
            for rank, report in enumerate(reports)
            for key, why in report.missing.items()
        },
        measurements=tuple(
            measurement for report in reports for measurement in report.measurements
        ),
    )


def report_path(report: ReplayReport, folder: Path) -> Path:
    """Return the path of ``gpu_energy_report.json`` in the folder of a profile."""
    return folder / RESULTS[report.run.emulated] / REPORT_JSON


def write_report(report: ReplayReport, folder: Path) -> None:
    """Write ``gpu_energy_report.json`` to the results in the folder of a profile."""
    path = report_path(report, folder)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, dump(report))


def schema_document() -> str:
    """Return the JSON Schema of ``gpu_energy_report.json``."""
    return dump(document_schema(ReplayReport, "Replay of a model by pytest-gpuenergy"))


def page_values(report: ReplayReport) -> dict[str, object]:
    """Return what the HTML page shows of a replay beside its measurements."""
    return {
        "model": report.profile.model,
        "steps": {
            str(account.step): report.profile.step_name(account.step) for account in report.accounts
        },
        "accounts": [
            {**plain(account), "missing": len(account.missing), "limited": list(account.limited)}
            for account in report.accounts
        ],
        "ranks": report.profile.ranks,
        "totals": plain(report.totals),
        "savings": plain(report.savings),
        "missing": [{"what": key, "why": why} for key, why in report.missing.items()],
    }


_SHOWN = 10
"""The number of calls in a table of the terminal; the JSON has all of them."""


def report_lines(report: ReplayReport) -> Iterator[str]:
    """Yield lines with the accounts, the largest calls, possible savings, and what is missing."""
    label = emulated_mark(report.run.emulated)
    yield f"{report.profile.model} on {report.run.gpu_name}{label}"
    if report.run.emulated:
        yield "figures that a card has recorded, and a model of what power limits do to them"
    if report.profile.power is not None:
        yield f"profiled with {report.profile.power.sentence}"
    for account in report.accounts:
        yield from ("", *_account(account, _step(report, account)))
    for total in report.totals:
        name = f"all {report.profile.ranks} GPUs, {report.profile.step_name(total.step)}"
        yield from ("", _measured(total, name), f"  {_per_token(total)}")
    for account in report.accounts:
        if account.level == GRAPH:
            yield from ("", *_parts(account, _step(report, account)))
    for step in dict.fromkeys(saving.step for saving in report.savings):
        found = [saving for saving in report.savings if saving.step == step]
        yield from ("", *_savings(found, report.profile.step_name(step)))
    for step in dict.fromkeys(saving.step for saving in report.changes):
        for cap in dict.fromkeys(saving.cap for saving in report.changes):
            changes = [one for one in report.changes if (one.step, one.cap) == (step, cap)]
            yield from ("", *change_lines(changes, f"{report.profile.step_name(step)}, {cap}"))
    reasons: dict[str, list[str]] = {}
    for key, why in report.missing.items():
        reasons.setdefault(why, []).append(key)
    if reasons:
        yield from ("", "not replayed")
        yield from (f"{', '.join(keys)}: {why}" for why, keys in reasons.items())


def _step(report: ReplayReport, account: Account) -> str:
    """Return the name of an account's step, with the rank if there are several."""
    name = report.profile.step_name(account.step)
    return f"rank {account.rank}, {name}" if report.profile.ranks > 1 else name


def _account(account: Account, step: str) -> Iterator[str]:
    yield _measured(account, step)
    others = ""
    if account.spaced:
        spread = f" ±{account.clocks_mj_half_width:.2g}"
        others += f", clocks {account.clocks_mj:+.3g}{spread} in {account.clocks_ms:+.3g} ms"
    if account.windows:
        spread = f" ±{account.neighbours_mj_half_width:.2g}"
        others += (
            f", neighbours {account.neighbours_mj:+.3g}{spread} in {account.neighbours_ms:+.3g} ms"
        )
    if account.links_w is not None:
        spread = f" ±{account.links_mj_half_width:.2g}" if account.links_mj_half_width else ""
        others += f", links {account.links_mj:+.3g}{spread} at {account.links_w:.1f} W"
    gaps_w = account.idle_w if account.gaps_w is None else account.gaps_w
    spread = f" ±{account.gaps_mj_half_width:.2g}" if account.gaps_mj_half_width else ""
    within = ", within the intervals" if account.is_within_intervals else ""
    yield (
        f"  calls {account.kernels_mj:.4g} mJ ±{account.kernels_mj_half_width:.2g} in "
        f"{account.kernels_ms:.4g} ms, temperature {account.temperature_mj:+.3g} "
        f"±{account.temperature_mj_half_width:.2g}{others}, gaps "
        f"{account.gaps_mj:+.3g}{spread} in {account.gaps_ms:.3g} ms at {gaps_w:.1f} W, residual "
        f"{account.residual_mj:+.3g}{within}"
    )
    replayed = f"  {account.coverage:.1%} of the GPU time replayed"
    if account.gpu_ms is not None and account.time_error is not None:
        beside = f" and {account.neighbours_gpu_ms:+.3g} with neighbours" if account.windows else ""
        replayed += (
            f"; by the profiler {account.gpu_ms:.4g} ms alone{beside}, {account.trace_ms:.4g} ms "
            f"in the model ({account.time_error:+.1%})"
        )
    yield replayed
    yield f"  {_per_token(account)}"
    if account.spaced:
        yield (
            f"  {len(account.spaced)} calls that the power limit holds back alone were measured "
            f"with gaps between them, too: {', '.join(account.spaced)}"
        )
    if account.limited:
        yield (
            f"  the power limit held {len(account.limited)} calls back alone, but not in the step: "
            f"{', '.join(account.limited)}"
        )


def _measured(figures: Account | Total, step: str) -> str:
    return (
        f"{step}, {figures.level}, {figures.cap}: {figures.energy_mj:.4g} mJ and "
        f"{figures.time_ms:.4g} ms measured; predicted {figures.predicted_mj:.4g} mJ "
        f"({figures.energy_error:+.1%})"
    )


def _per_token(figures: Account | Total) -> str:
    edp = f"EDP {figures.edp_mj_ms:.4g} mJ ms"
    if figures.joules_per_token is None or figures.tokens_per_joule is None:
        return edp
    return (
        f"{figures.joules_per_token:.4g} J per token, "
        f"{figures.tokens_per_joule:.4g} tokens per joule, {edp}"
    )


def _parts(account: Account, step: str) -> Iterator[str]:
    total_mj = sum(part.energy_mj for part in account.parts) or 1.0
    shown = account.parts[:_SHOWN]
    share = sum(part.energy_mj for part in shown) / total_mj
    yield f"{step}, {account.cap}: {len(shown)} calls take {share:.1%} of the calls' energy"
    header = ("call", "calls", "ms", "mJ", "energy", "operator")
    rows = [
        (
            part.call,
            str(part.calls),
            f"{part.time_ms:.4g}",
            f"{part.energy_mj:.4g}",
            f"{part.energy_mj / total_mj:.1%}",
            part.operator,
        )
        for part in shown
    ]
    yield from aligned([header, *([*map(plain_numbers, row)] for row in rows)])


def _savings(found: Sequence[Saving], step: str) -> Iterator[str]:
    total_mj = sum(saving.energy_mj for saving in found) or 1.0
    saved_mj = sum(saving.saved_mj for saving in found)
    yield (
        f"{step}: each call under the limit that suits it best would save "
        f"{saved_mj:.4g} mJ ({saved_mj / total_mj:.1%})"
    )
    header = ("call", "calls", "best limit", "mJ saved", "saved", "time", "operator")
    rows = [
        (
            saving.call,
            str(saving.calls),
            saving.cap,
            f"{saving.saved_mj:.4g}",
            f"{saving.saved_mj / saving.energy_mj:.1%}" if saving.energy_mj else "",
            f"{saving.slowdown - 1:+.1%}",
            saving.operator,
        )
        for saving in found[:_SHOWN]
    ]
    yield from aligned([header, *([*map(plain_numbers, row)] for row in rows)])
