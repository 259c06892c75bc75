"""Power caps in a run: what is set, what is flagged or skipped, and what is restored."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from points import MORE

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.control import CURRENT, NamedSetpoints, Setpoint, choose_writer
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.pytest_plugin import header_lines
from pytest_gpuenergy.support import SetpointError

Inject = Callable[..., None]


def set_limit(watts: float, spec: str = "emulated", index: int = 0) -> None:
    with open_device(spec, index=index) as device:
        device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, round(watts * 1e3))


def test_the_owners_limit_is_put_back_not_the_default_one(project):
    set_limit(400)
    project.run("--powercap", "1,5").assert_outcomes(passed=2)
    assert project.limit_w() == 400


def test_a_limit_set_by_the_command_is_the_runs_own(project):
    assert main(["powercap", "set", "300", "--gpu-device", "emulated"]) == 0
    project.run("--powercap", "current,5").assert_outcomes(passed=2)
    enforced = {m.cap: m.enforced_power_limit_w for m in project.stored().measurements}
    assert enforced == {"current": 300, "700W": 700}
    assert project.limit_w() == 300
    assert main(["powercap", "restore"]) == 0
    assert project.limit_w() == 700


@pytest.mark.slow
def test_caps_refused_half_way_are_skipped_and_the_next_start_restores(project, inject):
    inject(power_limit={"error": "unknown", "after_calls": 1})
    result = project.run("--powercap", "1,2,3", "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuenergy: error: The power limit of NVIDIA H200 was not restored to 700 W "
            "(gpuenergy powercap restore tries again): *",
            "SKIPPED * The power limit of NVIDIA H200 cannot be set to 325 W (*): check the card *",
        ]
    )
    assert [m.cap for m in project.report().measurements] == ["200W"]
    assert project.limit_w() == 200
    inject()
    result = project.run("--powercap", "current")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["restored after a killed run: The power limit of NVIDIA H200 is back at 700 W."]
    )
    assert project.limit_w() == 700


@pytest.mark.slow
def test_a_limit_that_cannot_be_read_back_skips_the_item(project):
    project.module(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def blind(gpu):
            error = {"error": "unknown", "after_calls": 1}  # what comes before the write
            gpu.inject("nvmlDeviceGetPowerManagementLimit", error)

        def test_blind(powercap):
            raise AssertionError("the cap was set")
        """
    )
    result = project.run("--powercap", "300W", "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuenergy: error: * was not restored to 700 W *",
            "SKIPPED * NVIDIA H200 does not report its power limit (*): check it *",
        ]
    )
    assert project.limit_w() == 300
    assert main(["powercap", "restore"]) == 0
    assert project.limit_w() == 700


def test_a_lower_enforced_limit_flags_the_measurement(project, inject):
    inject(enforced_limit={"power_w": 250})
    project.run("--powercap", "1,3").assert_outcomes(passed=2)
    low, high = project.stored().measurements
    assert "enforced_limit_lower" not in low.validity
    assert "enforced_limit_lower" in high.validity
    assert (high.power_limit_w, high.enforced_power_limit_w) == (450, 250)


def test_a_foreign_limit_in_mid_run_flags_the_item_and_skips_the_caps_that_follow(project, inject):
    inject(limit_changed={"power_w": 600, "after_s": 1.5})
    result = project.run("--powercap", "1,2,3", "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    (measurement,) = project.stored().measurements
    assert "power_limit_changed" in measurement.validity
    result.stdout.fnmatch_lines(
        ["SKIPPED * Somebody else has changed the power limit of NVIDIA H200 to 600 W: end *"]
    )
    assert project.limit_w() == 600


def test_of_several_gpus_only_the_selected_one_is_touched(project):
    spec = "emulated:h200x4"
    for index in range(4):
        set_limit(600 + index, spec, index)
    project.module(
        """
        from pytest_gpuenergy.opening import open_device

        def test_others(powercap):
            limits_w = []
            for index in range(4):
                with open_device("emulated:h200x4", index=index) as gpu:
                    limit_mw = gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle)
                    limits_w.append(limit_mw / 1000)
            assert limits_w == [powercap.power_limit_w, 601, 602, 603]
        """
    )
    project.run("--gpu-device", spec, "--powercap", "1,2").assert_outcomes(passed=2)
    assert [project.limit_w(spec, index) for index in range(4)] == [600, 601, 602, 603]


def test_the_summary_names_the_caps_that_changed_nothing(project):
    result = project.run("--powercap", "1,4,5")
    result.assert_outcomes(passed=3)
    idle = [m for m in project.stored().measurements if not m.cap_binding]
    assert idle
    named = ", ".join(m.cap for m in sorted(idle, key=lambda m: m.power_limit_w))
    result.stdout.fnmatch_lines([f"caps without effect (no kernel was held back): {named}"])


# -- caps that could not be set for any item -------------------------------------------------

UNSET = "gpuenergy: error: The power cap"
ONE_UNSET = ["power caps that could not be set: 200W (1 item)"]


def sentences(result: pytest.RunResult) -> list[str]:
    return [line for line in result.stdout.lines if "could not be set for any item" in line]


@pytest.fixture
def no_rights(inject: Inject) -> None:
    inject(power_limit="no_permission")


@pytest.mark.usefixtures("no_rights")
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize("where", ["command line", "ini file"])
def test_a_cap_that_could_be_set_for_no_item_fails_the_run(project, where, strict):
    project.ini(f"strict_powercap = {str(strict).lower()}")
    project.ini('powercap = "3"' if where == "ini file" else "")
    result = project.run("-rs", *(["--powercap", "3"] if where == "command line" else []))
    result.assert_outcomes(skipped=int(not strict), errors=int(strict))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    reason = "The power limit of NVIDIA H200 cannot be set to 450 W (*): run as root (*)."
    result.stdout.fnmatch_lines_random(
        [
            "power caps that could not be set: 450W (1 item)",
            f"{UNSET} 450W could not be set for any item: {reason}",
            reason if strict else f"SKIPPED * {reason}",
        ]
    )
    assert len(sentences(result)) == 1
    assert result.stdout.str().count("cannot be set to 450 W") == 2  # for the item and the run
    assert not project.stored().measurements


@pytest.mark.usefixtures("no_rights")
@pytest.mark.parametrize("text", ["3,325W,1,700W", "all"])
def test_several_caps_that_could_not_be_set_are_one_sentence(project, text):
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [200, 325, 450]')
    result = project.run("--powercap", text)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # 700 W is the card's current limit, so nothing has to be written.
    (sentence,) = sentences(result)
    said = f"{UNSET}s 200W, 325W, 450W could not be set for any item; the reason for 200W: The "
    assert sentence.startswith(said)


@pytest.mark.slow
@pytest.mark.usefixtures("no_rights")
def test_of_all_caps_one_that_could_be_set_is_enough(project):
    result = project.run("--powercap", "all")
    result.assert_outcomes(passed=1, skipped=4)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["power caps that could not be set: 200W (1 item), 325W (1 item), 450W (1 item), 575W *"]
    )
    # Caps whose items were deselected do not count either.
    result = project.run("--powercap", "1,5", "-k", "700W")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_table_values_beyond_the_card_are_skipped_and_fail_when_named_or_strict(project):
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [100, 450, 1000]')
    reason = "100 W is outside this card's constraints of 200 W to 700 W."
    for strict in ((), ("--strict-powercap",)):
        result = project.run("--powercap", "all", "-rs", *strict)
        result.assert_outcomes(passed=1, skipped=2)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(
            [
                f"gpuenergy: power cap 100W cannot be set: {reason}",
                "gpuenergy: power cap 1000W cannot be set: 1000 W is outside *",
                "power caps that could not be set: 100W (1 item), 1000W (1 item)",
            ]
        )
        result.stdout.fnmatch_lines_random(
            [f"SKIPPED * Power cap {watts}W is skipped: {watts} W is *" for watts in (100, 1000)]
        )
    result = project.run("--powercap", "all,1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert sentences(result) == [
        f"{UNSET} 100W could not be set for any item: Power cap 100W is skipped: {reason}"
    ]
    result = project.run("--strict-powercap", "--powercap", "1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"Power cap 100W is skipped: {reason}"])


def test_a_table_of_which_the_card_can_take_nothing_fails(project):
    project.ini('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [100, 1000]')
    result = project.run("--strict-powercap", "--powercap", "all")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*The power caps 100W, 1000W could not be set for any item*"])


@pytest.mark.slow
def test_a_cap_that_could_be_set_for_one_of_its_items_is_enough(project):
    project.module(
        """
        import pytest

        @pytest.fixture
        def refusing(gpu):
            gpu.inject("power_limit", "no_permission")

        def test_set(powercap):
            pass

        def test_refused(refusing, powercap):
            raise AssertionError("the cap was set")
        """
    )
    # The limit cannot be restored either, which is why the run fails.
    result = project.run("--powercap", "1")
    result.assert_outcomes(passed=1, skipped=1)
    assert not sentences(result)
    result.stdout.fnmatch_lines(ONE_UNSET)


@pytest.mark.slow
@pytest.mark.usefixtures("no_rights")
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("assert False", pytest.ExitCode.TESTS_FAILED),
        MORE("raise KeyboardInterrupt", pytest.ExitCode.INTERRUPTED),
        ("pytest.exit('enough', returncode=0)", pytest.ExitCode.OK),
    ],
    ids=["failed", "interrupted", "ended"],
)
def test_nothing_is_said_of_caps_with_items_that_were_not_reached(project, statement, code):
    project.module(
        f"""
        import pytest

        def test_first(powercap):
            pass

        def test_ends():
            {statement}

        def test_last(powercap):
            pass
        """
    )
    result = project.run_apart("-x", "--powercap", "1", "--gpuenergy-order", "file")
    assert result.ret == code
    assert not sentences(result)
    result.stdout.fnmatch_lines(ONE_UNSET)


def test_an_item_that_fails_before_its_cap_says_nothing_of_the_cap(project):
    project.module(
        """
        import pytest

        @pytest.fixture
        def broken():
            raise ValueError("broken")

        def test_scale(broken, powercap):
            pass
        """
    )
    result = project.run("--powercap", "1")
    result.assert_outcomes(errors=1)
    assert "could be set" not in result.stdout.str()


@pytest.mark.parametrize(
    ("earlier", "code"),
    [("1,5", pytest.ExitCode.OK), ("5", pytest.ExitCode.TESTS_FAILED)],
    ids=["measured", "not measured"],
)
def test_what_the_resumed_run_measured_counts(project, inject, earlier, code):
    project.run("--powercap", earlier)
    inject(power_limit="no_permission")
    result = project.run("--powercap", "1,5", "--gpuenergy-resume")
    assert result.ret == code
    assert len(sentences(result)) == int(code != pytest.ExitCode.OK)


def test_a_cap_that_is_not_of_the_option_may_be_skipped(project):
    project.module(
        """
        import pytest
        from pytest_gpuenergy.control import Setpoint

        MINE = Setpoint(350.0, unavailable="this is a small card")

        @pytest.mark.parametrize("powercap", [MINE], indirect=True)
        def test_own(powercap):
            pass
        """
    )
    result = project.run("--powercap", "1")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK


# -- the header of a real GPU, with an emulated one's NVML in its place ----------------------


class Writer:
    """Sets any limit except 325 W, and any clock except 1200 MHz."""

    name = "zeusd (/run/zeusd.sock)"

    def check_power_limit(self, limit_mw: int) -> None:
        if limit_mw == 325_000:
            raise SetpointError("325 W is not allowed: ask for it.")

    def check_clock_lock(self, clock_mhz: int) -> None:
        if clock_mhz == 1200:
            raise SetpointError("1200 MHz is not allowed: ask for it.")


W200, W325, W450 = (Setpoint(watts) for watts in (200.0, 325.0, 450.0))
THROUGH = "power limits are set through zeusd (/run/zeusd.sock)"


@pytest.mark.parametrize(
    ("setpoints", "persistent", "find", "lines"),
    [
        ((W200, CURRENT), True, lambda _: Writer(), [THROUGH]),
        (
            (W200, CURRENT, W450),
            True,
            choose_writer,
            [
                "power caps 200W, 450W cannot be set: GPUENERGY_CAP_WRITES=deny forbids changing "
                "the power limit or any other setting of a real GPU: unset it, or use --powercap "
                "current and --smclock current."
            ],
        ),
        (
            (W200, W325),
            True,
            lambda _: Writer(),
            [THROUGH, "power cap 325W cannot be set: 325 W is not allowed: ask for it."],
        ),
        (
            (Setpoint(200.0, sm_clock_mhz=1500), Setpoint(sm_clock_mhz=1200)),
            False,
            lambda _: Writer(),
            [
                "energy from the NVML energy counter; setpoints: 200W-1500MHz, 1200MHz",
                "power limits and clocks are set through zeusd (/run/zeusd.sock)",
                "SM clocks are unlocked afterwards, which is the default: what they were locked to "
                "before cannot be read",
                "setpoint 1200MHz cannot be set: 1200 MHz is not allowed: ask for it.",
                "persistence mode is off, so power limits and clocks are lost whenever the driver "
                "unloads: sudo nvidia-smi -pm 1",
            ],
        ),
        (
            (W200,),
            False,
            lambda _: Writer(),
            [
                "persistence mode is off, so power limits are lost whenever the driver unloads: "
                "sudo nvidia-smi -pm 1"
            ],
        ),
        (
            (CURRENT,),
            False,
            lambda _: Writer(),
            ["energy from the NVML energy counter; power caps: current"],
        ),
    ],
    ids=["writer", "denied", "refused cap", "clocks", "no persistence", "current"],
)
def test_the_header_says_who_sets_what_and_what_cannot_be_set(
    monkeypatch, setpoints, persistent, find, lines
):
    with open_device("emulated") as device:
        persistence = "nvmlDeviceGetPersistenceMode"
        monkeypatch.setattr(device.nvml, persistence, lambda _: int(persistent), raising=False)
        names = ("name", "uuid", "nvml", "handle", "clock")
        real = SimpleNamespace(emulated=False, **{name: getattr(device, name) for name in names})
        named = NamedSetpoints({"all": setpoints})
        card: Any = SimpleNamespace(device=real, named=named, settings_writer=lambda: find(real))
        options: Any = SimpleNamespace(verify_only=False)
        shown = header_lines(card, options)
    assert shown[-len(lines) :] == [f"gpuenergy: {line}" for line in lines]
