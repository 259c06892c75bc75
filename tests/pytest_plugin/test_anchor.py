"""Anchor kernels: a long run reports drift of the card and flags the affected measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

# On the card's own clock an item takes 2 to 3 seconds: a check is due every second item.
EVERY = ("--gpuenergy-anchor", "4")
ALWAYS = ("--gpuenergy-anchor", "0.01")
GATED = ("--gpuenergy-compare", "base.json", "--gpuenergy-fail", "time:20%")
SLOWER = {"percent": 8}  # below the gate's limit


@pytest.fixture(autouse=True)
def file_order(project: Project) -> None:
    project.ini('gpuenergy_order = "file"')


def numbered(
    project: Project,
    count: int = 12,
    *,
    faults: dict[int, dict[str, object]] | None = None,
    after: str = "",
) -> None:
    """Items of kernels k01 and so on; ``faults`` gives those that begin with some items."""
    project.bench(
        head=f"FAULTS = {faults or {}!r}",
        marks=f'@pytest.mark.parametrize("number", range(1, {count + 1}))',
        arguments="number, gpu, powercap, ",
        before="[gpu.inject(*fault) for fault in FAULTS.get(number, {}).items()]",
        more=', label=f"k{number:02d}"',
        after=after,
    )


def run_with(
    project: Project, *arguments: str, faults: dict[int, dict[str, object]] | None = None
) -> pytest.RunResult:
    """A run of twelve items under one power cap."""
    numbered(project, faults=faults)
    return project.run("--powercap", "700W", *arguments)


def flagged(project: Project) -> list[int]:
    """Numbers, from 1, of the items that are flagged for drift."""
    measurements = project.report().measurements
    return [n for n, m in enumerate(measurements, start=1) if "drift" in m.validity]


def test_in_a_card_that_stays_the_same_good_checks_speak_for_every_item_once(project):
    result = run_with(project, *EVERY)
    result.assert_outcomes(passed=12)
    report = project.report()
    assert len(report.anchors) >= 3
    first = report.measurements[0]
    for check in report.anchors:
        assert (check.verdict, check.kernel, check.cap) == ("good", "k01", "700W")
        assert (check.since, check.gpu_uuid) == (first.started, first.gpu_uuid)
        assert check.temperature_c is not None
        for ratio in (check.time, check.energy, check.edp):
            assert ratio is not None
            assert ratio.low < ratio.value < ratio.high
            assert abs(ratio.value - 1) < 0.01
    assert flagged(project) == []
    spoken_for = [node_id for check in report.anchors for node_id in check.items]
    assert spoken_for == [m.node_id for m in report.measurements[1:]]
    times = f"{len(report.anchors)} times, largest change: *"
    result.stdout.fnmatch_lines([f"anchor kernels (emulated) were measured again {times}"])


def test_a_card_that_has_become_slower_flags_what_no_good_check_follows(project):
    result = run_with(project, *EVERY, faults={6: {"slower": SLOWER}})
    result.assert_outcomes(passed=12)
    report = project.report()
    verdicts = [check.verdict for check in report.anchors]
    bad = verdicts.index("drift")
    assert bad >= 1
    assert set(verdicts[bad:]) == {"drift"}
    check = report.anchors[bad]
    assert check.time is not None
    assert check.time.low < 1.08 < check.time.high
    good = {node_id for check in report.anchors[:bad] for node_id in check.items}
    clean = [n for n in range(1, 13) if n not in flagged(project)]
    assert clean == [1, *range(2, 2 + len(good))]
    assert max(clean) < 6
    count = 12 - len(clean)
    result.stdout.fnmatch_lines([f"drift in * of these checks: {count} measurements are flagged *"])


def test_a_card_that_recovers_is_trusted_from_the_next_good_check_on(project):
    faults = {4: {"slower": {**SLOWER, "lasts_s": 6.0}}}
    run_with(project, *EVERY, faults=faults).assert_outcomes(passed=12)
    assert {check.verdict for check in project.report().anchors} == {"good", "drift"}
    spoiled = flagged(project)
    assert 4 in spoiled
    assert 12 not in spoiled
    assert spoiled == list(range(min(spoiled), max(spoiled) + 1))


def test_what_is_flagged_afterwards_is_on_disk_at_once(project):
    # Ended in the middle: only what was written item by item exists.
    numbered(project, faults={3: {"slower": SLOWER}}, after="if number == 8: os._exit(1)")
    project.run_apart("--powercap", "700W", *EVERY)
    stored = project.stored()
    assert [check.verdict for check in stored.anchors][-1] == "drift"
    assert "drift" in stored.measurements[3].validity
    assert len(stored.measurements) == 8


def test_each_power_cap_has_its_own_anchor(project):
    numbered(project, 4)
    arguments = ("--powercap", "1,5", "--gpuenergy-order", "interleaved")
    project.run(*arguments, *EVERY).assert_outcomes(passed=8)
    report = project.report()
    assert {check.cap for check in report.anchors} == {"200W", "700W"}
    by_id = {m.node_id: m for m in report.measurements}
    for check in report.anchors:
        assert by_id[check.node_id].cap == check.cap
        assert {by_id[item].cap for item in check.items} == {check.cap}


def test_the_checks_can_be_left_out(project):
    run_with(project, "--gpuenergy-anchor", "0", faults={3: {"slower": SLOWER}})
    assert project.report().anchors == ()
    assert flagged(project) == []


def test_a_gate_in_the_same_run_is_ambiguous_about_what_is_measured_while_it_drifts(project):
    numbered(project)
    project.baseline("--powercap", "700W", passed=12)
    nearly = {"percent": 15}
    result = run_with(project, *GATED, *ALWAYS, faults={3: {"slower": nearly}})
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(
        ["*[[]12-700W]: time (emulated) +* limit 20 %: AMBIGUOUS (flagged now: drift)"]
    )


def test_what_is_flagged_after_its_verdict_is_told_and_fails_a_strict_gate(project):
    numbered(project)
    project.baseline("--powercap", "700W", passed=12)
    faults = {12: {"slower": SLOWER}}  # found after all verdicts were given
    late = ("--gpuenergy-anchor", "15")
    result = run_with(project, *GATED, *late, faults=faults)
    assert result.ret == pytest.ExitCode.OK
    line = "*[1-9] verdicts were given before drift was found: gpuenergy compare judges again*"
    result.stdout.fnmatch_lines([line])
    strict = run_with(project, *GATED, "--gpuenergy-strict", *late, faults=faults)
    strict.assert_outcomes(passed=12)
    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    strict.stdout.fnmatch_lines([line])


def test_a_check_that_fails_is_told_and_flags_nothing(project):
    faults = {4: {"counter_reset": {"after_s": 1.2}}}
    result = run_with(project, *ALWAYS, faults=faults)
    checks = project.report().anchors
    (unsure,) = (n for n, check in enumerate(checks) if check.verdict == "unsure")
    assert checks[unsure].error
    assert checks[unsure].time is None
    assert checks[unsure].items == checks[unsure + 1].items[:-1]
    assert flagged(project) == []
    result.stdout.fnmatch_lines(["1 of these checks could not be judged: *"])


def test_a_run_that_is_resumed_checks_its_anchor_first(project, inject):
    run_with(project, "-k", "1-700W or 2-700W or 3-700W").assert_outcomes(passed=5, deselected=7)
    assert project.report().anchors == ()
    inject(slower=SLOWER)
    run_with(project, "--gpuenergy-resume").assert_outcomes(passed=7, skipped=5)
    report = project.report()
    (check,) = report.anchors
    assert check.verdict == "drift"
    assert check.node_id == report.measurements[0].node_id
    assert len(check.items) == 4
    clean = [m.node_id for m in report.measurements if not m.validity]
    assert clean == [check.node_id]


def test_a_short_run_has_no_check_and_one_that_is_resumed_with_nothing_left(project):
    result = run_with(project)
    result.assert_outcomes(passed=12)
    assert project.report().anchors == ()
    assert "anchor" not in result.stdout.str()
    run_with(project, "--gpuenergy-resume").assert_outcomes(skipped=12)
    assert project.report().anchors == ()


def test_workers_have_an_anchor_each(project):
    two = ("-p", "xdist", "-n", "2", "--gpu-device", "emulated:h200x2")
    numbered(project, 6)
    result = project.run("--powercap", "700W", *two, *ALWAYS)
    result.assert_outcomes(passed=6)
    report = project.report()
    assert len({check.gpu_uuid for check in report.anchors}) == 2
    by_id = {m.node_id: m for m in report.measurements}
    for check in report.anchors:
        assert check.verdict == "good"
        assert {by_id[item].gpu_uuid for item in check.items} == {check.gpu_uuid}


def test_an_interrupted_run_makes_no_more_checks(project):
    numbered(project, after="if number == 3: raise KeyboardInterrupt")
    arguments = ("--powercap", "700W", "--gpuenergy-anchor", "3")
    assert project.run_apart(*arguments).ret == pytest.ExitCode.INTERRUPTED
    report = project.report()
    assert len(report.measurements) == 3
    assert all(report.measurements[2].node_id not in check.items for check in report.anchors)


def test_a_limit_that_somebody_has_set_is_left_alone_by_the_last_checks(project):
    numbered(project, 3, faults={3: {"limit_changed": {"power_w": 444, "after_s": 1.5}}})
    project.run("--powercap", "1,2", "--gpuenergy-anchor", "6")
    last = project.report().anchors[-1]
    assert last.verdict == "unsure"
    assert last.error is not None
    assert last.error.startswith("Somebody else has changed the power limit")
    assert project.limit_w() == 444
