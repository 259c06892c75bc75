"""What Nsight Compute prints of a launch."""

from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.search import metrics, read_counters
from pytest_gpuenergy.support import FormError

BEFORE = "==PROF== Connected to process 4242 (/usr/bin/python3.11)\n==PROF== Profiling\n"
COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
ROW = ("0", "4242", "python3.11", "127.0.0.1", "f(const float *, float *, int)", "1", "7")
OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"


def printed(values: dict[str, str], *, rows: int = 1) -> str:
    """As ``ncu --csv --page raw`` prints it."""
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)
    table.writerow([*COLUMNS, *values])
    table.writerow(["" for _ in COLUMNS] + ["%" for _ in values])
    for _ in range(rows):
        table.writerow([*ROW, *values.values()])
    return BEFORE + text.getvalue()


def test_the_busiest_unit_of_a_region_counts() -> None:
    values = dict.fromkeys(metrics(), "0")
    values[f"sm__inst_executed{OF_PEAK}"] = "31.50"
    values[f"sm__pipe_fma_cycles_active{OF_PEAK}"] = "42.00"
    values[f"lts__throughput{OF_PEAK}"] = "50"
    values["lts__t_sectors.sum"] = "1,000"
    values["lts__t_sectors_op_red.sum"] = "250"
    assert read_counters(printed(values)) == pytest.approx(
        {"compute": 0.42, "gmem": 0.5, "sfu": 0, "smem": 0, "atomics": 0.125}
    )


def test_what_this_gpu_does_not_have_is_left_out() -> None:
    values = {f"dram__throughput{OF_PEAK}": "80.1", f"sm__inst_executed_pipe_xu{OF_PEAK}": "n/a"}
    assert read_counters(printed(values)) == pytest.approx({"gmem": 0.801})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no table"),
        ("==ERROR== No kernels were profiled.\n", "no table"),
        ('"ID","Kernel Name"\n', "not complete"),
        ('"ID","Kernel Name"\n"",""\n', "no launch"),
        ('"ID","Kernel Name"\n"",""\n"0","f', "not complete|no launch"),
        (printed({"launch__grid_size": "12"}), "none of the metrics"),
        (printed({f"dram__throughput{OF_PEAK}": "much"}), "is 'much'"),
        (printed({f"dram__throughput{OF_PEAK}": "-3"}), "is '-3'"),
        (printed({f"dram__throughput{OF_PEAK}": "inf"}), "is 'inf'"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, why: str) -> None:
    with pytest.raises(FormError, match=why):
        read_counters(text)


@given(st.text() | st.binary().map(lambda data: '"ID"' + data.decode("latin-1")))
def test_any_text_is_a_profile_or_refused(text: str) -> None:
    try:
        found = read_counters(text)
    except FormError:
        return
    assert found


@given(st.dictionaries(st.sampled_from(metrics()), st.floats(0, 1e6), min_size=1))
def test_shares_are_shares(values: dict[str, float]) -> None:
    try:
        found = read_counters(printed({name: f"{value:.2f}" for name, value in values.items()}))
    except FormError:
        return
    assert all(0 <= share <= 1 and math.isfinite(share) for share in found.values())
