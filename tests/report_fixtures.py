"""Records to put into reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, RunInfo, Window, WorkloadInfo
from pytest_gpuenergy.report import Report

WATTS = {1: 200.0, 2: 325.0, 3: 450.0, 4: 575.0, 5: 700.0}


def a_run(**changes: Any) -> RunInfo:
    """The identity of a run, with whatever is given changed."""
    values: dict[str, Any] = {
        "run_id": "20260102T030405-abcdef",
        "started": "2026-01-02T03:04:05+00:00",
        "host": "bench",
        "gpu_name": "NVIDIA H200",
        "gpu_uuid": "GPU-1",
        "architecture": "sm_90",
        "emulated": True,
        "power_limits_w": {"min": 200.0, "max": 700.0},
        "software": {"python": "3.11"},
        "options": {},
    }
    return RunInfo(**{**values, **changes})


@pytest.fixture
def run_info() -> Callable[..., RunInfo]:
    """`a_run`."""
    return a_run


@pytest.fixture
def measured() -> Callable[..., Measurement]:
    """A measurement of ``rank`` at a cap of the table, with whatever is given changed."""

    def make(
        rank: int | None = 1,
        cap: int | None = 3,
        *,
        workload: str = "case1",
        time_ms: float = 0.5,
        energy_mj: float = 100.0,
        **changes: Any,
    ) -> Measurement:
        label = "k--" if rank is None else f"k{rank:02d}"
        cap_label = f"{WATTS[cap]:g}W" if cap else "current"
        values: dict[str, Any] = {
            "node_id": f"bench/test_conv2d.py::test_conv2d[{workload}-{label}-{cap_label}]",
            "workload": WorkloadInfo(workload, {"kind": "conv2d"}, 10**9, 10**6),
            "kernel": KernelInfo(label, "0" * 64, "record", rank),
            "outcome": "correct",
            "cap": cap_label,
            "cap_index": cap,
            "power_limit_w": WATTS[cap] if cap else None,
            "enforced_power_limit_w": WATTS[cap] if cap else 700.0,
            "time_ms": time_ms,
            "energy_mj": energy_mj,
            "edp_mj_ms": time_ms * energy_mj,
            "power_w": energy_mj / time_ms,
            "gflops": 1e3 / time_ms,
            "gflops_per_w": 1e3 / energy_mj,
        }
        return Measurement(**{**values, **changes})

    return make


@pytest.fixture
def failed(measured: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """A measurement of a kernel that is wrong: an error and no figures."""

    def make(rank: int = 1, cap: int | None = 3, **changes: Any) -> Measurement:
        figures = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
        good = measured(rank, cap)
        values = {name: getattr(good, name) for name in good.__struct_fields__}
        values |= dict.fromkeys(figures)
        values |= {"outcome": "correctness", "error": "1 of 4 elements of output is wrong."}
        return Measurement(**{**values, **changes})

    return make


@pytest.fixture
def report(run_info: Callable[..., RunInfo]) -> Callable[..., Report]:
    """A report of the measurements given; keywords change the run's identity."""
    return lambda *measurements, **changes: Report(run_info(**changes), measurements)


@pytest.fixture
def at_clock(measured: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """A measurement at a locked clock, with intervals and trials; ``clock`` None: not locked.

    Its time and energy are of ``time_ms`` and ``energy_mj`` with intervals of ``half``, relative.
    """

    def make(
        rank: int = 1,
        cap: int | None = 3,
        clock: int | None = None,
        *,
        half: float = 0.002,
        **changes: Any,
    ) -> Measurement:
        plain = measured(rank, cap, **changes)
        parts = [f"{plain.power_limit_w:g}W"] if plain.power_limit_w else []
        parts += [f"{clock}MHz"] if clock else []
        label = "-".join(parts) or "current"
        workload, kernel = plain.workload.name, plain.kernel.label
        ends = {
            f"{name}_ci95": Interval(value * (1 - size), value * (1 + size))
            for name, size in (("time_ms", half), ("energy_mj", half), ("edp_mj_ms", 1.4 * half))
            if (value := getattr(plain, name)) is not None
        }
        values: dict[str, Any] = {
            "node_id": f"bench/test_conv2d.py::test_conv2d[{workload}-{kernel}-{label}]",
            "cap": label,
            "sm_clock_mhz": clock,
            "locked_sm_clock_min_mhz": clock,
            "locked_sm_clock_max_mhz": clock,
            "effective_sm_clock_mhz": float(clock or 1980),
            "trials": (Window(1.0, 200.0, 2000, 1.0),) * 7,
            **ends,
        }
        given = {name: value for name, value in changes.items() if name != "workload"}
        return replace(plain, **{**values, **given})

    return make
