"""Kernels that fail during a run: their items fail, and later ones are measured."""

from __future__ import annotations

import signal

import pytest
from points import MORE

pytestmark = pytest.mark.slow

BENCH = """
import pytest
from parts import LAUNCH, SCALE, SOURCE

BODIES = {
    "right": "y[i] = factor * x[i];",
    "hung": "for (volatile int k = 0; k < 1;) {} y[i] = factor * x[i];",
    "illegal": "y[i + (1 << 28)] = factor * x[i];",
    "null": "float* nowhere = nullptr; nowhere[i] = factor * x[i];",
    "misaligned": "float4 v = *(const float4*)(x + i); y[i] = factor * v.x;",
    "trap": "__trap();",
    "prints": 'for (volatile int k = 0; k < 1;) printf("as much as it can");',
    "vast": "if (blockIdx.x < 8) y[i] = factor * x[i];",
}
LAUNCHES = {
    "vast": {"grid": 1_000_000_000},
    "threads": {"block": 2048},
    "shared": {"shared_bytes": 1 << 20},
}

@pytest.mark.parametrize("fault", ["first", FAULT, "last"])
def test_scale(fault, powercap, load_kernel, energy_benchmark):
    body = BODIES.get(fault, BODIES["right"])
    source = SOURCE.replace("y[i] = factor * x[i];", body)
    launch = {**LAUNCH, **LAUNCHES.get(fault, {})}
    energy_benchmark(load_kernel(source, **launch), workload=SCALE)
"""


STRIKES = """
import contextlib, os, threading
from pathlib import Path
import pytest
from parts import LAUNCH, SCALE, SOURCE

def children(pid):
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return []

def programs(pid):
    for child in children(pid):
        yield from programs(child)
        try:
            name = Path(f"/proc/{child}/exe").readlink().name
        except OSError:
            continue
        if name.endswith(("-plain", "-checked")):
            yield child

def strike(over):
    while not over.wait(0.01):
        for program in programs(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, NUMBER)

@pytest.mark.parametrize("turn", ["first", "struck", "last"])
def test_scale(turn, powercap, load_kernel, energy_benchmark):
    source, over = SOURCE, threading.Event()
    if turn == "struck":
        threading.Thread(target=strike, args=(over,), daemon=True).start()
        source = source.replace("y[i] =", "for (volatile int k = 0; k < 1;) {} y[i] =")
    try:
        energy_benchmark(load_kernel(source, **LAUNCH), workload=SCALE)
    finally:
        over.set()
"""


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("hung", "timeout"),
        MORE("prints", "timeout"),
        MORE("vast", "timeout"),
        ("illegal", "correctness"),  # the race check sees the address before it is used
        MORE("null", "correctness"),
        MORE("misaligned", "runtime"),
        ("trap", "runtime"),
        ("threads", "constraints"),
        MORE("shared", "constraints"),
    ],
)
def test_a_kernel_that_fails_takes_only_its_own_item_along(project, fault, outcome):
    project.module(f"FAULT = {fault!r}\n{BENCH}")
    result = project.run(
        "--powercap", "1", "--gpuenergy-timeout", "0.5", "--gpuenergy-order", "file"
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["timeout: *0.5 s*" if outcome == "timeout" else f"{outcome}: *"])
    assert "Traceback" not in result.stdout.str()
    stored = project.stored().measurements
    assert [m.outcome for m in stored] == ["correct", outcome, "correct"]
    assert [m.measured for m in stored] == [True, False, True]
    assert project.report().measurements == stored
    assert project.limit_w() == 700


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        ("SIGKILL", "runtime"),
        ("SIGSTOP", "timeout"),
        MORE("SIGTERM", "runtime"),
    ],
)
def test_a_kernels_process_that_somebody_ends_or_stops_takes_only_its_own_item_along(
    project, number, outcome
):
    project.module(f"NUMBER = {getattr(signal, number):d}\n{STRIKES}")
    result = project.run_apart(
        "--powercap", "1", "--gpuenergy-timeout", "0.5", "--gpuenergy-order", "file"
    )
    result.assert_outcomes(passed=2, failed=1)
    assert "Traceback" not in result.stdout.str()
    assert [m.outcome for m in project.stored().measurements] == ["correct", outcome, "correct"]
    assert project.limit_w() == 700


def test_a_kernel_that_asks_for_too_much_memory_takes_only_its_own_item_along(project):
    project.module(
        """
        from dataclasses import replace
        import pytest
        from parts import LAUNCH, SCALE, SOURCE
        from pytest_gpuenergy.workloads import Tensor

        @pytest.mark.parametrize("gib", [0.001, 200, 0.002])
        def test_scale(gib, powercap, load_kernel, energy_benchmark):
            space = Tensor("space", (int(gib * 2**28),), "float32", "workspace")
            kernel = replace(load_kernel(SOURCE, **LAUNCH), workspaces=(space,))
            energy_benchmark(kernel, workload=SCALE)
        """
    )
    result = project.run("--powercap", "1")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["constraints: Out of memory: 204800 MiB of buffers do not fit *"])
    assert project.limit_w() == 700
