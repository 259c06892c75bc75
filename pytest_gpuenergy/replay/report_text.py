"""A replay's report as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuenergy.replay.account import Account, Saving, Total
from pytest_gpuenergy.replay.figures import GRAPH
from pytest_gpuenergy.replay.reporting import ReplayReport
from pytest_gpuenergy.support import aligned, emulated_mark

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
