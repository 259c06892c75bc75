"""Shared by the tests of fleets: hosts that are folders, behind programs named ssh and srun."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet_search import Search
from small_project import BENCH, INI, PARTS

_SURROUNDINGS = """
home={hosts}/$host
[ -d "$home" ] || {{ echo "ssh: Could not resolve hostname $host" >&2; exit 255; }}
[ -f "$home/environment" ] && given=$(cat "$home/environment")
run() {{
  # A warm Python does what this one would.
  for word; do shift; set -- "$@" "$(printf %s "$word" | sed 's|{cold}|{warm}|g')"; done
  exec env -i PATH="$PATH" HOME="$home" GPUENERGY_EMULATED_HOST="$host" GPUENERGY_CAP_WRITES=deny \\
    GPUENERGY_STATE="$home/state" GPUENERGY_CACHE="{cache}" {bytecode} $given "$@"
}}
cd "$home"
"""
_SSH = """#!/bin/sh
# As ssh: the words after the host become one line for a shell.
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
{surroundings}
echo $$ >> "$home/pids"
run sh -c "$*"
"""
_SRUN = """#!/bin/sh
# As srun: it chooses the host, here one after the other, passes words on as they are, and keeps
# what is not a whole line unless told otherwise.
tasks=1 folder=. host= lines=1
for word; do
  case $word in
    --ntasks=*) tasks=${{word#*=}} ;;
    --chdir=*) folder=${{word#*=}} ;;
    --unbuffered) lines= ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
start() {{
  host=$1; shift
  {surroundings}
  cd "$folder" || exit
  if [ "$lines" ]; then run "$@" | sed -u ""; else run "$@"; fi
}}
names=$(cd {hosts} && ls)
if [ "$tasks" = 1 ]; then
  for name in $names; do mkdir "{hosts}/$name/task" 2> /dev/null && start "$name" "$@"; done
  echo "srun: error: Unable to allocate resources: Requested nodes are busy" >&2; exit 1
fi
for name in $names; do (start "$name" "$@"); done
"""


@dataclass(frozen=True)
class Hosts:
    """Emulated hosts: folders with a home, a state and a copy of the project each.

    Attributes:
        project: the controller's.
        folder: has a folder for each host.
        cache: with what all kernels of the emulated GPU share.
    """

    project: Path
    folder: Path
    cache: Path

    def add(self, *names: str, copy: bool = True, **environment: str) -> None:
        """Add hosts, by default with a copy of the project; ``environment`` is theirs."""
        for name in names:
            home = self.folder / name
            home.mkdir()
            (home / "environment").write_text(" ".join(f"{k}={v}" for k, v in environment.items()))
            if copy:
                shutil.copytree(self.project, home / "project")

    def text(self, *names: str) -> str:
        """The fleet of these hosts, reached by ssh, each with its own project."""
        return "ssh:" + ",".join(f"{name}:{self.folder / name / 'project'}" for name in names)

    def measured(self, name: str) -> list[str]:
        """The lines of measurements that a host has kept."""
        files = (self.folder / name / "project").glob(".gpuenergy/runs/*/measurements.jsonl")
        return [line for file in files for line in file.read_text().splitlines()]


@pytest.fixture(autouse=True)
def own_surroundings(machine_apart: None) -> None:
    """Do not wait for a GPU that another run is using."""


@pytest.fixture
def hosts(
    pytester: pytest.Pytester,
    tmp_path_factory: pytest.TempPathFactory,
    shared_cache: Path,
    host_cache: Path,
    warm_python: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Hosts:
    """No host yet, and a small project."""
    assert host_cache.is_relative_to(shared_cache)
    folder = tmp_path_factory.mktemp("hosts")
    programs = tmp_path_factory.mktemp("programs")
    cache = os.environ.get("PYTHONPYCACHEPREFIX")
    values = {
        "hosts": folder,
        "cache": shared_cache,
        "cold": sys.executable,
        "warm": warm_python,
        "bytecode": f"PYTHONPYCACHEPREFIX={cache}" if cache else "",
    }
    surroundings = _SURROUNDINGS.format(**values)
    for name, text in (("ssh", _SSH), ("srun", _SRUN)):
        program = programs / name
        program.write_text(text.format(**values, surroundings=surroundings))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(sys, "argv", ["pytest"])
    project = pytester.path
    (project / "pyproject.toml").write_text(INI)
    pytester.makepyfile(parts=PARTS, test_scale=BENCH)
    return Hosts(project, folder, shared_cache)


@pytest.fixture
def search(hosts: Hosts, tmp_path: Path) -> Search:
    """A search over these hosts."""
    return Search(hosts.folder, tmp_path)


@pytest.fixture
def run_fleet(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run the project's tests over a fleet, in this process."""

    def run_it(
        fleet: str, *arguments: str, run: Callable[..., pytest.RunResult] | None = None
    ) -> pytest.RunResult:
        own = ("-p", "xdist", "-v", "--gpuenergy-fleet", fleet)
        return (run or pytester.runpytest_inprocess)(*own, *arguments)

    return run_it


@pytest.fixture
def no_ssh(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ssh reach nothing."""
    program = tmp_path_factory.mktemp("programs") / "ssh"
    program.write_text("#!/bin/sh\necho 'no route' >&2; exit 255\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def no_programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all programs."""
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))


@pytest.fixture
def no_ray(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that are started find no Ray."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "ray.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
