"""The corpus of wrong and right kernels, and the command that judges it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import corpus
import numpy as np
import pytest
from corpus import Verdict, digest_of
from corpus_judges import Judges
from entries import FOLDER, Entry, kinds, read_corpus, sets

from pytest_gpuenergy.emulator import EmulatedDevice

ENTRIES = read_corpus()
FAMILIES = {entry.family: entry for entry in reversed(ENTRIES)}


def test_all_kernels_are_different_and_have_a_sentence():
    ran = Counter((entry.source, entry.launches, entry.scalars) for entry in ENTRIES)
    assert [source for source, count in ran.items() if count > 1] == []
    assert [one.name for one in ENTRIES if not re.fullmatch(r"[A-Z0-9].*\.", one.why)] == []


def test_each_kind_has_a_wrong_kernel():
    assert {entry.kind for entry in ENTRIES if not entry.right} == set(kinds())


def test_each_family_is_in_one_set():
    assert sorted(name for names in sets().values() for name in names) == sorted(FAMILIES)


def test_launches_take_what_is_declared():
    for entry in ENTRIES:
        tensors = (*entry.inputs, *entry.inouts, *entry.outputs, *entry.workspaces)
        known = {one.name for one in (*tensors, *entry.scalars)}
        taken = {name for launch in entry.launches for name in launch.arguments}
        assert taken <= known, entry.name
        assert all(f"{launch.entry}(" in entry.source for launch in entry.launches), entry.name


def test_references_return_the_declared_outputs():
    for family, entry in FAMILIES.items():
        draw = np.random.default_rng(0)
        inputs = {}
        for one in (*entry.inputs, *entry.inouts):
            low, high = entry.ranges.get(one.name, (0, 2))
            inputs[one.name] = draw.uniform(low, high, one.shape)
            if np.dtype(one.dtype.replace("bfloat16", "float32")).kind != "f":
                inputs[one.name] = inputs[one.name].astype(one.dtype)
        result = entry.reference(inputs)
        assert {name: value.shape for name, value in result.items()} == {
            one.name: one.shape for one in (*entry.inouts, *entry.outputs)
        }, family


@pytest.mark.slow
def test_it_is_read_and_written_without_this_project(tmp_path):
    words = [sys.executable, "-S", "-c", _ALONE, str(FOLDER), str(Path(np.__file__).parents[1])]
    subprocess.run([*words, str(tmp_path)], check=True, cwd=tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    assert len(index["kernels"]) == len(ENTRIES)
    files = {one["file"] for one in index["kernels"]}
    assert files == {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.cu")}
    right = next(entry for entry in ENTRIES if entry.name == "gemm/base")
    assert (tmp_path / "gemm/base.cu").read_text() == right.source


_ALONE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from entries import export
assert not any(name.startswith("pytest") for name in sys.modules)
export(Path(sys.argv[3]))
"""


def named(name: str) -> Entry:
    return next(entry for entry in ENTRIES if entry.name == name)


def verdict(name: str, ending: str, judge: str = "verify") -> Verdict:
    entry = named(name)
    about = (entry.name, entry.kind, entry.right, digest_of(entry))
    return Verdict(*about, judge, "emulated NVIDIA H200", ending, "because", 0.5)


VERDICTS = [
    verdict("softmax/base", "passed"),
    verdict("softmax/online", "refused"),
    verdict("softmax/no-maximum", "refused"),
    verdict("softmax/no-barrier-in-sum", "passed"),
    verdict("softmax/sum-in-half", "not judged"),
    verdict("softmax/no-maximum", "passed", "allclose"),
]


def test_recall_and_false_alarms_leave_out_what_was_not_judged():
    told = corpus.table(VERDICTS)
    assert "1 of 2 wrong kernels found: 50.0 %" in told
    assert "1 of 2 right kernels refused: 50.0 %" in told
    assert "0 of 1 wrong kernels found: 0.0 %" in told
    assert re.search(r"^set 1 +2 +1 +2 +1 +1$", told, re.MULTILINE)
    assert "  softmax/no-barrier-in-sum (missing-barrier): because" in told
    assert "  softmax/online (online-rescale): because" in told


@pytest.mark.slow
def test_verdicts_on_what_has_not_changed_are_kept(tmp_path, capsys, monkeypatch):
    for variable in ("GPUENERGY_CACHE", "GPUENERGY_STATE"):  # which the command sets for itself
        monkeypatch.setenv(variable, str(tmp_path))
    path = tmp_path / "corpus.json"
    names = ("softmax/base", "gemm/base", "axis_angle/base")
    known = [asdict(verdict(name, "refused")) for name in names]
    path.write_text(json.dumps({"seed": 0, "verdicts": known}))
    families = ["--family", "softmax", "--family", "gemm"]
    words = [*families, "--only", "/base", "--json", str(path), "--resume"]
    assert corpus.main(words) == 0
    assert "3 of 3 right kernels refused: 100.0 %" in capsys.readouterr().out
    assert json.loads(path.read_text())["verdicts"] == known


def test_a_kernel_that_has_changed_is_another_one():
    entry = named("softmax/base")
    assert digest_of(replace(entry, source=entry.source + " ")) != digest_of(entry)
    assert digest_of(replace(entry, launches=entry.launches * 2)) != digest_of(entry)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--kind", "tails"], "There is no kind tails: give some of tail, *"),
        (["--set", "4", "--set", "99"], "There is no set 99: give some of 1, 2, *"),
        (["--family", "soft"], "The corpus has no family soft: give one of adam, *"),
        (["--only", "no-such-name"], "No kernel of the corpus is left by these options."),
        (["--against", "guess"], "--against guess: give allclose, sanitizer or both."),
        (["--against", "sanitizer"], "--against sanitizer needs an NVIDIA GPU and *"),
        (["--resume"], "--resume continues a file: give --json as well."),
        (["--every", "0"], "--every 0 *"),
    ],
)
def test_options_that_cannot_be_followed_are_one_sentence(words, sentence, capsys):
    assert corpus.main(words) == 2
    printed = capsys.readouterr()
    assert re.fullmatch("error: " + re.escape(sentence).replace(r"\*", ".*") + "\n", printed.err)
    assert not printed.out


@pytest.mark.slow
def test_another_file_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text("[1, 2]")
    assert corpus.main(["--json", str(path), "--resume"]) == 2
    assert "was not written by this command" in capsys.readouterr().err
    assert path.read_text() == "[1, 2]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "endings"),
    [
        ("row_sums/butterfly", {"verify": "passed", "allclose": "passed"}),
        ("scan/in-place-with-two-barriers", {"verify": "passed", "allclose": "passed"}),
        ("row_sums/no-row-mask", {"verify": "refused", "allclose": "refused"}),
        ("softmax/no-maximum", {"verify": "refused", "allclose": "passed"}),
        ("mix64/base", {"allclose": "passed"}),
        ("gemm/b-transposed", {"verify": "refused", "allclose": "refused"}),
    ],
)
def test_kernels_are_judged(host_cache, name, endings):
    with EmulatedDevice() as device:
        judges = Judges(device, host_cache, seed=20, limit_s=60.0)
        assert {judge: judges(judge, named(name)).ending for judge in endings} == endings


@pytest.mark.slow
def test_a_kernel_that_takes_too_long_or_does_not_compile_is_not_judged(host_cache):
    endless = replace(named("scale_add/base"), source=_ENDLESS)
    broken = replace(named("scale_add/base"), source="__global__ void scale_add(")
    with EmulatedDevice() as device:
        # Compiling takes long on a busy machine, so only the launches have a short limit.
        judges = Judges(device, host_cache, seed=20, limit_s=600.0, launch_limit_s=0.3)
        assert judges("verify", broken).ending == "not judged"
        assert judges("verify", endless).ending == "refused"
        # It is compiled now: a limit that passes while a compiler starts would leave it behind.
        patient = Judges(device, host_cache, seed=20, limit_s=1.0, launch_limit_s=600.0)
        late = patient("verify", endless)
    assert late.ending == "not judged"
    assert late.why == "not finished after 1 s"


_ENDLESS = """
__global__ void scale_add(const float* x, const float* z, float* y, float a, int n) {
  for (volatile int i = 0; i >= 0;) i = 0;
  y[0] = 0;
}
"""
