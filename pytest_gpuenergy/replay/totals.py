"""The energy of all GPUs that share a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from pytest_gpuenergy.replay.account import Account


class Total(Struct, frozen=True):
    """A step on all ranks together, which they make at the same time.

    Attributes:
        cap, step, level, tokens: see `Account`.
        time_ms: of the rank that takes longest.
        energy_mj, predicted_mj, residual_mj: sums over the ranks.
        energy_mj_half_width: of the 95 % interval, as if the ranks' errors were all alike.
        energy_error: of the prediction, relative to the measured energy.
        joules_per_token, tokens_per_joule, edp_mj_ms: of the measured energy.
    """

    cap: str
    step: int
    level: str
    time_ms: float
    energy_mj: float
    energy_mj_half_width: float
    predicted_mj: float
    residual_mj: float
    energy_error: float
    tokens: int | None
    joules_per_token: float | None
    tokens_per_joule: float | None
    edp_mj_ms: float


def totals_of(accounts: Sequence[Account], ranks: int) -> Iterator[Total]:
    """Of each power limit, step and level of which all ranks have an account."""
    groups: dict[tuple[str, int, str], list[Account]] = {}
    for one in accounts:
        groups.setdefault((one.cap, one.step, one.level), []).append(one)
    for (cap, step, level), group in groups.items():
        if len(group) < ranks:
            continue
        time_ms = max(one.time_ms for one in group)
        energy_mj = sum(one.energy_mj for one in group)
        predicted_mj = sum(one.predicted_mj for one in group)
        tokens = group[0].tokens
        yield Total(
            cap=cap,
            step=step,
            level=level,
            time_ms=time_ms,
            energy_mj=energy_mj,
            energy_mj_half_width=sum(one.energy_mj_half_width for one in group),
            predicted_mj=predicted_mj,
            residual_mj=energy_mj - predicted_mj,
            energy_error=predicted_mj / energy_mj - 1,
            tokens=tokens,
            joules_per_token=energy_mj / 1e3 / tokens if tokens else None,
            tokens_per_joule=tokens / (energy_mj / 1e3) if tokens else None,
            edp_mj_ms=energy_mj * time_ms,
        )
