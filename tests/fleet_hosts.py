"""Hosts of a fleet as folders: each with a project, a state and an emulated GPU of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from small_project import INI, PARTS

from pytest_gpuenergy.report import Report, RunFolder

MODULE = """
import os, pytest
from pathlib import Path
from parts import LAUNCH, SCALE, SOURCE

HERE = Path(__file__).parent
ALL = HERE.parent

def once(name):
    try:
        (ALL / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def die():
    import signal
    os.kill(os.getpid(), signal.SIGKILL)

AT_IMPORT

@pytest.mark.parametrize("number", range(COUNT))
def test_scale(number, powercap, gpu, load_kernel, energy_benchmark):
    BEFORE
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
    AFTER
"""


@dataclass(frozen=True)
class Host:
    """A folder that stands for a host; a worker there is started with ``spec``."""

    path: Path
    spec: str

    def stored(self) -> Report:
        """What the worker of the only run has stored here."""
        (folder,) = (self.path / ".gpuenergy" / "runs").iterdir()
        return RunFolder(folder).load()


def module(
    *, count: int = 4, before: str = "pass", after: str = "pass", at_import: str = ""
) -> str:
    """A test module with ``count`` workloads, and what happens at import and around measuring."""
    text = MODULE.replace("COUNT", str(count)).replace("AT_IMPORT", at_import)
    return text.replace("BEFORE", before).replace("AFTER", after)


def make_host(base: Path, python: Path, name: str, text: str, **variables: str) -> Host:
    """Make the host ``name`` in ``base``, with a test module and a command for ``python``."""
    path = base / name
    path.mkdir()
    (path / "pyproject.toml").write_text(INI)
    (path / "parts.py").write_text(PARTS)
    (path / "test_scale.py").write_text(text)
    state = path / "state"
    state.mkdir()
    settings = {
        "GPUENERGY_STATE": str(state),
        "GPUENERGY_EMULATED_HOST": name,
        **variables,
    }
    exports = "".join(f"export {key}='{value}'\n" for key, value in settings.items())
    command = path / "python"
    command.write_text(f'#!/bin/sh\n{exports}cd "{path}" || exit 1\nexec {python} "$@"\n')
    command.chmod(0o755)
    return Host(path, f"popen//python={command}")
