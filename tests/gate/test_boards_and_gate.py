"""What is known of the boards does not change what a gate compares."""

from __future__ import annotations

from board_reports import board_measurement, report_on
from msgspec.structs import replace

from pytest_gpuenergy.gate import GateSettings, compare


def test_the_gain_of_a_board_is_not_counted_twice() -> None:
    """The common shift of unchanged kernels is taken from raw figures, with gains or without."""
    before = report_on(
        {"GPU-0": 1.0, "GPU-1": 1.04},
        *(board_measurement("GPU-0", f"k{n}", energy_mj=10.0, error=0.001) for n in range(6)),
    )
    now = report_on(
        {"GPU-0": 1.0, "GPU-1": 1.04},
        *(
            replace(
                board_measurement("GPU-1", f"k{n}", energy_mj=10.4, error=0.001),
                node_id=f"board::k{n}-700W-GPU-0",
            )
            for n in range(6)
        ),
        gpu_uuid="GPU-1",
    )
    settings = GateSettings.parse(["energy:5%"], session_sd="", allow="board", strict=False)
    known = compare(before, now, settings)
    unknown = compare(replace(before, board_checks=()), replace(now, board_checks=()), settings)
    assert known == unknown
    assert known.shifts
