"""Runs with locked clocks: items, records, faults, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuenergy.control import Lease
from pytest_gpuenergy.opening import open_device

Inject = Callable[..., None]
SET = "def test_set(powercap):\n    pass\n"
CLOCK = ("--powercap", "current", "--smclock", "1500MHz")


def lock_mhz() -> tuple[int, int] | None:
    with open_device("emulated") as device, device.state.change() as card:  # type: ignore[attr-defined]
        locked: tuple[int, int] | None = card.lock_mhz
        return locked


@pytest.mark.slow
def test_each_cap_is_measured_at_each_clock(project):
    result = project.run("--powercap", "450W", "--smclock", "current,1500MHz", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "gpuenergy: energy from the modelled energy counter; setpoints: 450W, 450W-1500MHz",
            "gpuenergy: SM clocks are unlocked afterwards, which is the default: what they *",
        ]
    )
    free, locked = sorted(project.stored().measurements, key=lambda m: m.cap)
    assert [m.node_id.partition("[")[2] for m in (free, locked)] == ["450W]", "450W-1500MHz]"]
    assert free.sm_clock_mhz is free.locked_sm_clock_min_mhz is free.locked_sm_clock_max_mhz is None
    assert (locked.sm_clock_mhz, locked.power_limit_w, locked.cap_index) == (1500, 450.0, 3)
    assert (locked.locked_sm_clock_min_mhz, locked.locked_sm_clock_max_mhz) == (1500, 1500)
    assert locked.effective_sm_clock_mhz == pytest.approx(1500, rel=0.01)
    assert free.effective_sm_clock_mhz == pytest.approx(1980, rel=0.01)
    assert not locked.validity
    assert locked.identity.cap == "450W-1500MHz"
    assert lock_mhz() is None


def test_five_steps_without_a_cap(project):
    result = project.run("--powercap", "current", "--smclock", "all", "--collect-only", "-q")
    names = [line.partition("[")[2] for line in result.stdout.lines if "::" in line]
    assert sorted(names) == ["1155MHz]", "1575MHz]", "1980MHz]", "345MHz]", "750MHz]"]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["test_scale.py::test_scale[450W-1500MHz]"], []),
        (["-k", "test_scale[1500MHz]"], []),
        (["test_scale.py::test_scale[450W-1500MHz]", "--powercap", "450W"], []),
        (["--powercap", "current"], ['smclock = "1500MHz"']),
    ],
    ids=["argument", "-k", "cap given", "ini"],
)
def test_ids_that_were_copied_and_the_ini_file_name_clocks(project, arguments, where):
    for line in where:
        project.ini(line)
    result = project.run(*arguments, "--collect-only", "-q")
    (name,) = [line for line in result.stdout.lines if "::" in line]
    assert name.endswith("1500MHz]")


@pytest.mark.parametrize("strict", [False, True])
def test_a_clock_that_cannot_be_locked_skips_or_fails(project, inject, strict):
    project.module(SET)
    inject(clock_lock="no_permission")
    result = project.run(
        *("--powercap", "1,3", "--smclock", "current,1500MHz", "-rs"),
        *(["--strict-powercap"] if strict else []),
    )
    result.assert_outcomes(passed=2, **({"errors": 2} if strict else {"skipped": 2}))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    reason = "The SM clocks of NVIDIA H200 cannot be locked to 1500 MHz (*): run as root *"
    result.stdout.fnmatch_lines(
        [
            "setpoints that could not be set: 200W-1500MHz (1 item), 450W-1500MHz (1 item)",
            "gpuenergy: error: The setpoints 200W-1500MHz, 450W-1500MHz could not be set for any "
            f"item: {reason}",
        ]
    )


def test_a_card_that_somebody_has_locked_is_left_alone_or_taken_over(project, inject):
    project.module("def test_set(powercap):\n    assert powercap.sm_clock_mhz == 1500\n")
    inject(clock_locked={"clock_mhz": 1200})
    arguments = (*CLOCK, "-rs")
    result = project.run(*arguments)
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["SKIPPED * Somebody else seems to have locked the SM clocks of *"])
    assert lock_mhz() == (1200, 1200)
    project.run(*arguments, "--gpuenergy-allow", "board, clocks").assert_outcomes(passed=1)
    inject()
    assert lock_mhz() is None


@pytest.mark.slow
def test_a_worker_on_a_card_that_somebody_has_locked_leaves_its_items_to_others(project, inject):
    project.module(SET)
    inject(clock_locked={"clock_mhz": 1200})
    result = project.run("-p", "xdist", "-n", "1", *CLOCK)
    result.assert_outcomes()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpuenergy: error: Nothing was run, because no worker can measure: gw0 on *: Somebody *"]
    )
    assert lock_mhz() == (1200, 1200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "flag"),
    [
        ({"below_lock": {"percent": 6}}, "clock_below_lock"),
        ({"lock_ignored": True}, "clock_above_lock"),
    ],
)
def test_a_card_that_does_not_keep_to_its_lock_is_flagged(project, inject, faults, flag):
    inject(**faults)
    result = project.run(*CLOCK, "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_scale?1500MHz? FLAGGED *"])
    (measurement,) = project.stored().measurements
    assert flag in measurement.validity


def test_clocks_that_cannot_be_unlocked_fail_the_run_and_are_unlocked_at_the_next_start(
    project, inject
):
    project.module(SET)
    inject(clock_reset="unknown")
    result = project.run(*CLOCK)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpuenergy: error: The SM clocks of NVIDIA H200 were not unlocked (gpuenergy powercap *"]
    )
    assert lock_mhz() == (1500, 1500)
    inject()
    with open_device("emulated") as device:
        assert Lease(device).restored == (
            "The SM clocks of NVIDIA H200 are unlocked, which is the default."
        )
    assert lock_mhz() is None


def test_a_setpoint_of_ones_own_may_name_a_clock(project):
    project.module(
        """
        import pytest
        from pytest_gpuenergy.control import Setpoint

        @pytest.mark.parametrize("powercap", [Setpoint(sm_clock_mhz=1500)], indirect=True)
        def test_own(powercap, gpu):
            clock = gpu.nvml.nvmlDeviceGetClockInfo(gpu.handle, gpu.nvml.NVML_CLOCK_SM)
            assert (powercap.label, clock) == ("1500MHz", 1500)
        """
    )
    project.run("--powercap", "1").assert_outcomes(passed=1)


def test_verifying_alone_locks_nothing(project, inject):
    project.module(SET)
    inject(clock_lock="no_permission")
    result = project.run("--gpuenergy-verify-only", "--smclock", "1500MHz")
    result.assert_outcomes(passed=1)
