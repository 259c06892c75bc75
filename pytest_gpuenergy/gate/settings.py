"""What a gate is asked: which metrics, how much worse they may be, what is known of the noise."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.support.errors import InputError

DEFAULT_LIMIT = 0.05
"""Of each metric, when no limit is given; nothing fails by it unless the gate is strict."""

SAME_BOARD_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0017,
    Metric.ENERGY: 0.0044,
    Metric.EDP: 0.0054,
}
"""Standard deviation of a figure between sessions on one board, as a fraction.

The root mean square of 16 differences on one H200: of ten items from 12 s of running around them,
and, over the square root of two, of six items from those of another run some minutes later
(docs/explanation/gate.md, "The deviation between sessions").
"""

OTHER_BOARD_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0016,
    Metric.ENERGY: 0.029,
    Metric.EDP: 0.029,
}
"""The same between boards of one model.

Time: the upper end of what four H200 in four runs showed. They differed by 1.9 % in energy and
EDP, four others by up to 2.6 %; the value is of a uniform distribution over the +-5 % that Z. Yang,
K. Adamek and W. Armour saw more boards be off by ("Part-time Power Measurements",
arXiv:2312.02741).
"""

ALLOWANCES = ("board", "driver")
"""Differences between two runs that can be allowed."""

_PAIR = re.compile(r"([a-z]+) ?: ?([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%")
_PERCENT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%")


@dataclass(frozen=True)
class GateSettings:
    """How to judge.

    Attributes:
        limits: by how much, as a fraction, each metric may become worse; these are judged.
        enforced: whether being worse than the limit fails.
        strict: whether what cannot be decided, or has no counterpart in the baseline, fails too.
        session_sd: standard deviation between sessions where it is known; see `sd`.
        allow: those of `ALLOWANCES` that leave a verdict as it is.
    """

    limits: Mapping[Metric, float] = field(
        default_factory=lambda: dict.fromkeys(METRICS, DEFAULT_LIMIT)
    )
    enforced: bool = False
    strict: bool = False
    session_sd: Mapping[Metric, float] = field(default_factory=dict)
    allow: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls,
        fail: Sequence[str] = (),
        *,
        session_sd: str = "",
        allow: str = "",
        strict: bool = False,
        prefix: str = "--",
    ) -> GateSettings:
        """From words of the command line.

        Args:
            fail: each like ``edp:5%`` or ``edp:5%,time:3%``.
            session_sd: like ``energy:0.5%,edp:0.6%``.
            allow: comma-separated names of `ALLOWANCES`.
            strict: see the attribute.
            prefix: of the options' names, for messages.

        Raises:
            InputError: they are not understood.
        """
        limits = _by_metric(",".join(fail), f"{prefix}fail")
        if fail and not limits:  # such as an unset variable of a CI job: nothing would ever fail
            raise InputError(
                f"{prefix}fail is empty: give a metric and a percentage, or leave it out."
            )
        allowed = frozenset(filter(None, map(str.strip, allow.split(","))))
        if unknown := sorted(allowed - {*ALLOWANCES}):
            raise InputError(
                f"{prefix}allow {unknown[0]!r} is not understood: "
                f"choose from {', '.join(ALLOWANCES)}."
            )
        return cls(
            limits or dict.fromkeys(METRICS, DEFAULT_LIMIT),
            enforced=bool(limits) or strict,
            strict=strict,
            session_sd=_by_metric(session_sd, f"{prefix}session-sd"),
            allow=allowed,
        )

    def sd(self, metric: Metric, *, same_board: bool = True) -> float:
        """The standard deviation between sessions to reckon with, as a fraction."""
        default = SAME_BOARD_SD if same_board else OTHER_BOARD_SD
        return self.session_sd.get(metric, default[metric])


def parse_percent(text: object, what: str) -> float:
    """``3%`` as a fraction.

    Raises:
        InputError: it is no such text.
    """
    match = _PERCENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(
            f"{what} {text!r} is not understood: give a percentage such as '3%', below 10000%."
        )
    return float(match[1]) / 100


def _by_metric(text: str, option: str) -> dict[Metric, float]:
    found: dict[Metric, float] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        match = _PAIR.fullmatch(word)
        if match is None or match[1] not in METRICS:
            raise InputError(
                f"{option} {word!r} is not understood: give a metric and a percentage such as "
                f"edp:5%, below 10000%; metrics are {', '.join(METRICS)}."
            )
        metric = Metric(match[1])
        if metric in found:
            raise InputError(f"{option} names {metric} twice: give each metric once.")
        found[metric] = float(match[2]) / 100
    return found
