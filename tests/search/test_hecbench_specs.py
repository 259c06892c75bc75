"""The kernel specs for HeCBench, whose sources are not here: all but what needs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.search import (
    KernelSpec,
    check_spec,
    raw_spec,
    spec_paths,
    spec_schema,
    workload_of,
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench/search/hecbench"
PATHS = spec_paths(FOLDER)
KERNEL = "__global__ void kernel() {}"


def without_source(path: Path) -> KernelSpec:
    """Return a spec with a text in place of the file that it names."""
    return replace(raw_spec(path), source=KERNEL, file="", checkout=None, extract=False)


def test_there_are_more_than_twelve():
    assert len(PATHS) > 12


def test_the_folder_has_no_code_of_others():
    assert {path.suffix for path in FOLDER.iterdir()} <= {".json", "", ".md"}
    assert (FOLDER / ".gitignore").read_text() == "/sources\n"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
class TestEach:
    def test_it_names_a_file_of_one_commit(self, path):
        spec = raw_spec(path)
        assert spec.name == path.stem
        assert spec.extract
        assert re.fullmatch(r"src/[\w-]+-cuda/\w+\.(cu|h)", spec.file)
        assert spec.checkout is not None
        assert spec.checkout.repository == "https://github.com/zjin-lcf/HeCBench"
        assert re.fullmatch("[0-9a-f]{40}", spec.checkout.revision)
        assert re.fullmatch("[0-9a-f]{64}", spec.checkout.sha256)

    def test_it_is_valid_apart_from_its_source(self, path):
        jsonschema.Draft202012Validator(spec_schema()).validate(json.loads(path.read_text()))
        for emulated in (False, True):
            check_spec(without_source(path).on(emulated=emulated))

    def test_its_reference_gives_what_it_says(self, path):
        spec = without_source(path).on(emulated=True)
        for sizes in spec.sizes:
            workload = workload_of(spec, sizes)
            inputs = workload.make_inputs(12345)
            outputs = workload.reference({k: np.asarray(v, np.float64) for k, v in inputs.items()})
            assert all(np.isfinite(value).all() for value in outputs.values())

    def test_it_is_documented(self, path):
        assert f"| `{path.stem}` |" in (ROOT / "docs/reference/bundled.md").read_text()


def test_without_a_checkout_a_sentence_says_what_to_clone(tmp_path, capsys):
    missing = str(tmp_path / "missing")
    words = ["optimize", str(FOLDER), "--sources", missing, "--outdir", str(tmp_path / "out")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "of https://github.com/zjin-lcf/HeCBench is not in" in error
    assert "clone that repository (commit f27000a" in error
