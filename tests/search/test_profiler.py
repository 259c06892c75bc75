"""Profiles by Nsight Compute, for which a program on the PATH stands in."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counted import cuda_spec
from hypothesis import given, strategies as st
from kernel_specs import optimize, write
from move_checks import move_named
from msgspec.structs import replace

from pytest_gpuenergy.emulator import DEFAULT_PROFILE, EmulatedDevice
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import (
    BottleneckPrior,
    CardModel,
    GraphExplorer,
    Profiler,
    Result,
    SearchParameters,
    metrics,
    read_counters,
)
from pytest_gpuenergy.search.running import ncu_profiler
from pytest_gpuenergy.support import FormError, InputError

TABLE = (
    '"ID","Kernel Name","dram__throughput.avg.pct_of_peak_sustained_elapsed"\n'
    '"","","%"\n"0","scale","64.00"\n'
)


class Ncu:
    """A stand-in for ``ncu`` that notes its arguments and does what the test says.

    Attributes:
        told: what profilers have told the user.
    """

    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        self._folder = folder
        self.path = folder / "bin/ncu"
        self.path.parent.mkdir()
        self._calls = folder / "calls"

    def does(self, body: str) -> None:
        lines = [
            f"#!{sys.executable}",
            "import json, subprocess, sys, time",
            f"print(json.dumps(sys.argv[1:]), file=open({str(self._calls)!r}, 'a'))",
            body,
        ]
        self.path.write_text("\n".join(lines))
        self.path.chmod(0o755)

    def prints(self, text: str, code: int = 0) -> None:
        self.does(f"print({text!r})\nsys.exit({code})")

    @property
    def calls(self) -> list[list[str]]:
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [json.loads(line) for line in lines]

    def profiler(self, *, every: int = 1, timeout_s: float = 60.0) -> Profiler:
        return Profiler(every, "GPU-1", "NVIDIA H200", "ns::scale<4>", self.told.append, timeout_s)

    def place(self, name: str = "s1") -> Path:
        """Return the folder of a variant."""
        found = self._folder / name
        found.mkdir(exist_ok=True)
        return found


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ncu:
    found = Ncu(tmp_path)
    monkeypatch.setenv("PATH", str(found.path.parent))
    return found


def test_a_variant_is_profiled_as_it_is_measured(ncu):
    ncu.prints(TABLE)
    assert ncu.profiler().visit(ncu.place()) == {"gmem": 0.64}
    (words,) = ncu.calls
    assert words[words.index("--kernel-name") + 1] == "scale"
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[-2:] == [str(ncu.place() / "control.json"), "GPU-1"]
    assert ncu.told == []


def test_only_every_so_many_visits(ncu):
    ncu.prints(TABLE)
    third = ncu.profiler(every=3)
    found = [bool(third.visit(ncu.place(f"s{number}"))) for number in range(7)]
    assert found == [True, False, False, True, False, False, True]
    assert len(ncu.calls) == 3


def test_zero_is_never(ncu):
    ncu.prints(TABLE)
    assert ncu.profiler(every=0).visit(ncu.place()) == {}
    assert ncu.calls == []


def test_a_profile_is_not_made_again(ncu):
    ncu.prints(TABLE)
    first = ncu.profiler().visit(ncu.place())
    assert ncu.profiler().visit(ncu.place()) == first
    assert len(ncu.calls) == 1


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", 1, "may not read the performance counters"),
        ("==ERROR== Failed to find metric x", 1, "exit code 1"),
        ('garbage \x00 ,,,\n"ID","Kernel Name', 0, "its table is not complete"),
        ("", 0, "it has no table"),
    ],
)
def test_what_does_not_work_is_told_once(ncu, text, code, why):
    ncu.prints(text, code)
    first = ncu.profiler()
    assert [first.visit(ncu.place(name)) for name in ("s1", "s2")] == [{}, {}]
    assert len(ncu.told) == len(ncu.calls) == 1
    assert ncu.told[0].startswith("Variants are not profiled, and their bottlenecks are estimated")
    assert why in ncu.told[0]
    assert ncu.profiler().visit(ncu.place("s2")) == {}
    assert len(ncu.calls) == 1


def test_no_ncu_is_told_with_what_to_do(ncu):
    assert ncu.profiler().visit(ncu.place()) == {}
    assert not ncu.path.exists()
    assert "ncu is not on the PATH: install Nsight Compute" in ncu.told[0]


def test_one_that_cannot_be_started_is_told(ncu):
    ncu.path.write_text("#!/nowhere/at/all\n")
    ncu.path.chmod(0o755)
    assert ncu.profiler().visit(ncu.place()) == {}
    assert "No such file" in ncu.told[0]


def test_one_that_hangs_is_ended(ncu):
    ncu.does("time.sleep(600)")
    assert ncu.profiler(timeout_s=0.2).visit(ncu.place()) == {}
    assert "ncu has not finished within 0.2 s" in ncu.told[0]


def test_a_damaged_profile_is_one_sentence(ncu):
    (ncu.place() / "profile.json").write_text('{"used": {"nothing": 1}}')
    with pytest.raises(InputError, match="delete it to have it made again"):
        ncu.profiler().visit(ncu.place())


def test_the_search_reckons_with_what_was_profiled(ncu):
    ncu.prints(TABLE)
    spec = cuda_spec("float s = x[i]; for (int k = 0; k < 500; ++k) s = expf(s); y[i] = s;")
    prior = BottleneckPrior(
        spec, CardModel(DEFAULT_PROFILE, 700.0), Metric.TIME, SearchParameters(), ()
    )
    profile = ncu.profiler(every=2)
    explorer = GraphExplorer(
        spec,
        [move_named("cache_policy_cg")],
        seed=0,
        prior=prior,
        profile=lambda name: profile.visit(ncu.place(name)),
    )
    state = spec.baseline
    result = Result(
        id=state.id, outcome="correct", emulated=False, objective=Metric.TIME, time_ms=0.05
    )
    before = prior.situation(state, result)
    explorer.learn(state, result)
    after = prior.situation(state, result)
    assert before is not None
    assert after is not None
    assert before.time_shares["gmem"] < 0.1 < after.time_shares["gmem"]
    following = explorer.propose()
    assert following is not None
    changed = following.application.state
    explorer.learn(changed, replace(result, id=changed.id, outcome="correctness", time_ms=None))
    assert len(ncu.calls) == 1


@pytest.mark.slow
def test_the_process_that_is_profiled_launches_the_kernel(ncu, tmp_path, monkeypatch):
    monkeypatch.undo()  # a compiler is needed, too
    assert optimize(write(tmp_path), tmp_path / "out", "--budget-builds", "0") == 0
    ncu.does(
        "at = sys.argv.index('-m') - 1\n"
        f"subprocess.run(sys.argv[at:-1] + ['emulated'], check=True)\nprint({TABLE!r})"
    )
    monkeypatch.setenv("PATH", str(ncu.path.parent), prepend=":")
    baseline = tmp_path / "out/kernels/_scale/baseline"
    assert ncu.profiler().visit(baseline) == {"gmem": 0.64}, ncu.told


@pytest.mark.slow
def test_it_launches_as_often_as_is_skipped_and_once_more(tmp_path, monkeypatch):
    assert optimize(write(tmp_path), tmp_path / "out", "--budget-builds", "0") == 0
    launched: list[str] = []
    real = EmulatedDevice.load

    @contextmanager
    def load(device: EmulatedDevice, job: Job, arenas: Any) -> Iterator[Any]:
        with real(device, job, arenas) as loaded:
            yield SimpleNamespace(run=lambda: (loaded.run(), launched.append(job.kernel.source)))

    monkeypatch.setattr(EmulatedDevice, "load", load)
    control = tmp_path / "out/kernels/_scale/baseline/control.json"
    assert ncu_profiler.main([str(control), "emulated"]) == 0
    assert len(launched) == ncu_profiler.LAUNCHES
    assert all("void scale(" in source for source in launched)


BEFORE = "==PROF== Connected to process 4242 (/usr/bin/python3.11)\n==PROF== Profiling\n"
COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
ROW = ("0", "4242", "python3.11", "127.0.0.1", "f(const float *, float *, int)", "1", "7")
OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"


def printed(values: dict[str, str], *, rows: int = 1) -> str:
    """Return a table as ``ncu --csv --page raw`` prints it."""
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)
    table.writerow([*COLUMNS, *values])
    table.writerow(["" for _ in COLUMNS] + ["%" for _ in values])
    for _ in range(rows):
        table.writerow([*ROW, *values.values()])
    return BEFORE + text.getvalue()


def test_the_busiest_unit_of_a_region_counts():
    values = dict.fromkeys(metrics(), "0")
    values[f"sm__inst_executed{OF_PEAK}"] = "31.50"
    values[f"sm__pipe_fma_cycles_active{OF_PEAK}"] = "42.00"
    values[f"lts__throughput{OF_PEAK}"] = "50"
    values["lts__t_sectors.sum"] = "1,000"
    values["lts__t_sectors_op_red.sum"] = "250"
    assert read_counters(printed(values)) == pytest.approx(
        {"compute": 0.42, "gmem": 0.5, "sfu": 0, "smem": 0, "atomics": 0.125}
    )


def test_what_this_gpu_does_not_have_is_left_out():
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
def test_what_is_no_profile_is_refused(text, why):
    with pytest.raises(FormError, match=why):
        read_counters(text)


@given(st.text() | st.binary().map(lambda data: '"ID"' + data.decode("latin-1")))
def test_any_text_is_a_profile_or_refused(text):
    try:
        found = read_counters(text)
    except FormError:
        return
    assert found


@given(st.dictionaries(st.sampled_from(metrics()), st.floats(0, 1e6), min_size=1))
def test_shares_are_shares(values):
    try:
        found = read_counters(printed({name: f"{value:.2f}" for name, value in values.items()}))
    except FormError:
        return
    assert all(0 <= share <= 1 and math.isfinite(share) for share in found.values())
