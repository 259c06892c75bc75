"""Estimates what a step's matrix products would save with the best contender for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from pytest_gpuenergy.record import (
    AS_EXACT,
    Estimate,
    Measurement,
    Metric,
    log_ratio,
    point_ratio,
    session_mean,
)
from pytest_gpuenergy.replay.extract.model_products import ModelProducts, ProductCalls
from pytest_gpuenergy.report import Report, energy, spread, time
from pytest_gpuenergy.support import fitted, plain_numbers, wrapped
from pytest_gpuenergy.workloads import Gemm

NOW = "cublas"
"""The contender that stands for what PyTorch calls now."""

SCHEMA_VERSION = 1
_TAIL = 0.025
"""The probability at either end of an interval."""

_Named = dict[str, Measurement]
"""The measurements of one product under one power limit, by contender."""


class Quantity(Struct, frozen=True):
    """A time or an energy, in ms or mJ.

    Attributes:
        value: The value.
        half_width: Half the width of its 95 % interval; None if it has none.
    """

    value: float
    half_width: float | None


class TimeAndEnergy(Struct, frozen=True):
    """The time and energy of a product or of all products of a step.

    Attributes:
        time_ms: The time.
        energy_mj: The energy.
    """

    time_ms: Quantity
    energy_mj: Quantity


class ProductCosts(Struct, frozen=True):
    """The times and energies of the contenders for one product.

    Attributes:
        product: The name of the product.
        calls: The number of calls in each step.
        contenders: What one product costs, by contender.
        fastest: The contender that takes the least time; `NOW` unless another one is certainly
            faster. None if no contender has figures.
        most_frugal: The same, for the least energy.
    """

    product: str
    calls: dict[str, int]
    contenders: dict[str, TimeAndEnergy]
    fastest: str | None
    most_frugal: str | None


class StepCosts(Struct, frozen=True):
    """The cost of a step's products, and their possible saving.

    Attributes:
        step: The name of the step.
        calls: The number of calls that multiply matrices.
        measured_calls: The number of those in the sums.
        recorded_us: The time of all those calls in the profile.
        measured_us: The time, in the profile, of those in the sums.
        now: The sum with `NOW`; None if it was not measured.
        fastest: The sum with the fastest contender for each product.
        most_frugal: The sum with the contender for each product that takes the least energy.
        saved_by_fastest: ``now`` less ``fastest``; negative if that takes more.
        saved_by_most_frugal: ``now`` less ``most_frugal``; negative if that takes more.
    """

    step: str
    calls: int
    measured_calls: int
    recorded_us: float
    measured_us: float
    now: TimeAndEnergy | None
    fastest: TimeAndEnergy
    most_frugal: TimeAndEnergy
    saved_by_fastest: TimeAndEnergy | None
    saved_by_most_frugal: TimeAndEnergy | None


class CapSavings(Struct, frozen=True):
    """All products and steps under one power limit.

    Attributes:
        cap: The label of the power limit.
        cache: What the L2 cache held, ``hot`` or ``cold``.
        products: The products, the most recorded time first.
        steps: The steps, in order.
    """

    cap: str
    cache: str
    products: tuple[ProductCosts, ...]
    steps: tuple[StepCosts, ...]


class CallsLeftOut(Struct, frozen=True):
    """Calls that multiply matrices, but were not measured.

    Attributes:
        reason: Why, as a clause.
        operators: The operators.
        calls: The number of calls in each step.
        recorded_us: Their time in the profile, for each step.
    """

    reason: str
    operators: tuple[str, ...]
    calls: dict[str, int]
    recorded_us: dict[str, float]


class ProductSavings(Struct, frozen=True):
    """The result of measuring all contenders in the products of a model.

    Attributes:
        model: The name of the model or trace.
        profiled_on: The device that was profiled; empty for a trace.
        gpu: The GPU that was measured.
        emulated: Whether that is an emulated one.
        caps: The results under each power limit.
        left_out: The calls without a product that can be measured.
        omitted: The number of calls, in all steps, that do something beside the product, by what.
        schema_version: The version of this form.
    """

    model: str
    profiled_on: str
    gpu: str
    emulated: bool
    caps: tuple[CapSavings, ...]
    left_out: tuple[CallsLeftOut, ...]
    omitted: dict[str, int]
    schema_version: int = SCHEMA_VERSION


def alternatives(product: Gemm) -> list[Gemm]:
    """Return a product in each mode that its calls could be computed in, its own first.

    A float32 product has the same error bound in ``3xtf32``, see `AS_EXACT`.
    """
    modes = [mode for mode, exact in AS_EXACT.items() if exact == product.mode]
    return [product, *(product.varied(mode=mode) for mode in modes)]


def product_savings(report: Report, products: ModelProducts) -> ProductSavings:
    """Return what the products of each step cost and would save, by the measurements of a run.

    Errors of different measurements are independent of each other, so those of a sum are added in
    squares; a product that is called several times has the same error in each call.
    """
    by_cap: dict[tuple[str, str], dict[str, _Named]] = {}
    for m in report.measurements:
        named = by_cap.setdefault((m.cap, m.cache), {}).setdefault(m.workload.name, {})
        if m.measured:
            named[m.kernel.label] = m
    caps = []
    for (cap, cache), works in by_cap.items():
        rows = [(calls, _contenders(calls.product, works)) for calls in products.products]
        caps.append(
            CapSavings(
                cap,
                cache,
                tuple(_product_costs(calls, named) for calls, named in rows),
                tuple(_step_costs(step, rows, products) for step in products.steps),
            )
        )
    omitted: dict[str, int] = {}
    for calls in products.products:
        for what in calls.omitted:
            omitted[what] = omitted.get(what, 0) + sum(calls.calls.values())
    return ProductSavings(
        products.source,
        products.device,
        report.run.gpu_name,
        report.run.emulated,
        tuple(caps),
        tuple(
            CallsLeftOut(one.reason, one.operators, {**one.calls}, {**one.recorded_us})
            for one in products.left_out
        ),
        omitted,
    )


def _contenders(product: Gemm | None, works: Mapping[str, _Named]) -> _Named:
    """Return the measurements that compute a product; other modes are in the label."""
    if product is None:
        return {}
    return {
        label if one.mode == product.mode else f"{label} in {one.mode}": m
        for one in alternatives(product)
        for label, m in works.get(one.name, {}).items()
    }


def _best(named: _Named, metric: Metric) -> str | None:
    """Return the contender with the least figure; `NOW` unless that one is certainly better.

    By Bonferroni's inequality, the probability that any contender is called better by mistake is
    at most that of one comparison.
    """
    base = named.get(NOW)
    better = named if base is None else {NOW: base}
    for label, m in named.items():
        if base is None or label == NOW:
            continue
        ratio = point_ratio(base.figure(metric), m.figure(metric))
        means = session_mean(base, metric), session_mean(m, metric)
        if means[0] is not None and means[1] is not None:
            tail = _TAIL / (len(named) - 1)
            ratio = log_ratio(means[0], means[1], session_sd=0.0, tail=tail)
        if ratio.high < 0:
            better[label] = m
    return min(better, key=lambda label: better[label].figure(metric) or 0.0, default=None)


def _product_costs(calls: ProductCalls, named: _Named) -> ProductCosts:
    assert calls.product is not None  # products have one
    return ProductCosts(
        calls.product.name,
        {**calls.calls},
        {label: _sum([(1.0, m)]) for label, m in named.items()},
        _best(named, Metric.TIME),
        _best(named, Metric.ENERGY),
    )


def _step_costs(
    step: str, rows: Sequence[tuple[ProductCalls, _Named]], products: ModelProducts
) -> StepCosts:
    compared = any(NOW in named for _, named in rows)
    counted = [
        (calls, named)
        for calls, named in rows
        if step in calls.calls and (NOW in named if compared else named)
    ]
    everything = [one for one in (*products.products, *products.left_out) if step in one.calls]
    now, chosen, saved = [], dict[Metric, list[_Term]](), dict[Metric, list[_Term]]()
    for metric in (Metric.TIME, Metric.ENERGY):
        chosen[metric], saved[metric] = [], []
        for calls, named in counted:
            count, best = float(calls.calls[step]), _best(named, metric)
            assert best is not None  # it has contenders
            chosen[metric].append((count, named[best]))
            if best != NOW and compared:
                saved[metric] += [(count, named[NOW]), (-count, named[best])]
    if compared:
        now = [(float(calls.calls[step]), named[NOW]) for calls, named in counted]
    return StepCosts(
        step,
        sum(one.calls[step] for one in everything),
        sum(calls.calls[step] for calls, _ in counted),
        sum(one.recorded_us[step] for one in everything),
        sum(calls.recorded_us[step] for calls, _ in counted),
        _sum(now) if compared else None,
        _sum(chosen[Metric.TIME]),
        _sum(chosen[Metric.ENERGY]),
        _sum(saved[Metric.TIME]) if compared else None,
        _sum(saved[Metric.ENERGY]) if compared else None,
    )


_Term = tuple[float, Measurement]
"""A measurement with its factor in a sum."""


def _sum(terms: Sequence[_Term]) -> TimeAndEnergy:
    return TimeAndEnergy(_total(terms, Metric.TIME), _total(terms, Metric.ENERGY))


def _total(terms: Sequence[_Term], metric: Metric) -> Quantity:
    value, squares, known = 0.0, 0.0, True
    for factor, m in terms:
        value += factor * (m.figure(metric) or 0.0)
        found = m.estimate(metric)
        known = known and found is not None
        squares += 0.0 if found is None else (factor * found.half_width) ** 2
    return Quantity(value, math.sqrt(squares) if known else None)


def savings_lines(found: ProductSavings, width: int | None = None) -> Iterator[str]:
    """Yield the tables of products and steps, and what they leave out.

    Args:
        found: The result.
        width: The width of the terminal; None where lines may have any length.
    """
    label = " (emulated)" if found.emulated else ""
    inner = None if width is None else width - 2
    for cap in found.caps:
        where = f"at {cap.cap}, cache {cap.cache}"
        yield f"products of {found.model} on {found.gpu}{label}, {where}"
        yield from (f"  {line}" for line in fitted([*_product_rows(cap)], inner))
        yield f"all products of a step, weighted by calls{label}, {where}"
        yield from (f"  {line}" for line in fitted([*_step_rows(cap)], inner))
        for step in cap.steps:
            share = step.measured_us / step.recorded_us if step.recorded_us else 0.0
            text = (
                f"{step.step}: {step.measured_calls} of {step.calls} calls that multiply matrices "
                f"are in these sums, with {share:.1%} of their time in the profile"
            )
            yield from wrapped(text, width)
        if all(step.now is None for step in cap.steps):
            yield from wrapped(
                f"savings are unknown, because {NOW} has no figures: it stands for what PyTorch "
                "calls now",
                width,
            )
    for one in found.left_out:
        calls = ", ".join(f"{count} in {step}" for step, count in one.calls.items())
        yield from wrapped(
            f"left out: {' and '.join(one.operators)} ({calls}), because {one.reason}", width
        )
    for what, count in found.omitted.items():
        yield from wrapped(f"not measured with its product: {what}, of {count} calls", width)


def _product_rows(cap: CapSavings) -> Iterator[tuple[str, ...]]:
    steps = [step.step for step in cap.steps]
    yield ("product", *(f"calls in {step}" for step in steps), "contender", "time", "energy", "")
    for one in cap.products:
        counts = [str(one.calls.get(step, 0)) for step in steps]
        if not one.contenders:
            yield (one.product, *counts, "none", "", "", "no contender has figures")
        for label, cost in one.contenders.items():
            best = [
                word
                for word, chosen in (("time", one.fastest), ("energy", one.most_frugal))
                if chosen == label
            ]
            yield (
                one.product,
                *counts,
                label,
                _words(cost.time_ms, time),
                _words(cost.energy_mj, energy),
                f"best {' and '.join(best)}" if best else "",
            )


def _step_rows(cap: CapSavings) -> Iterator[tuple[str, ...]]:
    yield ("step", "contenders", "time", "energy", "saved time", "saved energy")
    for step in cap.steps:
        if not step.measured_calls:
            yield (step.step, "none", "", "", "", "")
            continue
        rows = (
            (f"{NOW}, as now", step.now, None),
            ("the fastest of each", step.fastest, step.saved_by_fastest),
            ("the least energy of each", step.most_frugal, step.saved_by_most_frugal),
        )
        for name, cost, saved in rows:
            if cost is not None:
                sums = (_words(cost.time_ms, time), _words(cost.energy_mj, energy))
                cells = (
                    ("", "")
                    if saved is None
                    else (
                        _saved(saved.time_ms, "ms"),
                        _saved(saved.energy_mj, "mJ"),
                    )
                )
                yield (step.step, name, *sums, *cells)


def _words(quantity: Quantity, words: Callable[[float], str]) -> str:
    half = quantity.half_width or 0.0
    ends = Estimate(quantity.value, quantity.value - half, quantity.value + half)
    return f"{words(quantity.value)}{spread(ends) if half else ''}"


def _saved(quantity: Quantity, unit: str) -> str:
    half = "" if quantity.half_width is None else f" ±{quantity.half_width:.2g}"
    return plain_numbers(f"{quantity.value:.3g}{half} {unit}")
