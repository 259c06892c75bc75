"""The files that specs need are copied out of a checkout."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import hecbench_files
import pytest
from kernel_specs import SCALE, SOURCE


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A suite of two programs, of which a spec needs one."""
    for name, text in {
        "LICENSE": "BSD",
        "src/one-cuda/LICENSE": "MIT",
        "src/one-cuda/main.cu": '#include "kernel.h"\nint main() {}\n',
        "src/one-cuda/kernel.h": SOURCE,
        "src/two-cuda/main.cu": "int main() {}\n",
    }.items():
        path = tmp_path / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "suite"


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A folder with one spec."""
    spec = {name: value for name, value in SCALE.items() if name != "source"}
    spec |= {"file": "src/one-cuda/main.cu", "extract": True}
    spec["checkout"] = {"repository": "https://example.org", "revision": "abc"}
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/scale.json").write_text(json.dumps(spec))
    return tmp_path / "specs"


def test_those_of_its_programs_and_their_licences_are_needed(checkout, specs):
    assert set(hecbench_files.needed(checkout, specs)) == {
        PurePosixPath("src/one-cuda", name) for name in ("main.cu", "kernel.h", "LICENSE")
    }


def test_they_are_copied_to_where_they_were(checkout, specs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hecbench_files, "SPECS", specs)
    to = tmp_path / "carried"
    hecbench_files.main([str(checkout), str(to)])
    assert capsys.readouterr().out == f"4 files copied to {to}\n"
    assert (to / "LICENSE").read_text() == "BSD"
    assert (to / "src/one-cuda/kernel.h").read_text() == SOURCE
