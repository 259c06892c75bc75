"""Where the wall time of a run was spent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gpuenergy.report import duration_lines

Make = Callable[..., Any]


def test_shares_of_all_items_add_up(measured: Make) -> None:
    items = [
        measured(1, wall_s=10.0, phases_s={"verify": 4.0, "measure": 5.0}),
        measured(2, wall_s=10.0, phases_s={"compile": 6.0}),
    ]
    lines = list(duration_lines(items))
    shares = {line.split()[0]: line.split()[-1] for line in lines[1:7]}
    assert lines[0] == "wall time of 2 items: 20 s"
    assert shares == {
        "compile": "30.0%",
        "verify": "20.0%",
        "load": "0.0%",
        "heat": "0.0%",
        "measure": "25.0%",
        "rest": "25.0%",
    }


def test_the_slowest_item_comes_first(measured: Make) -> None:
    items = [measured(rank, wall_s=float(rank)) for rank in range(1, 9)]
    after = list(duration_lines(items))[8:]
    assert len(after) == 5
    assert after[0].split()[-1].endswith("[case1-k08-450W]")


def test_an_older_run_without_wall_times_has_nothing_to_tell(measured: Make) -> None:
    assert list(duration_lines([measured(1)])) == []
