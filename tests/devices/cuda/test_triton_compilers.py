"""Triton functions are compiled ahead, each in a process of its own; with a stand-in for Triton."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_binders import SCALE, TRITON

from pytest_gpuenergy.devices import TritonCompilers
from pytest_gpuenergy.kernels import Job, TritonKernel

FILES = {
    "torch/__init__.py": "float32 = 'a float32'\n",
    "triton/__init__.py": """
import os
from types import SimpleNamespace
from triton.runtime import driver

class Jit:
    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        raise AssertionError("nothing is launched")

    def warmup(self, *arguments, grid, **options):
        note = f"{os.getpid()} {os.getppid()} {driver.target} {arguments[2]} {options}"
        with open(os.environ["COMPILED"], "a") as notes:
            print(note, file=notes)
        return SimpleNamespace(asm={"cubin": b""}, metadata=SimpleNamespace(name="scale"))

jit = Jit
""",
    "triton/backends/__init__.py": "",
    "triton/backends/compiler.py": "def GPUTarget(*parts):\n    return parts\n",
    "triton/runtime/__init__.py": "",
    "triton/runtime/cache.py": "def triton_key():\n    return 'key'\n",
    "triton/runtime/driver.py": """
target = None

def set_active(active):
    global target
    assert (active.get_current_device(), active.get_current_stream(0)) == (0, 0)
    target = active.get_current_target()
""",
}
GEOMETRY = (TRITON.grid, TRITON.arguments, TRITON.constants)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """For each compilation, the process, its parent and the target."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    notes = tmp_path / "compiled"
    notes.touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COMPILED", str(notes))
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    return lambda: [line.split(maxsplit=2) for line in notes.read_text().splitlines()]


@pytest.mark.slow
def test_each_function_is_compiled_once_in_a_process_of_its_own(compiled):
    fails = TritonKernel("raise SystemExit(7)", "scale", *GEOMETRY)
    other = TritonKernel(f"{TRITON.source}# changed\n", "scale", *GEOMETRY)
    compilers = TritonCompilers("sm_90")
    for kernel in (TRITON, fails, TRITON, other):
        compilers.submit(Job.of(kernel, SCALE))
    for kernel in (fails, TRITON, other):
        compilers.submit(Job.of(kernel, SCALE)).result()
    compilers.close()
    (one, parent, what), (two, _, _) = compiled()
    assert len({one, two, parent}) == 3
    assert what.startswith("('cuda', 90, 32) 3.0 {'TWICE': True, 'num_warps': 4")


@pytest.mark.slow
def test_without_triton_nothing_is_compiled_ahead(compiled, tmp_path):
    (tmp_path / "triton/__init__.py").write_text("raise ImportError('no Triton here')")
    compilers = TritonCompilers("sm_90")
    assert not compilers.submit(Job.of(TRITON, SCALE)).result()
    compilers.close()
    assert compiled() == []
