"""Sources that a spec names: in a checkout of somebody's repository, and kernels in programs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cuda_programs import FILES, PROGRAM
from kernel_specs import optimize, spec_with, state_of, write

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.search import read_spec
from pytest_gpuenergy.support import InputError

DIGEST = hashlib.sha256("".join(FILES.values()).encode()).hexdigest()
CHECKOUT = {"repository": "https://example.org/suite", "revision": "abc123", "sha256": DIGEST}
SPEC = spec_with(
    source=None,
    file="src/main.cu",
    checkout=CHECKOUT,
    extract=True,
    entry="scale<float, Mode::PLAIN>",
    arguments=["x", "y", "count", "by", "n"],
    tensors=[
        {"name": "x", "shape": ["N"]},
        {"name": "y", "shape": ["N"], "role": "output"},
        {"name": "count", "shape": [1], "dtype": "int32", "role": "output", "init": "zeros"},
    ],
    launch={"grid": ["ceil_div(N, block_x)"], "block": [64]},
    reference={"y": "by * x + 4", "count": "np.array([N])"},
)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A checkout."""
    root = tmp_path / "suite"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def spec_in(tmp_path: Path, **fields: Any) -> Path:
    folder = tmp_path / "specs"
    folder.mkdir(exist_ok=True)
    given = {**SPEC, **fields}
    return write(folder, {name: value for name, value in given.items() if value is not None})


class TestACheckout:
    def test_it_is_read_where_it_is_named(self, tmp_path, sources):
        found = read_spec(spec_in(tmp_path), sources)
        assert found.entry == "scale"
        assert "const float* __restrict__ x" in found.source
        assert found.checkout is None

    def test_it_can_be_linked_beside_the_spec(self, tmp_path, sources):
        path = spec_in(tmp_path)
        (path.parent / "sources").symlink_to(sources)
        assert read_spec(path) == read_spec(path, sources)

    def test_a_whole_file_can_be_the_source(self, tmp_path, sources):
        text = "__global__ void scale(const float* x, float* y, int* count, float by, int n) {}"
        (sources / "src/plain.cu").write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        path = spec_in(
            tmp_path,
            file="src/plain.cu",
            extract=None,
            entry="scale",
            checkout={**CHECKOUT, "sha256": digest},
        )
        assert read_spec(path, sources).source == text

    def test_one_that_is_missing_is_described(self, tmp_path):
        with pytest.raises(InputError) as caught:
            read_spec(spec_in(tmp_path))
        folder = tmp_path / "specs/sources"
        assert str(caught.value).endswith(
            f"because 'src/main.cu' of https://example.org/suite is not in {folder}: clone that "
            "repository (commit abc123), and name its folder with --sources."
        )

    def test_another_repository_is_not_taken_for_it(self, tmp_path):
        with pytest.raises(InputError, match=f"is not in {tmp_path}: clone that repository"):
            read_spec(spec_in(tmp_path), tmp_path)

    @pytest.mark.parametrize("name", FILES)
    def test_files_that_differ_are_refused(self, name, tmp_path, sources):
        with (sources / name).open("a") as file:
            file.write("// later\n")
        with pytest.raises(InputError, match="is not as in commit abc123, for which the spec was"):
            read_spec(spec_in(tmp_path), sources)

    def test_files_that_differ_are_read_without_a_digest(self, tmp_path, sources):
        (sources / "src/main.cu").write_text(PROGRAM.replace("* by", "* by * 1"))
        path = spec_in(tmp_path, checkout={**CHECKOUT, "sha256": ""})
        assert "x[i] * by * 1;" in read_spec(path, sources).source

    def test_a_file_outside_of_it_is_refused(self, tmp_path, sources):
        with pytest.raises(InputError, match="is not in its checkout: put it there"):
            read_spec(spec_in(tmp_path, file="../suite/src/main.cu"), sources)

    def test_an_include_that_is_no_text_counts_as_missing(self, tmp_path, sources):
        (sources / "src/helpers.h").write_bytes(b"\xff\xfe")
        path = spec_in(tmp_path, checkout={**CHECKOUT, "sha256": ""})
        assert read_spec(path, sources).entry == "scale"


class TestAKernelInAProgram:
    def test_it_is_taken_out_of_a_file_beside_the_spec(self, tmp_path):
        path = spec_in(tmp_path, checkout=None, file="main.cu")
        (path.parent / "main.cu").write_text(PROGRAM)
        assert "main" not in read_spec(path).source.partition("\n")[2]

    def test_what_cannot_be_taken_is_one_sentence(self, tmp_path, capsys):
        path = spec_in(tmp_path, checkout=None, file="main.cu", entry="scal")
        (path.parent / "main.cu").write_text(PROGRAM)
        assert main(["optimize", str(path), "--outdir", str(tmp_path / "out")]) == 2
        assert "main.cu has no kernel 'scal' (its kernels: other, scale).\n" in (
            capsys.readouterr().err
        )

    def test_that_of_a_triton_function_is_refused(self, tmp_path):
        path = spec_in(tmp_path, language="triton", entry="scale", launch={"grid": [1]})
        with pytest.raises(InputError, match="extract is for CUDA only"):
            read_spec(path)

    @pytest.mark.parametrize("field", ["extract", "checkout"])
    def test_there_must_be_a_file(self, field, tmp_path):
        fields = {"extract": None, "checkout": None, field: SPEC[field]}
        path = spec_in(tmp_path, file=None, source=PROGRAM, **fields)
        with pytest.raises(InputError, match="extract and checkout are for a spec with file"):
            read_spec(path)


class TestOtherSizesForTheEmulatedGpu:
    EMULATION: ClassVar[dict[str, Any]] = {
        "sizes": [{"N": 40}, {"N": 7}],
        "constants": {"ITEMS": 2},
    }

    def test_they_replace_those_of_the_spec_there(self, tmp_path):
        spec = read_spec(write(tmp_path, spec_with(emulation=self.EMULATION)))
        emulated = spec.on(emulated=True)
        assert emulated.sizes == ({"N": 40}, {"N": 7})
        assert emulated.launch.constants == {"ITEMS": 2}
        assert spec.on(emulated=False).sizes == ({"N": 4000}, {"N": 501})
        assert emulated.emulation is spec.on(emulated=False).emulation is None

    def test_they_are_checked_like_those(self, tmp_path):
        path = write(tmp_path, spec_with(emulation={"sizes": [{"M": 4}]}))
        with pytest.raises(InputError, match="'N' is not a known name"):
            read_spec(path)

    @pytest.mark.slow
    def test_a_search_uses_them(self, tmp_path):
        path = write(tmp_path, spec_with(emulation=self.EMULATION))
        assert optimize(path, tmp_path / "out", "--budget-builds", "0") == 0
        written = json.loads((tmp_path / "out/kernels/_scale/spec.json").read_text())
        assert written["sizes"] == self.EMULATION["sizes"]


@pytest.mark.slow
def test_a_kernel_of_a_checkout_is_searched(tmp_path, sources):
    path, out = spec_in(tmp_path), tmp_path / "out"
    words = ("--sources", str(sources), "--budget-builds", "1")
    assert optimize(path, out, *words) == 0
    assert [node["outcome"] for node in state_of(out)["nodes"]] == ["correct", "correct"]
    assert "__global__ void scale" in (out / "kernels/_scale/baseline/kernel.cu").read_text()
    assert optimize(path, out, *words, "--resume") == 0
