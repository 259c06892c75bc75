"""What a replay found, and its views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record import Measurement, RunInfo
from pytest_gpuenergy.replay.account.account import Account, Saving, Total, totals_of
from pytest_gpuenergy.replay.account.figures import GRAPH
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.report import schema_of
from pytest_gpuenergy.support import aligned, dump, emulated_mark, plain, write_atomically

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


def report_path(report: ReplayReport, folder: Path) -> Path:
    """Return the path of ``gpu_energy_report.json`` in the folder of a profile."""
    return folder / RESULTS[report.run.emulated] / REPORT_JSON


def write_report(report: ReplayReport, folder: Path) -> None:
    """Write ``gpu_energy_report.json`` to the results in the folder of a profile.

    Raises:
        OSError: It cannot be written.
    """
    path = report_path(report, folder)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, dump(report))


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


_SHOWN = 10


def report_lines(report: ReplayReport) -> Iterator[str]:
    """Lines: the accounts, the calls that take most, what limits would save, what is missing."""
    label = emulated_mark(report.run.emulated)
    yield f"{report.profile.model} on {report.run.gpu_name}{label}"
    if report.run.emulated:
        yield "figures that a card has recorded, and a model of what power limits do to them"
    if report.profile.power is not None:
        yield f"profiled with {report.profile.power.sentence}"
    for one in report.accounts:
        yield from ("", *_account(one, _step(report, one)))
    for total in report.totals:
        yield from ("", *_total(total, report))
    for one in report.accounts:
        if one.level == GRAPH:
            yield from ("", *_parts(one, _step(report, one)))
    for step in dict.fromkeys(one.step for one in report.savings):
        found = [one for one in report.savings if one.step == step]
        yield from ("", *_savings(found, report.profile.step_name(step)))
    reasons: dict[str, list[str]] = {}
    for key, why in report.missing.items():
        reasons.setdefault(why, []).append(key)
    if reasons:
        yield from ("", "not replayed")
        yield from (f"{', '.join(keys)}: {why}" for why, keys in reasons.items())


def _step(report: ReplayReport, one: Account) -> str:
    """The words for an account's step, with its rank if there are several."""
    name = report.profile.step_name(one.step)
    return f"rank {one.rank}, {name}" if report.profile.ranks > 1 else name


def _total(one: Total, report: ReplayReport) -> Iterator[str]:
    yield (
        f"all {report.profile.ranks} GPUs, {report.profile.step_name(one.step)}, {one.level}, "
        f"{one.cap}: {one.energy_mj:.4g} mJ and {one.time_ms:.4g} ms measured; predicted "
        f"{one.predicted_mj:.4g} mJ ({one.energy_error:+.1%})"
    )
    yield f"  {_per_token(one)}"


def _account(one: Account, step: str) -> Iterator[str]:
    yield (
        f"{step}, {one.level}, {one.cap}: {one.energy_mj:.4g} mJ and {one.time_ms:.4g} "
        f"ms measured; predicted {one.predicted_mj:.4g} mJ ({one.energy_error:+.1%})"
    )
    yield (
        f"  calls {one.kernels_mj:.4g} mJ ±{one.kernels_mj_half_width:.2g} in {one.kernels_ms:.4g} "
        f"ms, temperature {one.temperature_mj:+.3g}{_links(one)}, gaps {one.gaps_mj:+.3g} in "
        f"{one.gaps_ms:.3g} ms at {one.idle_w:.1f} W, residual {one.residual_mj:+.3g}"
    )
    yield f"  {one.coverage:.1%} of the GPU time replayed{_gpu_time(one)}"
    yield f"  {_per_token(one)}"
    if one.spaced:
        yield (
            f"  {len(one.spaced)} calls that the power limit holds back alone were measured with "
            f"gaps between them, too: {', '.join(one.spaced)}"
        )
    if one.limited:
        yield (
            f"  the power limit held {len(one.limited)} calls back alone, but not in the step: "
            f"{', '.join(one.limited)}"
        )


def _links(one: Account) -> str:
    return f", links {one.links_mj:+.3g} at {one.links_w:.1f} W" if one.links_w is not None else ""


def _per_token(one: Account | Total) -> str:
    edp = f"EDP {one.edp_mj_ms:.4g} mJ ms"
    if one.joules_per_token is None or one.tokens_per_joule is None:
        return edp
    return (
        f"{one.joules_per_token:.4g} J per token, {one.tokens_per_joule:.4g} tokens per joule, "
        f"{edp}"
    )


def _gpu_time(one: Account) -> str:
    if one.gpu_ms is None or one.time_error is None:
        return ""
    return (
        f"; by the profiler {one.gpu_ms:.4g} ms alone, {one.trace_ms:.4g} ms in the model "
        f"({one.time_error:+.1%})"
    )


def _parts(one: Account, step: str) -> Iterator[str]:
    total_mj = sum(part.energy_mj for part in one.parts) or 1.0
    shown = one.parts[:_SHOWN]
    share = sum(part.energy_mj for part in shown) / total_mj
    yield f"{step}, {one.cap}: {len(shown)} calls take {share:.1%} of the calls' energy"
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
    yield from aligned([header, *rows])


def _savings(found: Sequence[Saving], step: str) -> Iterator[str]:
    total_mj = sum(one.energy_mj for one in found) or 1.0
    saved_mj = sum(one.saved_mj for one in found)
    yield (
        f"{step}: each call under the limit that suits it best would save "
        f"{saved_mj:.4g} mJ ({saved_mj / total_mj:.1%})"
    )
    header = ("call", "calls", "best limit", "mJ saved", "saved", "time", "operator")
    rows = [
        (
            one.call,
            str(one.calls),
            one.cap,
            f"{one.saved_mj:.4g}",
            f"{one.saved_mj / one.energy_mj:.1%}" if one.energy_mj else "",
            f"{one.slowdown - 1:+.1%}",
            one.operator,
        )
        for one in found[:_SHOWN]
    ]
    yield from aligned([header, *rows])
