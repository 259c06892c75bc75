"""The workflows: when they may run, and the steps of the GPU bench, run on the emulated GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_project import BENCH, INI, LINE, PARTS, SLOWER

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
BASELINE = "baseline.json"
SETTINGS = {
    "GPU_DEVICE": "emulated",
    "BENCH_ARGS": "test_scale.py --powercap 1",
    "BASELINE": BASELINE,
    "FAIL": "edp:2%",
    "AB_ARGS": "test_scale.py --powercap 1",
    "AB_FAIL": "edp:0.5%",
}
"""Variables that the workflow defines, as a small project would set them."""


def workflow(name: str) -> dict[str, Any]:
    document: dict[Any, Any] = yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))
    document["on"] = document.pop(True)  # YAML 1.1 takes the word for a boolean
    return document


GPU = workflow("gpu.yml")
JOB = GPU["jobs"]["bench"]
STEPS = {step["id"]: step for step in JOB["steps"] if "id" in step}


@dataclass
class Checkout:
    """A small project under version control, in which steps of the workflow are run."""

    path: Path
    programs: Path
    base: str = ""
    summary: Path = field(init=False)

    def __post_init__(self) -> None:
        self.summary = self.path.parent / "summary.md"

    @classmethod
    def new(cls, folder: Path, programs: Path) -> Checkout:
        """With its first revision, in a folder that is not there yet."""
        folder.mkdir()
        made = cls(folder, programs)
        made.git("init", "-q", "-b", "main")
        (folder / "pyproject.toml").write_text(INI)
        (folder / "test_scale.py").write_text(BENCH)
        made.commit(PARTS)
        return made

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=Somebody", "-c", "user.email=s@example.org", *arguments],
            cwd=self.path,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def commit(self, parts: str) -> None:
        """A revision whose kernel is that of ``parts``; the one before it becomes the base."""
        (self.path / "parts.py").write_text(parts)
        self.git("add", "-A")
        self.git("commit", "-qm", "A kernel")
        revisions = self.git("rev-list", "HEAD").splitlines()
        self.base = revisions[1] if len(revisions) > 1 else ""

    def run(self, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A step as the runner runs it; both outputs are in ``stdout``."""
        # An entry for each variable that the test sets, and none that the workflow has not.
        given = {**JOB["env"], **STEPS[name].get("env", {})}
        settings = {**SETTINGS, "EVENT_BASE": self.base, **variables}
        values = {key: settings.get(key, value) for key, value in given.items()}
        assert not [key for key, value in values.items() if "${{" in value]
        environment = {
            **os.environ,
            **values,
            "GITHUB_ACTIONS": "true",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "PATH": os.pathsep.join(
                map(str, (self.programs, Path(sys.executable).parent, os.environ["PATH"]))
            ),
        }
        # https://docs.github.com/actions/reference/workflow-syntax-for-github-actions, "shell"
        assert GPU["defaults"]["run"]["shell"] == "bash"
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def run_all(self, *leave_out: str) -> dict[str, subprocess.CompletedProcess[str]]:
        """The steps that have an id, in order; one that fails stops none of the later ones."""
        return {name: self.run(name) for name in STEPS if name not in leave_out}

    def keep_baseline(self) -> None:
        """Keep what was measured of this revision, as a maintainer would."""
        report = self.path / JOB["env"]["OUT"] / "report.json"
        shutil.copy(report, self.path / BASELINE)


@pytest.fixture
def checkout(
    tmp_path: Path,
    machine_apart: None,  # noqa: ARG001 -- locks of GPUs of its own
    warm_programs: Path,
) -> Checkout:
    return Checkout.new(tmp_path / "checkout", warm_programs)


@pytest.fixture(scope="module")
def first_measured(tmp_path_factory: pytest.TempPathFactory, warm_programs: Path) -> Checkout:
    """A checkout whose first revision was measured."""
    made = Checkout.new(tmp_path_factory.mktemp("measured") / "checkout", warm_programs)
    assert made.run("measure").returncode == 0
    return made


@pytest.fixture
def measured(
    first_measured: Checkout,
    tmp_path: Path,
    machine_apart: None,  # noqa: ARG001 -- as above
) -> Checkout:
    """A copy of that checkout."""
    copy = shutil.copytree(first_measured.path, tmp_path / "checkout", symlinks=True)
    return Checkout(copy, first_measured.programs)


def codes(done: dict[str, subprocess.CompletedProcess[str]]) -> dict[str, int]:
    return {name: one.returncode for name, one in done.items()}


@pytest.mark.slow
def test_a_regression_fails_gate_and_comparison_and_is_annotated(measured):
    checkout = measured
    checkout.keep_baseline()
    checkout.commit(PARTS.replace(LINE, SLOWER))
    done = checkout.run_all()
    assert codes(done) == {"measure": 0, "gate": 1, "ab": 1, "summary": 0, "restore": 0}
    for name in ("gate", "ab"):
        lines = [line for line in done[name].stdout.splitlines() if line.startswith("::")]
        assert len(lines) == 1
        assert re.match(r"::error title=scale-scale-200W::EDP \(emulated\) \+.*: WORSE$", lines[0])
    summary = checkout.summary.read_text()
    assert summary.count("\n# Failed: ") + summary.startswith("# Failed: ") == 2
    assert summary.count("**WORSE**") == 2
    assert "# NVIDIA H200 (emulated), run " in summary
    kept = {path.name for path in (checkout.path / JOB["env"]["OUT"]).iterdir()}
    tables = {"gate.json", "gate.md", "ab.json", "ab.md"}
    assert kept == {"report.json", "report.html", "junit.xml", "csv", *tables}


@pytest.mark.slow
@pytest.mark.thorough  # as are a push of documentation and a cap that is not taken
def test_a_change_of_nothing_passes(measured):
    checkout = measured
    checkout.keep_baseline()
    checkout.commit(PARTS.replace(LINE, f"{LINE}  // twice"))
    done = checkout.run_all()
    assert set(codes(done).values()) == {0}
    assert checkout.summary.read_text().startswith("# Passed: ")
    assert "::error" not in "".join(one.stdout for one in done.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "watts"), [("v100", 100), pytest.param("a100", 450, marks=pytest.mark.thorough)]
)
def test_a_cap_of_the_table_that_the_board_does_not_take_fails_nothing(checkout, gpu, watts):
    assert "--powercap all" in JOB["env"]["BENCH_ARGS"]  # as here
    variables = {"GPU_DEVICE": f"emulated:{gpu}", "BENCH_ARGS": "test_scale.py --powercap all -rs"}
    done = checkout.run("measure", **variables)
    assert done.returncode == 0, done.stdout
    assert f"Power cap {watts}W is skipped: {watts} W is outside this card's" in done.stdout
    report = checkout.path / JOB["env"]["OUT"] / "report.json"
    shutil.copy(report, checkout.path / BASELINE)
    assert checkout.run("gate", **variables).returncode == 0


@pytest.mark.parametrize(
    ("reported", "capabilities", "extra"),
    [("13.0", "9.0", "cuda13"), ("13.0", "7.0\n8.0", "cuda12"), ("12.4", "8.0", "cuda12")],
)
def test_cupy_is_installed_for_the_oldest_gpu(tmp_path, reported, capabilities, extra):
    (script,) = (step["run"] for step in JOB["steps"] if step.get("name") == "Install")
    words = (
        f"case $* in *compute_cap*) printf '{capabilities}\\n';; "
        f"*) echo 'CUDA Version: {reported}';; esac"
    )
    tools = {
        "nvidia-smi": words,
        "python3": "mkdir -p .venv/bin; printf '#!/bin/sh\\necho $*\\n' > .venv/bin/pip; "
        "chmod +x .venv/bin/pip",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GITHUB_PATH": str(tmp_path / "path"),
    }
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith(f"[test,{extra}]")


@pytest.mark.slow
def test_a_push_of_documentation_only_passes(checkout):
    (checkout.path / "README.md").write_text("A page.")
    checkout.commit(PARTS)
    checkout.path.joinpath(JOB["env"]["OUT"]).mkdir()
    done = checkout.run("ab")
    assert done.returncode == 0
    assert "::error" not in done.stdout
    assert "1 unchanged: passed" in (checkout.path / JOB["env"]["OUT"] / "ab.md").read_text()


@pytest.mark.slow
def test_without_a_baseline_the_gate_says_so_and_passes(measured):
    gate = measured.run("gate")
    assert gate.returncode == 0
    assert gate.stdout.startswith(f"::warning title=gate::There is no baseline {BASELINE}")
    assert measured.run("summary").returncode == 0


@pytest.mark.slow
def test_a_wrong_kernel_fails_and_is_in_the_summary(measured):
    checkout = measured
    checkout.keep_baseline()
    checkout.commit(PARTS.replace(LINE, "  y[i] = 3 * x[i];"))
    done = checkout.run_all("ab")
    assert codes(done) == {"measure": 1, "gate": 1, "summary": 0, "restore": 0}
    assert "no longer measured: scale-scale-200W" in checkout.summary.read_text()


@pytest.mark.parametrize("event_base", ["0" * 40, ""], ids=["a new branch", "no week of history"])
def test_without_a_base_there_is_nothing_to_compare(checkout, event_base):
    done = checkout.run("ab", EVENT_BASE=event_base)
    assert done.returncode == 0
    assert "::warning title=ab::There is no commit" in done.stdout


@pytest.mark.parametrize(
    ("head", "base", "code"),
    [
        ("a" * 40, "b" * 40, 0),
        ("a" * 40, "main", 1),
        ("HEAD", "b" * 40, 1),
        ("a" * 39, "b" * 40, 1),
        ("a" * 40 + "\n; true", "b" * 40, 1),
    ],
)
def test_only_full_hashes_are_dispatched(head, base, code):
    script = JOB["steps"][0]["run"]
    environment = {**os.environ, "HEAD": head, "BASE": base}
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], env=environment, check=False)
    assert done.returncode == code


def test_gpus_are_for_main_the_clock_and_approved_dispatches_only():
    assert set(GPU["on"]) == {"push", "schedule", "workflow_dispatch"}
    assert GPU["on"]["push"] == {"branches": ["main"]}
    assert "github.ref == 'refs/heads/main'" in JOB["if"]
    assert "workflow_dispatch' && 'gpu-dispatch'" in JOB["environment"]
    assert JOB["concurrency"] == {"group": "gpu-${{ matrix.gpu }}", "cancel-in-progress": False}


def test_the_power_limit_is_put_back_last_whatever_happens():
    last = JOB["steps"][-1]
    assert (last["id"], last["if"]) == ("restore", "always()")


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_may_read_and_no_more(path):
    document = workflow(path.name)
    assert document["permissions"] == {"contents": "read"}
    for job in document["jobs"].values():
        assert "permissions" not in job
        assert "timeout-minutes" in job
        for step in job["steps"]:
            # What somebody else has written reaches a shell as a variable, never as its text.
            assert "${{" not in step.get("run", "")
            if "uses" in step:  # a tag can be moved, a commit cannot
                assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_every_python_of_the_package_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    job = workflow("tests.yml")["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == supported
    assert "bash .ci/run" in [step.get("run") for step in job["steps"]]
