"""Whether a measurement read from a file is one that could have been made.

A file may be damaged, edited or made to pass a gate. What is checked here holds for every
measurement of a GPU: the outcome allows figures, the figures follow from each other, and physics
allows them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from pytest_gpuenergy.record.measurement import FIGURES, Measurement
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.support import FormError

MAX_W = 1e4
"""More than any GPU draws: boards of 2026 are rated up to 1.4 kW."""

_MIN_MS, _MAX_MS = 1e-6, 1e9  # a nanosecond, and twelve days
_MAX_GFLOPS = 1e9
_ROUNDING = 2e-3  # of three figures with four digits each
_HOST_GAPS = "host_gaps"


def check(m: Measurement, place: str = "") -> None:
    """Check that a measurement is consistent and possible.

    Args:
        m: the measurement.
        place: prefix for field names in messages, such as ``measurements[3].``.

    Raises:
        FormError: it is not; the message says why.
    """
    known = [name for name in FIGURES if getattr(m, name) is not None]
    if 0 < len(known) < len(FIGURES):
        missing = next(name for name in FIGURES if name not in known)
        raise FormError(f"{place}{missing} is missing, although {place}{known[0]} is present")
    intervals = [f"{metric.field}_ci95" for metric in Metric if m.interval(metric) is not None]
    if intervals and not known:
        raise FormError(f"{place}{intervals[0]} is present, although there are no figures")
    if known and m.outcome != "correct":
        raise FormError(
            f"{place}{known[0]} is present, although {place}outcome is {m.outcome!r}: only a "
            "correct kernel has figures"
        )
    for metric in Metric:
        found = m.estimate(metric)
        if found is not None and not found.low <= found.value <= found.high:
            raise FormError(
                f"{place}{metric.field}_ci95 is {found.low} to {found.high}, which does not "
                f"contain {metric.field}, {found.value}"
            )
    _check_amounts(m, place)
    if known:
        _check_relations(m, place)


def check_ids(measurements: Iterable[Measurement]) -> None:
    """Check that no two measurements of a report are of the same item.

    Raises:
        FormError: two are.
    """
    seen: dict[str, int] = {}
    for index, m in enumerate(measurements):
        first = seen.setdefault(m.node_id, index)
        if first != index:
            raise FormError(
                f"measurements[{index}].node_id is that of measurements[{first}], {m.node_id!r}"
            )


def _check_amounts(m: Measurement, place: str) -> None:
    ranges = {
        "time_ms": (_MIN_MS, _MAX_MS),
        "energy_mj": (_MIN_MS / MAX_W, _MAX_MS * MAX_W),
        "power_w": (0.0, MAX_W),
        "gflops": (0.0, _MAX_GFLOPS),
        "gflops_per_w": (0.0, _MAX_GFLOPS),
        "power_limit_w": (0.0, MAX_W),
        "enforced_power_limit_w": (0.0, MAX_W),
    }
    for name, (least, most) in ranges.items():
        value = getattr(m, name)
        if value is not None and not least <= value <= most:
            raise FormError(f"{place}{name} is {value}, which is not possible")
    for name in ("trials", "warm_trials"):
        for index, window in enumerate(getattr(m, name)):
            if not window.joules / window.seconds <= MAX_W:
                raise FormError(
                    f"{place}{name}[{index}] has {window.joules} J in {window.seconds} s, which "
                    "is not possible"
                )


def _check_relations(m: Measurement, place: str) -> None:
    time_ms, energy_mj, power_w = m.time_ms or 0.0, m.energy_mj or 0.0, m.power_w or 0.0
    # An EDP is the mean over the trials; it exceeds the product if time and energy vary together.
    product = time_ms * energy_mj
    if m.trials:
        times = [window.time_ms for window in m.trials]
        energies = [window.energy_mj for window in m.trials]
        of_means = fmean(times) * fmean(energies)
        if 0 < of_means < math.inf:
            products = [time * energy for time, energy in zip(times, energies, strict=True)]
            product *= fmean(products) / of_means
    if not math.isclose(m.edp_mj_ms or 0.0, product, rel_tol=_ROUNDING):
        raise FormError(
            f"{place}edp_mj_ms is {m.edp_mj_ms}, but time_ms times energy_mj is {product:.6g}"
        )
    # While the host launches nothing the card draws power too: then the energy of a launch, its
    # share of all energy, says nothing about the power during the launch.
    least_w = 0.0 if _HOST_GAPS in m.validity else energy_mj / time_ms / 2
    if not power_w > 0 or not least_w <= power_w <= 2 * energy_mj / time_ms:
        raise FormError(
            f"{place}power_w is {power_w}, but energy_mj by time_ms is {energy_mj / time_ms:.6g} W"
        )
