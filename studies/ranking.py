"""Statistics of a ranking: modelled figures compared with measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import InputError

TOP = 5
CLOSE = (1.02, 2.0)


@dataclass(frozen=True)
class Agreement:
    """How well modelled figures agree with measured ones.

    Attributes:
        kernels: number of kernels.
        spearman: rank correlation; None if either side is constant.
        kendall: tau-b; None likewise.
        ratio: geometric mean of modelled / measured.
        spread: exp of the standard deviation of log(modelled / measured); 1 means no spread.
    """

    kernels: int
    spearman: float | None
    kendall: float | None
    ratio: float
    spread: float


def agreement(modelled: Sequence[float], measured: Sequence[float]) -> Agreement:
    """The agreement of two sequences of positive figures of the same length.

    Raises:
        InputError: there are fewer than two, or one is not positive.
    """
    from scipy.stats import kendalltau, spearmanr  # takes a second

    model, truth = np.asarray(modelled, float), np.asarray(measured, float)
    if len(model) != len(truth) or len(model) < 2 or min(model.min(), truth.min()) <= 0:
        raise InputError("A correlation needs two or more kernels with positive figures.")
    logs = np.log(model / truth)
    varied = np.ptp(model) > 0 and np.ptp(truth) > 0
    return Agreement(
        len(model),
        float(spearmanr(model, truth).statistic) if varied else None,
        float(kendalltau(model, truth).statistic) if varied else None,
        float(np.exp(logs.mean())),
        float(np.exp(logs.std())),
    )


def regret(modelled: Sequence[float], measured: Sequence[float], top: int) -> float:
    """Best measured figure among the model's ``top`` favourites, divided by the best of all."""
    chosen = np.argsort(np.asarray(modelled, float), kind="stable")[:top]
    truth = np.asarray(measured, float)
    return float(truth[chosen].min() / truth.min())


def close_pairs(modelled: Sequence[float], measured: Sequence[float]) -> float | None:
    """Fraction of the close pairs that the model puts in the right order.

    Close pairs are those whose measured figures differ by at least 2 % and at most a factor of 2;
    None if there are none. A model that guesses gets 0.5.
    """
    model, truth = np.asarray(modelled, float), np.asarray(measured, float)
    first, second = np.triu_indices(len(truth), 1)
    factor = np.maximum(truth[first], truth[second]) / np.minimum(truth[first], truth[second])
    hard = (factor >= CLOSE[0]) & (factor <= CLOSE[1])
    if not hard.any():
        return None
    right = (model[first] - model[second]) * (truth[first] - truth[second]) > 0
    return float(right[hard].mean())


@dataclass(frozen=True)
class Row:
    """One case, or all of them; figures that compare kernels of one workload are None for all.

    ``power`` is None if no power was measured.
    """

    case: str
    time: Agreement
    power: Agreement | None
    close_pairs: float | None
    top1_regret: float | None
    top5_regret: float | None


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    heads = (
        "case, kernels, time: Spearman, Kendall, close pairs, model / measured, spread, "
        f"regret of the first, of {TOP}, power: Spearman, model / measured, spread"
    ).split(", ")
    lines = []
    for row in rows:
        time, power = row.time, row.power
        figures = (
            *(time.spearman, time.kendall, row.close_pairs, time.ratio, time.spread),
            *(row.top1_regret, row.top5_regret),
            *((power.spearman, power.ratio, power.spread) if power else (None,) * 3),
        )
        cells = ("" if figure is None else f"{figure:.2f}" for figure in figures)
        lines.append([row.case, str(time.kernels), *cells])
    return markdown_table(heads, lines)
