"""The tutorial works as it is written: its files, commands, output and workflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/first-gate.md"
WHEEL = "wheels/pytest_gpuenergy-0.1.0-py3-none-any.whl"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PIP = f"""
pip() {{  # the package under test is installed already
  echo "pip $*" >&3
  if [[ $1 == wheel ]]; then mkdir -p wheels && touch {WHEEL}; fi
}}
python3() {{  # to install a pip of its own takes seconds, and is never used
  if [[ $* == '-m venv '* ]]; then set -- -m venv --without-pip "${{@:3}}"; fi
  command python3 "$@"
}}
"""


@dataclass(frozen=True)
class Command:
    """A command of the page with the output that is shown below it."""

    line: str
    shown: tuple[str, ...]

    def is_shown_by(self, output: str) -> bool:
        """Whether the shown lines are among those of ``output``, in this order."""
        lines = iter(output.splitlines())
        return all(any(_pattern(shown).fullmatch(line) for line in lines) for shown in self.shown)


def _pattern(shown: str) -> re.Pattern[str]:
    """A shown line with any numbers, any spacing, and anything for an ellipsis."""
    text = re.escape(" ".join(shown.split()))
    text = re.sub(r"\d+(\\\.\d+)*", r"[\\d.]+", text)
    text = text.replace(r"\.\.\.", ".*").replace(r"\ ", r"\s+")
    return re.compile(rf"\s*{text}\s*")


def _commands(text: str) -> Iterator[Command]:
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *shown = block.splitlines()
        yield Command(line, tuple(one for one in shown if one.strip() not in ("", "...")))


def _script(page: str) -> tuple[str, list[Command]]:
    """The page as a program for bash, which tells each command's exit code, and the commands."""
    lines, commands = [PIP], []
    for language, name, text in BLOCK.findall(page):
        if name:
            lines.append(f"mkdir -p {Path(name).parent}; cat > {name} <<'END'\n{text}END")
        elif language == "console":
            for command in _commands(text):
                lines.append(f"{command.line}\nprintf '\\n@@%d\\n' $?")
                commands.append(command)
    return "\n".join(lines), commands


def _run(script: str, folder: Path, programs: Path, **variables: str) -> str:
    """What bash prints, and what it writes to the third stream, at the end."""
    identity = {
        f"GIT_{who}_{what}": "somebody@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    path = os.pathsep.join(map(str, (programs, Path(sys.executable).parent, os.environ["PATH"])))
    done = subprocess.run(
        ["bash", "-c", f"exec 3> ../pip.txt\n{script}"],
        cwd=folder,
        env={**os.environ, "PATH": path, **identity, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.usefixtures("machine_apart")
def test_the_tutorial_works_as_it_is_written(tmp_path, warm_programs):
    page = PAGE.read_text(encoding="utf-8")
    script, commands = _script(page)
    (tmp_path / "pytest-gpuenergy").symlink_to(ROOT)
    home = tmp_path / "home"
    home.mkdir()
    output = _run(script, home, warm_programs)
    assert (tmp_path / "pip.txt").read_text().splitlines() == [
        "pip wheel --quiet --no-deps --wheel-dir wheels ../pytest-gpuenergy",
        f"pip install --quiet {WHEEL}",
    ]
    parts = re.split(r"\n@@(\d+)\n", output)
    for command, printed, code in zip(commands, parts[::2], parts[1::2], strict=False):
        fails = any("FAILED" in line for line in command.shown)
        assert (int(code) != 0) == fails, f"{command.line}\n{printed}"
        assert command.is_shown_by(printed), f"{command.line}\n{printed}"
    assert len(parts[1::2]) == len(commands) == page.count("\n$ ")

    project = home / "scale"
    workflow = yaml.safe_load((project / ".github/workflows/energy.yml").read_text())
    steps = [step["run"] for step in workflow["jobs"]["gate"]["steps"] if "run" in step]
    summary = tmp_path / "summary.md"
    script = "\n".join([PIP, "set -e", *steps])
    output = _run(script, project, warm_programs, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().startswith("# Passed: "), output
