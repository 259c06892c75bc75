"""Settings of the gate: the metrics, how much worse they may be, and the noise to expect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_gpuenergy.record import METRICS, OTHER_BOARD_SD, SAME_BOARD_SD, Metric
from pytest_gpuenergy.support import InputError

DEFAULT_LIMIT = 0.05
"""Limit of each metric when none is given; exceeding it fails only if the gate is strict."""

ALLOWANCES = ("board", "driver")
"""Differences between two runs that the user can allow."""

_PAIR = re.compile(r"([a-z]+) ?: ?([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%")
_PERCENT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%")


@dataclass(frozen=True)
class GateSettings:
    """Settings of the gate.

    Attributes:
        limits: the metrics to judge, and by how much each may become worse, as a fraction.
        enforced: whether a verdict WORSE fails.
        strict: whether an AMBIGUOUS verdict, or an item missing from the baseline, fails too.
        session_sd: declared standard deviation between sessions, as a fraction; see `sd`.
        allow: the `ALLOWANCES` that do not make a verdict AMBIGUOUS.
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
        also_allowed: Sequence[str] = (),
        strict: bool = False,
        prefix: str = "--",
    ) -> GateSettings:
        """Parse the values of command-line options.

        Args:
            fail: texts such as ``edp:5%`` or ``edp:5%,time:3%``.
            session_sd: a text such as ``energy:0.5%,edp:0.6%``.
            allow: `ALLOWANCES`, separated by commas.
            also_allowed: other words that the option accepts, for messages.
            strict: whether AMBIGUOUS verdicts and missing items fail too.
            prefix: prefix of the options' names in messages.

        Raises:
            InputError: a value is invalid.
        """
        limits = _by_metric(",".join(fail), f"{prefix}fail")
        if fail and not limits:  # such as an unset variable in a CI job: nothing would ever fail
            raise InputError(
                f"{prefix}fail is empty: give a metric and a percentage, or leave it out."
            )
        allowed = frozenset(filter(None, map(str.strip, allow.split(","))))
        if unknown := sorted(allowed - {*ALLOWANCES}):
            raise InputError(
                f"{prefix}allow {unknown[0]!r} is not understood: "
                f"choose from {', '.join((*ALLOWANCES, *also_allowed))}."
            )
        return cls(
            limits or dict.fromkeys(METRICS, DEFAULT_LIMIT),
            enforced=bool(limits) or strict,
            strict=strict,
            session_sd=_by_metric(session_sd, f"{prefix}session-sd"),
            allow=allowed,
        )

    def sd(self, metric: Metric, *, same_board: bool = True) -> float:
        """Return the standard deviation between sessions, declared or default, as a fraction."""
        default = SAME_BOARD_SD if same_board else OTHER_BOARD_SD
        return self.session_sd.get(metric, default[metric])

    @property
    def same_board_sd(self) -> Mapping[Metric, float]:
        """The standard deviation between sessions on one board, of each metric."""
        return {metric: self.sd(metric) for metric in METRICS}


def parse_percent(text: object, what: str) -> float:
    """Parse a percentage such as ``3%`` as a fraction; messages call it ``what``.

    Raises:
        InputError: it is not a percentage.
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
