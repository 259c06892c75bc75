"""How far the figures of one kernel lie apart between sessions and between boards."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuenergy.record.metrics import Metric

SAME_BOARD_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0017,
    Metric.ENERGY: 0.0044,
    Metric.EDP: 0.0054,
}
"""Standard deviation of a figure between sessions on one board, as a fraction.

The root mean square of 16 differences on one H200: of ten items from 12 s of their kernel running
around them, and, divided by the square root of two, of six of these items from those of another run
a few minutes later (docs/explanation/gate.md, "The deviation between sessions").
"""

OTHER_BOARD_SD: Mapping[Metric, float] = {
    Metric.TIME: 0.0016,
    Metric.ENERGY: 0.029,
    Metric.EDP: 0.029,
}
"""Standard deviation of a figure between boards of one model, as a fraction.

Time: the upper end of the 95 % interval from four H200s in four runs. Energy and EDP: a uniform
distribution over the +-5 % by which more boards deviated in Z. Yang, K. Adamek and W. Armour,
"Part-time Power Measurements", arXiv:2312.02741; the four H200s differed by 1.9 %, four others by
up to 2.6 %.
"""
