"""Whatever signals a command gets: the power limit is back, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from points import MORE
from processes import KILLED_UNDER_A_CAP, has_ended, said_through
from small_project import INI, LINE, PARTS, SLOWER

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.opening import open_device

HANGS = """
import os, signal
from pathlib import Path
from parts import LAUNCH, SCALE, SOURCE

def test_scale(powercap, load_kernel, energy_benchmark):
    Path(os.environ["READY"]).write_text(str(os.getpid()))
    while True:
        signal.pause()
"""
PATIENCE_S = 120.0
INTERRUPTED = 130


@dataclass
class Interrupted:
    """A command that was interrupted while a test of it, under 200 W, would have gone on for ever.

    Attributes:
        code: its exit code.
        pids: of the command and of the pytest that it had started.
        scratch: where temporary files go.
    """

    code: int
    pids: tuple[int, int]
    scratch: Path

    @property
    def left(self) -> list[Path]:
        """Temporary folders of both processes, on disk and in shared memory."""
        places = (self.scratch, Path("/dev/shm"))
        return [
            path
            for place in places
            for pid in self.pids
            for path in place.glob(f"gpuenergy-{pid}-*")
        ]


def limit_w() -> float:
    with open_device("emulated") as device:
        return float(device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle)) / 1e3


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def repository(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine_apart: None,  # noqa: ARG001
) -> Path:
    """A repository of two commits whose kernel differs, with a bench that hangs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    git("init", "-q", "-b", "main")
    (folder / "pyproject.toml").write_text(INI)
    (folder / "parts.py").write_text(PARTS)
    (folder / "test_scale.py").write_text(HANGS)
    git("add", "-A")
    git("commit", "-qm", "One")
    (folder / "parts.py").write_text(PARTS.replace(LINE, SLOWER))
    git("commit", "-qam", "Another")
    return folder


def interrupt(folder: Path, numbers: tuple[signal.Signals, ...]) -> Interrupted:
    ready = folder.parent / "ready"
    os.mkfifo(ready)
    command = [sys.executable, "-m", "pytest_gpuenergy.cli", "ab", "HEAD~1", "HEAD"]
    process = subprocess.Popen(
        [*command, "--powercap", "1"],
        cwd=folder,
        env={**os.environ, "READY": str(ready)},
        stderr=subprocess.DEVNULL,
    )
    try:
        child = int(said_through(ready))  # waits until the test has begun
        for number in numbers:
            process.send_signal(number)
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert has_ended(child, PATIENCE_S)
    return Interrupted(code, (process.pid, child), Path(os.environ["TMPDIR"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT,),
        MORE((signal.SIGTERM,)),
        MORE((signal.SIGHUP,)),
        MORE((signal.SIGINT, signal.SIGTERM)),
        MORE((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
    ],
    ids=lambda numbers: "-".join(number.name for number in numbers),
)
def test_an_interrupted_comparison_leaves_nothing(repository, numbers):
    ended = interrupt(repository, numbers)
    assert ended.code == INTERRUPTED
    assert limit_w() == 700
    assert len(git("worktree", "list").splitlines()) == 1
    assert not ended.left


@pytest.mark.slow
def test_the_next_command_removes_what_a_killed_one_has_left(repository):
    ended = interrupt(repository, (signal.SIGKILL,))
    assert ended.code == -signal.SIGKILL
    assert ended.left
    assert main(["report", "no-such-run"]) == 2
    assert limit_w() == 700
    assert len(git("worktree", "list").splitlines()) == 1
    assert not ended.left


@pytest.mark.slow
@pytest.mark.usefixtures("machine_apart")
def test_the_next_command_puts_back_the_limit_of_a_killed_run(capsys):
    subprocess.run([sys.executable, "-c", KILLED_UNDER_A_CAP], check=False)
    assert limit_w() == 200
    assert main(["report", "no-such-run"]) == 2
    assert limit_w() == 700
    assert "is back at 700 W" in capsys.readouterr().err
