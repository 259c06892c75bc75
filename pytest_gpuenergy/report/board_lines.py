"""What people read of the boards of a run: the summary's lines and a table in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pytest_gpuenergy.record import BoardGain, Estimate, Metric
from pytest_gpuenergy.report.boards import UNCALIBRATED, Boards, board_spread
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.text import markdown_text
from pytest_gpuenergy.support import emulated_mark

_NAMED = 4
"""Boards named in the summary; of more, only those that take most and least energy."""
_DIGITS = 12  # of a UUID


def board_lines(report: Report) -> Iterator[str]:
    """The summary's sentences about the boards of a run; none without several of a model."""
    boards = Boards(report)
    label = emulated_mark(report.run.emulated)
    for model, gains in _by_model(boards.compared).items():
        caps = _by_cap(gains)
        cap, widest = max(caps.items(), key=lambda entry: board_spread(entry[1], Metric.ENERGY))
        others = "" if len(caps) == 1 else f", the widest of {len(caps)} caps"
        yield (
            f"boards{label}: {len(widest)} of {model}, spread {_percent(widest, Metric.ENERGY)} in "
            f"energy, {_percent(widest, Metric.TIME)} in time at {cap}{others}"
        )
        yield f"energy of each board, to their mean: {', '.join(map(_named, _shown(widest)))}"
    if left_out := [gain for gain in boards.gains if gain.left_out is not None]:
        one = left_out[0]
        words = f"{len({gain.gpu_uuid for gain in left_out})} boards were not compared"
        yield f"{words}, such as {short(one.gpu_uuid)} at {one.cap}: {one.left_out}"


def calibration_lines(report: Report) -> Iterator[str]:
    """What a view of calibrated figures says of them.

    Args:
        report: the calibrated one.
    """
    measured = [m for m in report.measurements if m.measured]
    without = sum(UNCALIBRATED in m.validity for m in measured)
    yield (
        "time, energy and what follows from them are calibrated: divided by the gain of the board, "
        "as the mean board of the model would take; the raw figures are in the report"
    )
    if without:
        yield (
            f"{without} of {len(measured)} figures are raw and marked {UNCALIBRATED}: their board "
            "has no gain at their cap"
        )


def board_table(report: Report) -> Iterator[str]:
    """A Markdown table of all gains, collapsed; nothing without any."""
    gains = Boards(report).gains
    if not gains:
        return
    yield "<details><summary>boards, relative to the mean of their model</summary>"
    yield ""
    yield "| board | host | GPU | cap | energy (%) | time (%) | EDP (%) | notes |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for gain in gains:
        order = (Metric.ENERGY, Metric.TIME, Metric.EDP)
        figures = [_ends(gain.of(metric)) for metric in order]
        words = (short(gain.gpu_uuid), gain.host, gain.gpu_name, gain.cap)
        cells = [*words, *figures, gain.left_out or ""]
        yield f"| {' | '.join(map(markdown_text, cells))} |"
    yield ""
    yield "</details>"
    yield ""


def short(uuid: str) -> str:
    """The beginning of a UUID, by which ``--gpu-device`` finds the GPU."""
    return uuid[:_DIGITS]


def _by_model(gains: Sequence[BoardGain]) -> dict[str, list[BoardGain]]:
    found: dict[str, list[BoardGain]] = defaultdict(list)
    for gain in gains:
        found[gain.gpu_name].append(gain)
    return found


def _by_cap(gains: Sequence[BoardGain]) -> dict[str, list[BoardGain]]:
    found: dict[str, list[BoardGain]] = defaultdict(list)
    for gain in gains:
        found[gain.cap if gain.cache == "hot" else f"{gain.cap}, {gain.cache}"].append(gain)
    return found


def _shown(gains: Sequence[BoardGain]) -> list[BoardGain]:
    ordered = sorted(gains, key=lambda gain: _energy(gain).value)
    return ordered if len(ordered) <= _NAMED else [ordered[0], ordered[-1]]


def _energy(gain: BoardGain) -> Estimate:
    found = gain.energy
    assert found is not None
    return found


def _named(gain: BoardGain) -> str:
    return f"{short(gain.gpu_uuid)} {_ends(gain.energy)} %"


def _percent(gains: Sequence[BoardGain], metric: Metric) -> str:
    return f"{100 * board_spread(gains, metric):.1f} %"


def _ends(ratio: Estimate | None) -> str:
    if ratio is None:
        return ""
    value, low, high = (100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
