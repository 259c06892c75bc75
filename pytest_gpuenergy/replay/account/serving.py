"""Adds up the measured steps of a schedule: joules per token and request of serving.

    E = sum over sizes of steps x E(step),    t = sum over sizes of steps x t(step)

What the measurements of all steps have in common, such as an error of the card's sensor, does not
average out over steps. The interval of a sum therefore is the sum of the intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from pytest_gpuenergy.record import RunInfo
from pytest_gpuenergy.replay.account.account import EAGER, GRAPH, Account
from pytest_gpuenergy.replay.schedule import Batching, Phase, Schedule, Served, Step
from pytest_gpuenergy.support import aligned, emulated_mark, plain_numbers


class StepFigures(Struct, frozen=True):
    """The steps of one size under one setpoint, at one level.

    Attributes:
        cap: The label of the setpoint.
        level: ``graph`` or ``eager``, see `Account`.
        step: The size.
        served: How often it runs, and what it processes.
        time_ms: The measured time of one step.
        energy_mj: The measured energy of one step.
        energy_mj_half_width: The half width of the energy's 95 % interval.
        predicted_mj: The energy of one step by its account: calls, temperature and gaps.
    """

    cap: str
    level: str
    step: Step
    served: Served
    time_ms: float
    energy_mj: float
    energy_mj_half_width: float
    predicted_mj: float


class Sum(Struct, frozen=True):
    """The energy of several steps, and that per token.

    Attributes:
        steps: The number of steps.
        tokens: The number of tokens to divide by: of prompts for the prefill, and generated ones
            otherwise. The prefill generates the first token of each request.
        time_s: The time of all steps.
        energy_j: The energy of all steps.
        energy_j_half_width: The half width of its 95 % interval, if the errors of the steps are
            fully correlated.
        predicted_j: The sum of the accounts of these steps.
        joules_per_token: The energy per token.
        joules_per_token_half_width: The half width of its 95 % interval.
    """

    steps: int
    tokens: int
    time_s: float
    energy_j: float
    energy_j_half_width: float
    predicted_j: float
    joules_per_token: float
    joules_per_token_half_width: float


class Serving(Struct, frozen=True):
    """The energy of a schedule under one setpoint, at one level.

    Attributes:
        cap: The label of the setpoint.
        level: ``graph`` or ``eager``, see `Account`.
        prefill: The prefills, per token of the prompts; None without any.
        decode: The decode steps, per token that they generate; None without any.
        total: All steps, per generated token, the first one of each request included.
        steady: The steps of the steady state, per generated token; None without a steady state.
        requests: The number of requests.
        joules_per_request: The energy of all steps per request; None without prefills.
        joules_per_request_half_width: The half width of its 95 % interval.
        edp_per_token_mj_ms: The energy per generated token times the time per generated token.
    """

    cap: str
    level: str
    prefill: Sum | None
    decode: Sum | None
    total: Sum
    steady: Sum | None
    requests: int
    joules_per_request: float | None
    joules_per_request_half_width: float | None
    edp_per_token_mj_ms: float


class BestSetpoints(Struct, frozen=True):
    """The best setpoints for a schedule at one level.

    Attributes:
        level: ``graph`` or ``eager``, see `Account`.
        reference: The setpoint that others are compared with.
        energy: The setpoint with the least energy per token; the reference unless the interval of
            its energy lies above.
        edp: The setpoint with the least EDP per token; the reference unless its EDP lies above by
            more than the intervals of the energies explain.
    """

    level: str
    reference: str
    energy: str
    edp: str


class ServingReport(Struct, frozen=True):
    """The results of a schedule, as ``serving_report.json`` has them.

    Attributes:
        run: Where and with what options it was replayed; ``emulated`` if an emulated GPU replayed
            recorded figures.
        model: The name of the model.
        schedule: The name of the file.
        batching: How requests were batched; None for a list of steps.
        prompts_rounding: The tokens of prompts as measured, relative to those of the trace.
        contexts_rounding: The tokens in the caches of decode steps likewise.
        serving: The energy under each setpoint and at each level, whose steps were all measured.
        best: With several setpoints, the best ones.
        steps: The figures of each size.
        missing: The reason for each size, call and sum that has no figures.
        schema_version: The version of this form.
    """

    run: RunInfo
    model: str
    schedule: str
    batching: Batching | None
    prompts_rounding: float
    contexts_rounding: float
    serving: tuple[Serving, ...]
    best: tuple[BestSetpoints, ...]
    steps: tuple[StepFigures, ...]
    missing: dict[str, str]
    schema_version: int = 1


def serving_of(
    schedule: Schedule, accounts: Mapping[Step, Sequence[Account]], setpoints: Sequence[str]
) -> tuple[list[StepFigures], list[Serving], dict[str, str]]:
    """Add up the accounts of a schedule's steps.

    Args:
        schedule: The steps.
        accounts: The accounts of each size.
        setpoints: The labels of the setpoints.

    Returns:
        The figures of each size; the sums of each setpoint and level of which all sizes have
        figures; and by setpoint and level, why there is no sum.
    """
    figures: list[StepFigures] = []
    sums: list[Serving] = []
    missing: dict[str, str] = {}
    for cap in setpoints:
        for level in (GRAPH, EAGER):
            found = {
                step: StepFigures(
                    cap,
                    level,
                    step,
                    served,
                    account.time_ms,
                    account.energy_mj,
                    account.energy_mj_half_width,
                    account.predicted_mj,
                )
                for step, served in sorted(schedule.served.items())
                for account in accounts.get(step, ())
                if (account.cap, account.level) == (cap, level)
            }
            figures += found.values()
            if lacking := sorted(schedule.served.keys() - found.keys()):
                first, *others = map(str, lacking)
                more = f" and {len(others)} other size{'s' * (len(others) > 1)}" if others else ""
                missing[f"{level}, {cap}"] = f"no sum, for want of {first}{more}"
            else:
                sums.append(_serving(schedule, cap, level, found))
    return figures, sums, missing


def _serving(
    schedule: Schedule, cap: str, level: str, figures: Mapping[Step, StepFigures]
) -> Serving:
    def of_phase(phase: Phase) -> Sum | None:
        served = {step: found for step, found in schedule.served.items() if step.phase == phase}
        read = phase == "prefill"
        tokens = sum(one.read_tokens if read else one.new_tokens for one in served.values())
        return _sum(served, figures, tokens) if served else None

    def of_all(served: Mapping[Step, Served]) -> Sum:
        return _sum(served, figures, sum(found.new_tokens for found in served.values()))

    total = of_all(schedule.served)
    requests = schedule.requests
    return Serving(
        cap=cap,
        level=level,
        prefill=of_phase("prefill"),
        decode=of_phase("decode"),
        total=total,
        steady=of_all(schedule.steady) if schedule.steady else None,
        requests=requests,
        joules_per_request=total.energy_j / requests if requests else None,
        joules_per_request_half_width=total.energy_j_half_width / requests if requests else None,
        edp_per_token_mj_ms=total.joules_per_token * total.time_s / total.tokens * 1e6,
    )


def _sum(served: Mapping[Step, Served], figures: Mapping[Step, StepFigures], tokens: int) -> Sum:
    counts = [(found.steps, figures[step]) for step, found in served.items()]
    energy_j = sum(steps * one.energy_mj for steps, one in counts) / 1e3
    half_width_j = sum(steps * one.energy_mj_half_width for steps, one in counts) / 1e3
    return Sum(
        steps=sum(steps for steps, _ in counts),
        tokens=tokens,
        time_s=sum(steps * one.time_ms for steps, one in counts) / 1e3,
        energy_j=energy_j,
        energy_j_half_width=half_width_j,
        predicted_j=sum(steps * one.predicted_mj for steps, one in counts) / 1e3,
        joules_per_token=energy_j / tokens,
        joules_per_token_half_width=half_width_j / tokens,
    )


def best_setpoints(sums: Sequence[Serving], reference: str) -> Iterator[BestSetpoints]:
    """Yield the best setpoints of each level for which the reference and another have figures."""
    for level in (GRAPH, EAGER):
        of_level = [found for found in sums if found.level == level]
        plain = next((found for found in of_level if found.cap == reference), None)
        if plain is None or len(of_level) < 2:
            continue
        energy = min(of_level, key=lambda found: found.total.joules_per_token)
        edp = min(of_level, key=lambda found: found.edp_per_token_mj_ms)
        high = energy.total.joules_per_token + energy.total.joules_per_token_half_width
        if high >= plain.total.joules_per_token - plain.total.joules_per_token_half_width:
            energy = plain
        if _edp(edp, 1) >= _edp(plain, -1):
            edp = plain
        yield BestSetpoints(level, reference, energy.cap, edp.cap)


def _edp(serving: Serving, sign: int) -> float:
    """Return an end of the interval of the EDP per token, by that of the energy."""
    relative = serving.total.energy_j_half_width / serving.total.energy_j
    return serving.edp_per_token_mj_ms * (1 + sign * relative)


def serving_lines(report: ServingReport) -> Iterator[str]:
    """Yield the lines of a schedule's report for a terminal."""
    mark = emulated_mark(report.run.emulated)
    yield f"{report.model} on {report.run.gpu_name}{mark}, schedule {report.schedule}"
    if report.run.emulated:
        yield "figures that a card has recorded, and a model of what power limits do to them"
    if report.batching is not None:
        yield (
            f"requests batched up to {report.batching.max_batch}; sizes as measured have "
            f"{report.prompts_rounding - 1:+.1%} tokens of prompts and "
            f"{report.contexts_rounding - 1:+.1%} tokens of caches"
        )
    for found in report.serving:
        yield from ("", *_serving_lines(found))
        if report.batching is not None and report.batching.step_ms is not None:
            yield (
                f"  a step takes {found.total.time_s / found.total.steps * 1e3:.4g} ms on average, "
                f"and took {report.batching.step_ms:.4g} ms for the arrival of requests"
            )
    for best in report.best:
        yield ""
        yield (
            f"best for {best.level}, compared with {best.reference}: {best.energy} by joules per "
            f"token, {best.edp} by EDP per token"
        )
    if report.steps:
        rows = _step_rows(report.steps)
        yield from ("", *aligned([[*map(plain_numbers, row)] for row in rows]))
    if report.missing:
        yield from ("", "without figures")
        yield from (f"{what}: {why}" for what, why in report.missing.items())


def _serving_lines(found: Serving) -> Iterator[str]:
    total = found.total
    yield (
        f"{found.level}, {found.cap}: {total.joules_per_token:.4g} J "
        f"±{total.joules_per_token_half_width:.2g} per generated token"
        + (
            ""
            if found.joules_per_request is None
            else f", {found.joules_per_request:.4g} J ±{found.joules_per_request_half_width:.2g} "
            f"per request"
        )
        + f", EDP per token {found.edp_per_token_mj_ms:.4g} mJ ms"
    )
    named = (("prefill", found.prefill), ("decode", found.decode), ("steady state", found.steady))
    for name, part in named:
        if part is not None:
            what = "token of the prompts" if name == "prefill" else "generated token"
            yield (
                f"  {name}: {part.joules_per_token:.4g} J ±{part.joules_per_token_half_width:.2g} "
                f"per {what}; {part.energy_j:.4g} J in {part.time_s:.4g} s, {part.steps} steps, "
                f"{part.tokens} tokens"
            )
    yield (
        f"  by the sum of the calls {total.predicted_j:.4g} J "
        f"({total.predicted_j / total.energy_j - 1:+.1%}) of {total.energy_j:.4g} J measured"
    )


def _step_rows(steps: Iterable[StepFigures]) -> list[Sequence[str]]:
    header = ("step", "level", "limit", "steps", "ms", "mJ", "J per token")
    return [
        header,
        *(
            (
                str(found.step),
                found.level,
                found.cap,
                str(found.served.steps),
                f"{found.time_ms:.4g}",
                f"{found.energy_mj:.4g} ±{found.energy_mj_half_width:.2g}",
                f"{found.energy_mj / 1e3 / _tokens(found.step):.4g}",
            )
            for found in steps
        ),
    ]


def _tokens(step: Step) -> int:
    """Return the tokens of a step of this size: of its prompts, or those that it generates."""
    return step.batch * (step.tokens if step.phase == "prefill" else 1)
