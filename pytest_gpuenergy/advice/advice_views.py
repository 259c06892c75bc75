"""Advice for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_gpuenergy.advice.advice import Advice, Outcome, PlanChange, Setting
from pytest_gpuenergy.advice.field import listed
from pytest_gpuenergy.advice.mode_costs import ModeCost, ModeCosts
from pytest_gpuenergy.advice.plans import PlanOption, plan_sum
from pytest_gpuenergy.record import METRICS, Estimate, Metric
from pytest_gpuenergy.report import (
    energy,
    figures,
    markdown_lines,
    markdown_text,
    signed_percent,
    spread,
    time,
)
from pytest_gpuenergy.support import dump, emulated_mark, fitted, wrapped

KERNELS_NAMED = 3
_KERNELS = ("workload", "times", "kernel", "time", "energy")
_EACH = ("workload", "setpoint", "kernel", "EDP", "energy", "time", "baseline")


def terminal(
    outcome: Outcome, width: int | None = None, modes: ModeCosts | None = None
) -> Iterator[str]:
    """Yield the setpoint for all workloads, its kernels, and the setpoint of each by itself.

    With ``modes``, what all workloads cost in each mode comes first.

    Lines have at most ``width`` characters; None: any number.
    """
    whole = outcome.whole
    lines = [heading(outcome)]
    if modes is not None:
        yield from wrapped(heading(outcome), width)
        for line in _mode_sentences(modes):
            yield from wrapped(line, width)
        yield from _indented([mode_columns(modes), *_mode_rows(modes)], width)
        if modes.best is None:
            yield from wrapped(_NO_MODE, width)
            return
        lines = [_ADVISED_MODE.format(modes.best.key.title)]
    lines += outcome.sentences
    if whole is None:
        lines.append(_NO_WHOLE)
    else:
        lines.append(_for_all(outcome, whole))
        lines += [f"  {line}" for line in _change_lines(whole)]
        lines += [f"  {line}" for line in _remarks(outcome, whole)]
    for line in lines:
        yield from wrapped(line, width)
    if whole is not None:
        yield from _indented([_KERNELS, *_kernel_rows(whole)], width)
    if whole is None or len(outcome.each) > 1:
        yield "each workload by itself"
        yield from _indented([_EACH, *map(_each_row, outcome.each)], width)


def _indented(table: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    yield from (f"  {line}" for line in fitted(table, None if width is None else width - 2))


def markdown(outcome: Outcome, modes: ModeCosts | None = None) -> str:
    """Return the same as a Markdown document."""
    lines = [f"# {markdown_text(heading(outcome))}"]
    if modes is not None:
        sentences = map(_sentence, _mode_sentences(modes))
        lines += ["", *(f"{markdown_text(line)}  " for line in sentences), ""]
        lines += [*markdown_lines(mode_columns(modes), _mode_rows(modes)), ""]
        if modes.best is None:
            return "\n".join([*lines, markdown_text(_sentence(_NO_MODE)), ""])
        lines += [f"**{markdown_text(_ADVISED_MODE.format(modes.best.key.title))}**"]
    if outcome.sentences:
        lines += ["", *(f"{markdown_text(_sentence(line))}  " for line in outcome.sentences)]
    whole = outcome.whole
    if whole is None:
        lines += ["", markdown_text(_sentence(_NO_WHOLE)), ""]
    else:
        lines += ["", f"**{markdown_text(_for_all(outcome, whole))}**", ""]
        lines += [f"- {markdown_text(line)}" for line in _change_lines(whole)]
        lines += [f"- {markdown_text(line)}" for line in _remarks(outcome, whole)]
        lines += ["", *markdown_lines(_KERNELS, _kernel_rows(whole)), ""]
    if whole is None or len(outcome.each) > 1:
        lines += ["Each workload by itself:", ""]
        lines += [*markdown_lines(_EACH, map(_each_row, outcome.each)), ""]
    return "\n".join(lines).rstrip() + "\n"


def json_document(outcome: Outcome, modes: ModeCosts | None = None) -> str:
    """Return the same as JSON, ``schema_version`` 1; changes are fractions (-0.1: 10 % less)."""
    goal = outcome.goal
    if modes is not None and modes.best is None:
        outcome = dataclasses.replace(outcome, whole=None, apart=None, each=())
    document: dict[str, Any] = {
        "schema_version": 1,
        "run_id": outcome.run.run_id,
        "gpu_name": outcome.gpu_name,
        "emulated": outcome.emulated,
        "boards": list(outcome.boards),
        "objective": goal.metric,
        "slower_by": goal.slower_by,
        "weights": dict(outcome.weights),
        "modes": None if modes is None else _modes(modes),
        "sentences": list(outcome.sentences),
        "whole": None if outcome.whole is None else _advice(outcome.whole),
        "apart": None if outcome.apart is None else _changes(outcome.apart),
        "workloads": [_advice(advice) for advice in outcome.each],
    }
    return dump(document)


_NO_WHOLE = (
    "no setpoint has a clean measurement of every workload, so there is none to advise for all"
)


_ADVISED_MODE = "best accepted mode: {}"
_NO_MODE = "no accepted mode has a clean measurement of every workload, so there is none to advise"


def heading(outcome: Outcome) -> str:
    """``NVIDIA H200 (emulated), run ...: least energy at most 5 % slower``."""
    goal = outcome.goal
    words = f"least {goal.metric.label}"
    if goal.slower_by is not None:
        words += f" at most {_percent(goal.slower_by)} slower than the baseline"
    emulated = emulated_mark(outcome.emulated)
    return f"{outcome.gpu_name}{emulated}, run {outcome.run.run_id}: {words}"


def mode_columns(modes: ModeCosts) -> tuple[str, ...]:
    """Return the headings of the table of modes."""
    per_image = " per image" if modes.images is not None else ""
    against = "" if modes.reference is None else f" against {modes.reference.key.title}"
    changes = (f"{name}{against}" for name in ("energy", "time"))
    return ("mode", "error bound", f"energy{per_image}", f"time{per_image}", *changes)


def _mode_sentences(modes: ModeCosts) -> Iterator[str]:
    yield from modes.sentences
    if modes.saving is not None:
        assert modes.exact is not None
        assert modes.rival is not None
        words = (f"{m.label} {_change_words(modes.saving[m])}" for m in METRICS)
        yield (
            f"{modes.exact.key.title}, with the error bound of float32, against "
            f"{modes.rival.key.title}: {', '.join(words)}"
        )
    if modes.setpoint:
        yield f"all workloads in each mode, at {modes.setpoint}"


def _mode_rows(modes: ModeCosts) -> Iterator[tuple[str, ...]]:
    for row in modes.rows:
        bound = "unknown" if row.bound is None else f"{row.bound:.2g}"
        if row.setting is None:
            yield (row.key.title, bound, *["-"] * 4)
            continue
        images = modes.images or 1
        candidate, cost = row.setting.candidate, row.setting.cost
        changes = modes.changes[row.key]
        title = row.key.title
        if row.borrowed:
            title += f" ({len(row.borrowed)} of {len(row.setting.plan)} in float32)"
        yield (
            title,
            bound,
            f"{energy(cost.energy / images)}{spread(plan_sum(candidate, Metric.ENERGY))}",
            f"{time(cost.time / images)}{spread(plan_sum(candidate, Metric.TIME))}",
            *(_change_words(changes[metric]) for metric in (Metric.ENERGY, Metric.TIME)),
        )


def _modes(modes: ModeCosts) -> dict[str, Any]:
    def title(row: ModeCost | None) -> str | None:
        return None if row is None else row.key.title

    return {
        "setpoint": modes.setpoint or None,
        "images": modes.images,
        "best": title(modes.best),
        "reference": title(modes.reference),
        "exact": title(modes.exact),
        "rival": title(modes.rival),
        "saving": None if modes.saving is None else _changes(modes.saving),
        "refused": dict(modes.refused),
        "rows": [
            {
                "title": row.key.title,
                "mode": row.key.mode,
                "layout": row.key.layout or "nchw",
                "library": row.key.library or None,
                "error_bound": row.bound,
                "missing": list(row.missing),
                "borrowed": list(row.borrowed),
                "cost": None if row.setting is None else _setting(row.setting),
                "kernels": [] if row.setting is None else _kernels(row.setting),
                "changes": _changes(modes.changes[row.key]) if row.key in modes.changes else None,
            }
            for row in modes.rows
        ],
    }


def _for_all(outcome: Outcome, whole: Advice) -> str:
    count = len(whole.workloads)
    what = whole.workloads[0] if count == 1 else f"all {count} workloads together"
    times = [] if all(weight == 1 for weight in outcome.weights.values()) else ["weighted"]
    words = f"{', '.join([what, *times])}: {whole.best.setpoint}"
    others = [name for name in whole.tied if name != whole.best.setpoint]
    return f"{words}; as good within noise: {', '.join(others)}" if others else words


def _change_lines(advice: Advice) -> Iterator[str]:
    """Yield the change of each metric, and then the sums."""
    if (
        advice.best.setpoint == advice.baseline.setpoint
        and not advice.changes[advice.goal.metric].value
    ):
        yield f"this is the baseline: {_sums(advice.best)}"
        return
    for metric in METRICS:
        yield f"{metric.label} {_change_words(advice.changes[metric])}"
    yield (
        f"{_sums(advice.best)}; at the baseline {advice.baseline.setpoint} {_sums(advice.baseline)}"
    )


def _sums(setting: Setting) -> str:
    cost = setting.cost
    values = (time(cost.time), energy(cost.energy), f"{figures(cost.product)} mJ·ms")
    spreads = (spread(plan_sum(setting.candidate, metric)) for metric in METRICS)
    return ", ".join(f"{value}{ends}" for value, ends in zip(values, spreads, strict=True))


def _change_words(change: PlanChange) -> str:
    words = signed_percent(change.value)
    if change.interval is not None and change.interval.low == change.interval.high == 0:
        return "0 %"  # the same kernels at the same setpoint
    if change.interval is None:
        return f"{words} (no interval: figures lack theirs)"
    ends = (signed_percent(end) for end in (change.interval.low, change.interval.high))
    return f"{words} ({' to '.join(ends)})"


def _remarks(outcome: Outcome, whole: Advice) -> Iterator[str]:
    goal = outcome.goal
    if whole.too_slow:
        yield f"too slow, with any kernels: {listed(whole.too_slow)}"
    if whole.may_be_too_slow and goal.slower_by is not None:
        yield f"the slowdown may be more than {_percent(goal.slower_by)}, within noise"
    solution = whole.best.solution
    if not solution.exact:
        gap = whole.best.cost.energy / solution.bound - 1
        yield f"other kernels might take up to {_percent(gap)} less: the search was cut short"
    yield from whole.edges
    if outcome.apart is not None:
        change = outcome.apart[goal.metric]
        yield f"with a setpoint for each workload: {goal.metric.label} {_change_words(change)}"


def _kernel_rows(advice: Advice) -> Iterator[tuple[str, ...]]:
    for option, rivals in zip(advice.best.plan, advice.best.candidate.rivals, strict=True):
        row = option.row
        yield (
            row.workload.name,
            f"{option.weight:g}",
            _kernel_words(rivals),
            f"{time(row.time_ms or 0.0)}{spread(row.estimate(Metric.TIME))}",
            f"{energy(row.energy_mj or 0.0)}{spread(row.estimate(Metric.ENERGY))}",
        )


def _kernel_words(rivals: Sequence[PlanOption]) -> str:
    """Return the kernel, with those that may be as good within noise."""
    first, *others = dict.fromkeys(option.row.kernel.label for option in rivals)
    if not others:
        return first
    named = ", ".join(others[: KERNELS_NAMED - 1])
    more = len(others) - (KERNELS_NAMED - 1)
    return f"{first}, {named}{f' and {more} more' if more > 0 else ''} within noise"


def _each_row(advice: Advice) -> tuple[str, ...]:
    others = [name for name in advice.tied if name != advice.best.setpoint]
    tied = f" (or {len(others)} more within noise)" if others else ""
    changes = (advice.changes[metric] for metric in (Metric.EDP, Metric.ENERGY, Metric.TIME))
    return (
        advice.workloads[0],
        f"{advice.best.setpoint}{tied}",
        _kernel_words(advice.best.candidate.rivals[0]),
        *map(_change_words, changes),
        advice.baseline.setpoint,
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.4g} %"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "workloads": list(advice.workloads),
        **_setting(advice.best),
        "within_noise": list(advice.tied),
        "changes": _changes(advice.changes),
        "kernels": _kernels(advice.best),
        "baseline": {**_setting(advice.baseline), "kernels": _kernels(advice.baseline)},
        "setpoints": [_setting(setting) for setting in advice.settings],
        "too_slow": list(advice.too_slow),
        "may_be_too_slow": advice.may_be_too_slow,
        "edges": list(advice.edges),
    }


def _setting(setting: Setting) -> dict[str, Any]:
    row, cost = setting.plan[0].row, setting.cost
    return {
        "setpoint": setting.setpoint,
        "power_limit_w": row.power_limit_w,
        "sm_clock_mhz": row.sm_clock_mhz,
        "time_ms": cost.time,
        "energy_mj": cost.energy,
        "edp_mj_ms": cost.product,
        **{
            f"{metric.field}_ci95": _ends(plan_sum(setting.candidate, metric)) for metric in METRICS
        },
        "exact": setting.solution.exact,
        "bound": setting.solution.bound,
    }


def _ends(estimate: Estimate | None) -> list[float] | None:
    return None if estimate is None else [estimate.low, estimate.high]


def _changes(changes: Mapping[Metric, PlanChange]) -> dict[str, Any]:
    return {
        metric: {
            "change": math.expm1(one.value),
            "interval": one.interval
            and [math.expm1(one.interval.low), math.expm1(one.interval.high)],
        }
        for metric, one in changes.items()
    }


def _kernels(setting: Setting) -> list[dict[str, Any]]:
    return [
        {
            "workload": row.workload.name,
            "weight": option.weight,
            "kernel": row.kernel.label,
            "digest": row.kernel.digest,
            "item": row.node_id,
            "time_ms": row.time_ms,
            "energy_mj": row.energy_mj,
            "time_ms_ci95": _ends(row.estimate(Metric.TIME)),
            "energy_mj_ci95": _ends(row.estimate(Metric.ENERGY)),
            "within_noise": list(dict.fromkeys(rival.row.kernel.label for rival in rivals)),
        }
        for option, rivals in zip(setting.plan, setting.candidate.rivals, strict=True)
        for row in [option.row]
    ]
