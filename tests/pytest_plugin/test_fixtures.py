"""The fixtures for a project's own benches."""

from __future__ import annotations

import os

ONE = ("--powercap", "450W")


def test_a_right_kernel_is_measured_and_recorded(project):
    project.bench(
        after="""
    assert m.outcome == "correct" and m.measured
    assert m.kernel.digest == load_kernel(SOURCE, **LAUNCH).digest
    assert abs(m.energy_mj - m.power_w * m.time_ms) < 0.02 * m.energy_mj
    assert abs(m.edp_mj_ms - m.energy_mj * m.time_ms) < 0.02 * m.edp_mj_ms
    assert m.correctness.seeds[:2] == (0, 1)"""
    )
    project.run(*ONE).assert_outcomes(passed=1)
    (measurement,) = project.stored().measurements
    assert measurement.node_id == "test_scale.py::test_scale[450W]"
    assert (measurement.cap, measurement.cap_index) == ("450W", 3)
    assert measurement.power_limit_w == measurement.enforced_power_limit_w == 450


def test_a_wrong_kernel_fails_with_size_and_place_and_has_no_figures(project):
    project.bench('SOURCE.replace("factor *", "(i == 77 ? 0 : factor) *")')
    result = project.run(*ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "correctness: 1 of 1024 elements of y (first y[[]77]) is wrong (seed 0); the worst is "
            "y[[]77] = * instead of *, off by * of the largest value (bound *)."
        ]
    )
    assert "mJ·ms" not in result.stdout.str().partition("= gpuenergy =")[0]
    (measurement,) = project.report().measurements
    assert measurement.outcome == "correctness"
    assert measurement.energy_mj is measurement.time_ms is measurement.edp_mj_ms is None
    assert measurement.power_w is measurement.gflops is None
    assert not measurement.trials


def test_a_kernel_that_does_not_compile_fails_with_the_line(project):
    project.bench('SOURCE.replace("factor *", "nonsense *")')
    result = project.run(*ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["compile: line 4: *nonsense*"])
    assert [m.outcome for m in project.report().measurements] == ["compile"]


def test_a_second_measurement_in_one_item_is_refused_and_the_first_is_kept(project):
    project.bench(after="energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)")
    result = project.run(*ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "test_*.py:*: energy_benchmark was already used in test_scale.py::test_scale[[]450W]: "
            "parametrize the test, so that each measurement is an item of its own."
        ]
    )
    for report in (project.stored(), project.report()):
        assert [(m.kernel.label, m.measured) for m in report.measurements] == [("scale", True)]


def test_an_item_that_is_run_again_measures_again(project):
    project.module(
        """
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            for _ in range(2):
                item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
                runtestprotocol(item, nextitem=nextitem)
            return True
        """,
        name="conftest",
    )
    project.run(*ONE).assert_outcomes(passed=2)
    assert len(project.report().measurements) == 1


def test_a_callable_is_skipped_on_the_emulated_gpu(project):
    project.module(
        """
        def test_callable(powercap, energy_benchmark):
            energy_benchmark(lambda: None)
        """
    )
    result = project.run("-rs", *ONE)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED * a callable needs a real GPU: the emulated one runs CUDA text only"]
    )


def test_without_a_cap_the_card_is_left_as_it_is_also_between_capped_items(project):
    project.bench(
        head="def test_capped(powercap): pass",
        arguments="",
        after='assert (m.cap, m.power_limit_w, m.enforced_power_limit_w) == ("current", None, 700)',
    )
    project.run("--powercap", "1").assert_outcomes(passed=2)


def test_the_gpu_fixture_is_the_device(project):
    project.module(
        """
        def test_device(gpu):
            assert gpu.emulated
            assert gpu.name == "NVIDIA H200"
            assert gpu.uuid.startswith("GPU-")
        """
    )
    project.run().assert_outcomes(passed=1)


def test_a_kernel_is_loaded_from_a_path_relative_to_the_test(project, monkeypatch):
    (project.path / "test_scale.py").unlink()
    bench = project.pytester.mkdir("bench")
    source = 'extern "C" __global__ void f(float* y) {}'
    (bench / "kernels").mkdir()
    (bench / "kernels" / "f.cu").write_text(source)
    (bench / "test_file.py").write_text(
        f"""
from pathlib import Path

def test_text_and_path(load_kernel):
    texts = ("kernels/f.cu", Path("kernels/f.cu"), Path(__file__).parent / "kernels/f.cu")
    launch = dict(entry="f", grid=1, block=32, arguments=("y",))
    first, *others = (load_kernel(text, **launch) for text in (*texts, {source!r}))
    assert others == [first] * 3
    assert first.origin.kind == "file"
"""
    )
    monkeypatch.chdir("/")
    project.run(f"--rootdir={project.path}", os.fspath(bench)).assert_outcomes(passed=1)


def test_a_gpu_that_fails_while_measuring_fails_the_item_in_one_sentence(project, inject):
    inject(launch="gpu_is_lost")
    result = project.run(*ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["runtime: The launch failed on the emulated GPU: *"])


def test_a_counter_that_stands_still_gives_no_figures(project, inject):
    inject(counter_stuck=True)
    result = project.run(*ONE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["not measured: The energy counter of NVIDIA H200 has not moved for *"]
    )
    (measurement,) = project.report().measurements
    assert measurement.energy_mj is None
    assert measurement.validity == ("counter_stale",)
