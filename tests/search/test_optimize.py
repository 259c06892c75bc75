"""`gpuenergy optimize` as a user calls it, on the emulated GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_outcomes import ended
from kernel_specs import (
    BUDGET,
    SCALE,
    SOURCE,
    Searched,
    launch_with,
    optimize,
    spec_with,
    state_of,
    write,
)
from move_checks import move_named
from msgspec.structs import replace

from pytest_gpuenergy.ab import Turns
from pytest_gpuenergy.cli import main
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import SEEDS
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Interval, Metric
from pytest_gpuenergy.search import Result, SearchBench, State, VariantGain, read_spec
from pytest_gpuenergy.search.running import confirmation
from pytest_gpuenergy.support import KernelFault

Capsys = pytest.CaptureFixture[str]

KERNELS = Path(__file__).parents[2] / "bench/search/kernels"
SCHEMA = Path(__file__).parents[2] / "docs/reference/kernel-spec.schema.json"

TRITON = {
    "name": "triton",
    "language": "triton",
    "launch": {"grid": ["ceil_div(N, ITEMS)"], "constants": {"ITEMS": 256}},
    "source": "import triton\n\n@triton.jit\ndef scale(x, y, by, n, ITEMS):\n    pass\n",
}


def only_blocks(source: str) -> dict[str, Any]:
    """Return a spec of which only the block size can be changed."""
    launch = launch_with(constants={}, grid=["ceil_div(N, block_x * 4)"])
    return spec_with(source=source.replace("ITEMS", "4"), launch=launch)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write(tmp_path)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Return a search with settings of its own, under a limit, that prints its state."""
    folder = tmp_path_factory.mktemp("tuned")
    words = ["--search-param", "PUCT_C=1.5", "--search-param", "virtual_loss=2", "--json"]
    words += ["--min-pred-gain", "0.1", "--ncu-every", "0", "--budget-builds", "1"]
    words += ["--powercap", "200W", "--smclock", "1500MHz"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(EmulatedDevice, "listings", lambda *_: {"ptx": ".entry scale"})
        assert optimize(write(folder), folder / "out", "--objective", "edp", *words) == 0
    return Searched(folder / "out", printed.getvalue())


@pytest.fixture
def not_compared(finished: Path) -> Path:
    """Return a copy of that search whose best variant is still to be compared."""
    [made] = finished.glob("kernels/_scale/variants/*/comparison.json")
    made.unlink()
    return finished


@pytest.mark.slow
class TestOutcome:
    def test_a_better_variant_is_verified_compared_and_linked(self, searched):
        state = state_of(searched.out)
        folder = searched.out / "kernels/_scale"
        assert state["finished"]
        assert state["builds"] == BUDGET
        assert state["incumbent"] != state["nodes"][0]["id"]
        gain = state["gains"][-1]
        assert gain["accepted"]
        assert gain["id"] == state["incumbent"]
        assert gain["ratio_intervals"]["edp"]["high"] < 1
        assert not (folder / "best").readlink().is_absolute()
        assert (folder / "best").resolve() == folder / "variants" / state["incumbent"]
        assert "(emulated)" in searched.printed

    def test_each_variant_has_its_files(self, searched):
        folder = searched.out / "kernels/_scale"
        common = {
            *("run.json", "result.json", "control.json", "kernel.cu", "stdout.log", "stderr.log"),
        }
        assert {path.name for path in (folder / "baseline").iterdir()} == common
        variants = list((folder / "variants").iterdir())
        assert len(variants) == BUDGET
        for variant in variants:
            names = {path.name for path in variant.iterdir()} - {"comparison.json"}
            assert names == common | {"candidate.diff"}
            assert "\n+++ b/" in (variant / "candidate.diff").read_text()
        trace = (folder / "trace.md").read_text()
        assert "minimizing EDP" in trace
        for step in ("propose", "confirm", "evaluate: compile", "evaluate: verify sizes[1]"):
            assert f"| {step} |" in trace

    def test_what_the_compiler_lists_is_kept(self, tuned):
        path = tuned.out / "kernels/_scale/baseline/kernel.ptx"
        assert path.read_text() == ".entry scale"

    def test_every_variant_is_verified_on_all_sizes_with_seeds_that_nobody_knows(self, searched):
        results = [
            json.loads(path.read_text())
            for path in (searched.out / "kernels/_scale/variants").glob("*/result.json")
        ]
        assert len(results) == BUDGET
        found = [one["correctness"] for one in results]
        others = {f"scale-N{one['other_sizes']['N']}" for one in results}
        assert len(others) == 1
        assert all(set(one) == {"scale-N4000", "scale-N501", *others} for one in found)
        seeds = {seed for one in found for case in one.values() for seed in case["seeds"]}
        assert len(seeds) == 9  # three for each set of sizes, the same for all variants
        assert seeds.isdisjoint(SEEDS)

    @pytest.mark.thorough
    def test_what_ran_before_changes_nothing(self, tmp_path, monkeypatch, give_toolchain):
        settings = ("--objective", "edp", "--seed", "3", "--budget-builds", "1")
        states = []
        for name, before in (("one", ["--seed", "4"]), ("other", [])):
            cache = tmp_path / f"cache-{name}"
            (cache / "emulated/host").mkdir(parents=True)
            give_toolchain(cache / "emulated/host")
            monkeypatch.setenv("GPUENERGY_CACHE", str(cache))
            if before:
                assert optimize(KERNELS / "histogram.json", tmp_path / "before", *before) == 0
            assert optimize(KERNELS / "histogram.json", tmp_path / name, *settings) == 0
            states.append(state_of(tmp_path / name, "histogram"))
        assert states[0] == states[1]

    @pytest.mark.thorough
    def test_another_seed_gives_another_order(self, spec, tmp_path):
        orders = []
        noise = ("--search-param", "ROOT_NOISE_EPS=1", "--search-param", "PUCT_C=10")
        for seed in ("1", "2"):
            assert optimize(spec, tmp_path / seed, "--seed", seed, *noise) == 0
            orders.append([node["id"] for node in state_of(tmp_path / seed)["nodes"]])
        assert orders[0] != orders[1]

    def test_parameters_of_the_search_are_recorded(self, tuned):
        found = state_of(tuned.out)["identity"]["strategy"]
        assert (found["puct_c"], found["virtual_loss"]) == (1.5, 2)
        assert (found["min_pred_gain"], found["ncu_every"]) == (0.1, 0)
        assert found["best_share"] == 0.9

    def test_the_graph_is_part_of_the_state(self, searched):
        state = state_of(searched.out)
        nodes = state["graph"]["nodes"]
        assert list(nodes) == [node["id"] for node in state["nodes"]]
        assert [node["cost"] for node in nodes.values()] == [
            node["cost"] for node in state["nodes"]
        ]
        root = next(iter(nodes.values()))
        assert root["visits"] == 1 + BUDGET
        assert root["best"] == max(node["own"] for node in nodes.values())
        assert sum(edge["visits"] for edge in root["edges"]) == BUDGET
        assert all(edge["gain"] >= 0 for edge in root["edges"])

    def test_a_power_limit_and_a_clock_hold_during_the_search(self, tuned):
        identity = state_of(tuned.out)["identity"]
        assert (identity["power_limit_w"], identity["sm_clock_mhz"]) == (200, 1500)

    def test_json_is_the_state(self, tuned):
        [printed] = json.loads(tuned.printed)
        assert printed.pop("kernel") == "scale"
        assert printed == state_of(tuned.out)

    @pytest.mark.thorough
    @pytest.mark.parametrize(("name", "builds"), [("softmax", "12"), ("histogram", "8")])
    def test_a_shipped_kernel_is_improved(self, name, builds, tmp_path):
        out = tmp_path / "out"
        options = ("--objective", "edp", "--budget-builds", builds)
        assert optimize(KERNELS / f"{name}.json", out, *options) == 0
        state = state_of(out, name)
        assert state["gains"][-1]["accepted"]
        assert all(node["outcome"] == "correct" for node in state["nodes"])

    def test_a_folder_of_specs_is_searched_kernel_by_kernel(self, tmp_path, capsys):
        write(tmp_path, spec_with(name="broken", source=SOURCE.replace("by * x", "by + x")))
        write(tmp_path)
        assert optimize(tmp_path, tmp_path / "out", "--budget-builds", "0") == 2
        error = capsys.readouterr().err
        assert "broken: not searched: The baseline of broken cannot be used (correctness)" in error
        assert "; fix the kernel or its reference, or state a tolerance in the spec" in error
        assert "1 of 2 kernels could not be searched" in error
        assert state_of(tmp_path / "out")["finished"]


@pytest.mark.slow
class TestProof:
    def test_a_variant_that_is_wrong_on_the_second_sizes_is_refused(self, tmp_path):
        wrong = SOURCE.replace("by * x[i]", "(n < 2000 && blockDim.x > 32) ? 0.0f : by * x[i]")
        path = write(tmp_path, only_blocks(wrong))
        assert optimize(path, tmp_path / "out", "--budget-builds", "1") == 0
        first, wide = state_of(tmp_path / "out")["nodes"]
        assert first["outcome"] == "correct"
        assert (wide["outcome"], wide["cost"]) == ("correctness", None)
        folder = tmp_path / "out/kernels/_scale/variants" / wide["id"]
        found = json.loads((folder / "result.json").read_text())
        assert list(found["correctness"]) == ["scale-N4000"]

    @pytest.mark.parametrize("most", [1, 3])
    def test_what_is_not_certainly_better_is_not_kept(
        self, spec, not_compared, most, monkeypatch, capsys
    ):
        def compare(
            _: SearchBench, state: State, *, candidates: int, is_stopped: Callable[[], bool]
        ) -> VariantGain:
            about_1 = {Metric.TIME: Interval(0.9, 1.1)}
            assert not is_stopped()
            found = VariantGain(id=state.id, accepted=False, rounds=6, candidates=candidates)
            return replace(found, ratios={Metric.TIME: 1.0}, ratio_intervals=about_1)

        monkeypatch.setattr(confirmation, "compare", compare)
        monkeypatch.setattr(confirmation, "CONFIRMED", most)
        assert optimize(spec, not_compared, "--objective", "edp", "--resume") == 0
        state = state_of(not_compared)
        baseline, *variants = state["nodes"]
        better = sorted(
            (node for node in variants if node["cost"] < baseline["cost"]),
            key=lambda node: node["cost"],
        )
        assert len(better) == BUDGET
        assert [gain["id"] for gain in state["gains"]] == [node["id"] for node in better[:most]]
        assert state["incumbent"] == baseline["id"]
        folder = not_compared / "kernels/_scale"
        assert (folder / "best").readlink() == Path("baseline")
        printed = capsys.readouterr().out
        assert "time x1.000 [0.900, 1.100]: not certainly better" in printed
        assert "the baseline remains the best" in printed
        trace = (folder / "trace.md").read_text()
        assert "not certainly better, and therefore not kept" in trace
        assert "Best: the baseline." in trace

    def test_what_fails_when_it_is_compared_is_not_kept(
        self, spec, not_compared, monkeypatch, capsys
    ):
        monkeypatch.setattr(
            confirmation, "take_turns", lambda *_, **__: Turns(problem="Wrong after 9 launches.")
        )
        assert optimize(spec, not_compared, "--objective", "edp", "--resume") == 0
        state = state_of(not_compared)
        assert state["incumbent"] == state["nodes"][0]["id"]
        assert "Wrong after 9 launches." in capsys.readouterr().out
        trace = (not_compared / "kernels/_scale/trace.md").read_text()
        assert "Wrong after 9 launches." in trace

    def test_what_is_faster_than_the_peaks_allow_is_refused(self, tmp_path, capsys):
        path = write(tmp_path, spec_with(bytes_moved="1000000000 * N"))
        assert optimize(path, tmp_path / "out") == 2
        assert "at the peaks of NVIDIA H200: it leaves work out" in capsys.readouterr().err

    def test_what_cannot_gain_enough_is_left_alone(self, tmp_path):
        path = write(tmp_path)
        assert optimize(path, tmp_path / "out", "--min-pred-gain", "1") == 0
        state = state_of(tmp_path / "out")
        assert state["builds"] == 0
        assert state["incumbent"] == state["nodes"][0]["id"]
        folder = tmp_path / "out/kernels/_scale"
        assert (folder / "best").resolve() == folder / "baseline"

    def test_the_baseline_itself_can_be_the_reference(self, tmp_path):
        path = write(tmp_path, spec_with(reference=None))
        words = ("--objective", "edp", "--budget-builds", "1")
        assert optimize(path, tmp_path / "out", *words) == 0
        state = state_of(tmp_path / "out")
        assert state["gains"][-1]["accepted"]
        assert all(node["outcome"] == "correct" for node in state["nodes"])

    @pytest.mark.parametrize("others", [False, True])
    def test_the_baselines_outputs_are_in_no_process_of_a_variant(
        self, others, tmp_path, monkeypatch
    ):
        path = write(tmp_path, spec_with(reference=None, other_sizes=others))
        spec = read_spec(path)
        runs: list[str] = []
        for name in ("load", "repeat"):
            real = getattr(EmulatedDevice, name)

            def run(device: Any, job: Any, arenas: Any, real: Any = real) -> Any:
                runs.append(job.kernel.origin.details["state"])
                return real(device, job, arenas)

            monkeypatch.setattr(EmulatedDevice, name, run)
        monkeypatch.setattr(EmulatedDevice, "renew", lambda *_: runs.append("another process"))
        state = next(iter(move_named("change_block_sizes").applications(spec.baseline, spec))).state
        with open_device("emulated") as device:
            assert SearchBench(spec, device, Metric.EDP).evaluate(state).outcome == "correct"
        processes = ",".join(runs).split("another process")
        assert [spec.baseline.id in one for one in processes[-2:]] == [True, False]
        assert [one for one in processes if state.id in one] == processes[-1:]

    def test_a_baseline_that_fails_later_is_not_blamed_on_a_variant(
        self, tmp_path, monkeypatch, capsys
    ):
        path = write(tmp_path, spec_with(reference=None))
        assert optimize(path, tmp_path / "out", "--budget-builds", "0") == 0

        def failing(*_: object) -> None:
            raise KernelFault("runtime", "It crashed.")

        monkeypatch.setattr(EmulatedDevice, "run_once", failing)
        assert optimize(path, tmp_path / "out", "--resume") == 1
        assert "was correct and fails now: It crashed." in capsys.readouterr().err
        assert len(state_of(tmp_path / "out")["nodes"]) == 1

    def test_a_variant_that_differs_from_the_baseline_is_refused(self, tmp_path):
        wrong = SOURCE.replace("by * x[i]", "blockDim.x > 32 ? x[i] : by * x[i]")
        path = write(tmp_path, {**only_blocks(wrong), "reference": {}})
        assert optimize(path, tmp_path / "out", "--budget-builds", "1") == 0
        outcomes = [node["outcome"] for node in state_of(tmp_path / "out")["nodes"]]
        assert outcomes == ["correct", "correctness"]


@pytest.mark.slow
class TestWorker:
    def test_a_variant_is_evaluated_alone(self, finished):
        for folder in (finished / "kernels/_scale/variants").iterdir():
            assert main(["optimize", "--worker", str(folder / "control.json")]) == 0
            found = json.loads((folder / "runner_result.json").read_text())
            before = json.loads((folder / "result.json").read_text())
            assert found | {"steps_s": {}} == before | {"steps_s": {}}

    def test_one_that_is_wrong_fails(self, finished, capsys):
        path = finished / "kernels/_scale/baseline/control.json"
        control = json.loads(path.read_text())
        control["state"]["source"] = SOURCE.replace("by * x", "by + x")
        path.write_text(json.dumps(control))
        capsys.readouterr()
        assert main(["optimize", "--worker", str(path), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["outcome"] == "correctness"

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("{}", "its schema_version is None"),
            ('{"schema_version": 1}', "required field|is missing"),
            ("nonsense", "is not complete JSON"),
        ],
    )
    def test_a_damaged_control_file_is_told_in_one_sentence(self, tmp_path, content, said, capsys):
        path = tmp_path / "control.json"
        path.write_text(content)
        assert main(["optimize", "--worker", str(path)]) == 2
        error = capsys.readouterr().err
        assert any(one in error for one in said.split("|"))


class TestUsage:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "Name a kernel spec, or a folder of them"),
            (["a.json", "--input", "b.json"], "Name the kernel spec once"),
            (["SPEC", "--gpus", "emulated:h200,GPU-none"], "--gpu-device GPU-none"),
            (["SPEC", "--gpus", "emulated,emulated:h200"], "twice: name each GPU once"),
            (["SPEC", "--gpus", "emulated:h200,emulated:a100"], "cannot be compared: name GPUs"),
            (["SPEC", "--gpus", "emulated,"], "'emulated,' has an empty name"),
            (["SPEC", "--gpus", "emulated:nonsense"], "nonsense"),
            (["SPEC", "--gpus", "emulated", "--powercap", "all"], "a single power limit"),
            (["SPEC", "--gpus", "emulated", "--smclock", "all"], "at a single clock; give one"),
            (["SPEC", "--budget-builds", "-1"], "'-1' is not a number from 0"),
            (["SPEC", "--min-pred-gain", "2"], "'2' is not a number from 0"),
            (["SPEC", "--ncu-every", "-1"], "'-1' is not a number from 0"),
            (["SPEC", "--search-param", "PUCT_C"], "'PUCT_C' is not NAME=NUMBER"),
            (["SPEC", "--search-param", "PUCT=1"], "There is no search parameter 'puct'"),
            (["SPEC", "--search-param", "PUCT_C=x"], "PUCT_C needs a number from 0 to 100"),
            (
                ["SPEC", "--ncu-every", "3", "--search-param", "ncu_every=1"],
                "NCU_EVERY is given twice",
            ),
            (["nowhere.json"], "cannot be read: No such file"),
            (["EMPTY"], "has no kernel specs"),
        ],
    )
    def test_what_cannot_be_done_is_told(self, spec, tmp_path, words, said, capsys):
        (tmp_path / "empty").mkdir()
        places = {"SPEC": str(spec), "EMPTY": str(tmp_path / "empty")}
        words = [places.get(word, word) for word in words]
        assert main(["optimize", *words, "--outdir", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err

    def test_an_outdir_that_is_a_file_is_told(self, spec, capsys):
        assert optimize(spec, spec) == 1
        assert "(Not a directory): name another folder." in capsys.readouterr().err

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"source": SOURCE.replace("float by", "flaot by")}, "(compile)"),
            ({"source": SOURCE.replace("by * x", "by - x")}, "(correctness)"),
            ({"reference": {"y": "by * x[:7]"}}, "The reference of y has the shape (7,)"),
            ({"reference": {"y": "np.nonsense(x)"}}, "The reference of y fails (AttributeError"),
            ({"launch": launch_with(shared_bytes=1 << 20)}, "(constraints)"),
            (
                {"source": SOURCE.replace("const float* x", "const double* x")},
                "Its parameter x is a pointer to double, but it gets tensor x, which is float32.",
            ),
            (
                {"arguments": ["x", "y", "by", ["n"]]},
                "Its parameter n is int, but it gets the struct {n}.",
            ),
        ],
    )
    def test_a_baseline_that_cannot_be_used_is_told_in_one_sentence(
        self, tmp_path, fields, said, capsys
    ):
        path = write(tmp_path, spec_with(**fields))
        assert optimize(path, tmp_path / "out") == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("error:") == 1

    def test_triton_needs_a_real_gpu(self, tmp_path, capsys):
        path = write(tmp_path, spec_with(**TRITON))
        assert optimize(path, tmp_path / "out") == 2
        assert "the emulated one runs CUDA text only" in capsys.readouterr().err
        assert optimize(tmp_path, tmp_path / "out") == 2
        assert "NVIDIA H200 can run none of the 1 kernels" in capsys.readouterr().err

    @pytest.mark.slow
    def test_in_a_folder_what_this_gpu_cannot_run_is_skipped(self, tmp_path, capsys):
        write(tmp_path)
        write(tmp_path, spec_with(**TRITON))
        assert optimize(tmp_path, tmp_path / "out", "--budget-builds", "0") == 0
        error = capsys.readouterr().err
        assert "triton: skipped: scale needs a real GPU: the emulated one runs CUDA" in error
        assert state_of(tmp_path / "out")["finished"]
        assert not (tmp_path / "out/kernels/_triton").exists()

    def test_a_compile_cache_that_is_a_file_is_told_in_one_sentence(
        self, spec, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.setenv("COMPILE_CACHE_DIR", str(spec))
        assert optimize(spec, tmp_path / "out") == 2
        error = capsys.readouterr().err
        assert error.count("error:") == 1
        assert "set COMPILE_CACHE_DIR to a folder" in error

    @pytest.mark.slow
    def test_kernels_are_compiled_into_the_folder_for_that(
        self, spec, tmp_path, monkeypatch, give_toolchain
    ):
        place = tmp_path / "compiled/emulated/host"
        place.mkdir(parents=True)
        give_toolchain(place)
        monkeypatch.setenv("COMPILE_CACHE_DIR", str(tmp_path / "compiled"))
        assert optimize(spec, tmp_path / "out", "--budget-builds", "0") == 0
        assert list(place.glob("*-checked"))

    @pytest.mark.slow
    def test_two_searches_of_a_kernel_do_not_mix(self, spec, tmp_path, monkeypatch, capsys):
        codes: list[int] = []
        real = SearchBench.evaluate

        def evaluate(bench: SearchBench, state: State, *limit: Any) -> Result:
            if not codes:
                codes.append(optimize(spec, tmp_path / "out", "--gpus", "emulated:a100"))
                assert "Another process is searching in" in capsys.readouterr().err
            return real(bench, state, *limit)

        monkeypatch.setattr(SearchBench, "evaluate", evaluate)
        assert optimize(spec, tmp_path / "out", "--budget-builds", "0") == 0
        assert codes == [2]

    def test_the_schema_is_the_published_one(self, tmp_path):
        path = tmp_path / "schema.json"
        assert main(["optimize", "--schema", str(path)]) == 0
        assert path.read_text() == SCHEMA.read_text(), f"gpuenergy optimize --schema {SCHEMA}"
        assert ended(0, "optimize", "--schema", "-").out == path.read_text()
        validator = jsonschema.Draft202012Validator(json.loads(path.read_text()))
        for shipped in KERNELS.glob("*.json"):
            validator.validate(json.loads(shipped.read_text()))
        validator.validate(SCALE)
        assert not validator.is_valid(spec_with(source=None))
        assert not validator.is_valid(spec_with(nonsense=1))
