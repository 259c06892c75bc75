"""`gpuenergy clean` removes what this package made, and nothing else."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_outcomes import ended
from report_fixtures import a_run
from small_project import BENCH, INI, PARTS

import pytest_gpuenergy
from pytest_gpuenergy.cli import main
from pytest_gpuenergy.engine import seeded_arenas, verify_on_device
from pytest_gpuenergy.fleet import persistent_copy
from pytest_gpuenergy.kernels import SIGN, Job, Kernel, Launch, write_export
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.report import RunFolder, latest_run
from pytest_gpuenergy.support import CACHE_FOLDERS, cache_dir, compiled_dir, state_dir
from pytest_gpuenergy.workloads import Contract, Tensor

HASH = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    return folder


def make_run(project: Path, name: str = "20260101-000000") -> Path:
    run = a_run(run_id=name)
    folder = RunFolder.create(project, run).path
    for name in ("measurements", "anchors"):
        (folder / f"{name}.jsonl").write_text("")
    return folder


def test_all_runs_are_removed(project):
    make_run(project, "a")
    make_run(project, "b")
    assert main(["clean", "--yes"]) == 0
    assert list(project.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("machine_apart")
def test_what_a_run_writes_at_its_end_goes_too(pytester, give_toolchain, warm_python):
    give_toolchain(cache_dir("emulated", "host"))
    home = pytester.path / ".gpuenergy"
    (pytester.path / "pyproject.toml").write_text(INI)
    pytester.makepyfile(parts=PARTS, test_scale=BENCH)
    result = pytester.run(warm_python, "-m", "pytest", "--powercap", "1,333W,current")
    result.assert_outcomes(passed=3)
    (report,) = home.glob("runs/*/report.json")
    assert len(list(report.parent.glob("csv/scale/**/*.csv"))) == 4
    assert main(["clean", "--yes"]) == 0
    assert not home.exists()


def test_a_run_with_a_file_of_somebody_else_can_be_removed_later(project):
    folder = make_run(project)
    notes = folder / "csv" / "case1" / "notes.csv"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    assert main(["clean", "--yes"]) == 0
    assert notes.read_text() == "mine"
    notes.unlink()
    assert main(["clean", "--yes"]) == 0
    assert not (project / ".gpuenergy").exists()


@pytest.mark.parametrize("name", [".gpuenergy-0123456789abcdef.tmp", ".report.json.12.34.tmp"])
@pytest.mark.parametrize("place", ["", "csv/case1", "csv/case1/powercap3"])
def test_drafts_of_runs_that_were_killed_are_removed(project, place, name):
    draft = make_run(project) / place / name
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text("half")
    assert main(["clean", "--yes"]) == 0
    assert not (project / ".gpuenergy").exists()


def test_what_goes_is_listed_first(project):
    folder = make_run(project)
    home = [project / ".gpuenergy" / name for name in ("latest", ".gitignore")]
    sizes = [sum(path.stat().st_size for path in some) for some in (folder.iterdir(), home)]
    assert ended(0, "clean", "--yes").out.splitlines() == [
        f"{folder}: 4 files, {sizes[0]} B",
        f"{project / '.gpuenergy'}: 2 files, {sizes[1]} B",
        f"removed 6 files, {sum(sizes)} B",
    ]


def test_every_file_is_listed_where_that_is_asked_for(project):
    folder = make_run(project)
    assert str(folder / "run.json") in ended(0, "clean", "--files", "--yes").out.splitlines()


@pytest.mark.parametrize(("size", "words"), [(999, "999 B"), (1500, "1.5 kB"), (2 << 20, "2.1 MB")])
def test_sums_have_a_unit_that_suits_them(project, size, words):
    folder = make_run(project)
    for path in (folder / "run.json", folder / "anchors.jsonl", folder / "stations.jsonl"):
        path.write_text("")
    (folder / "measurements.jsonl").write_text("x" * size)
    assert main(["clean", "--keep", "1"]) == 0
    assert f"{folder}: 4 files, {words}" in ended(0, "clean", "--yes").out


@pytest.mark.parametrize(("keep", "left"), [(1, ["c"]), (2, ["b", "c"]), (9, ["a", "b", "c"])])
def test_the_last_runs_can_be_kept(project, keep, left):
    for name in "abc":
        make_run(project, name)
    assert main(["clean", "--keep", str(keep), "--yes"]) == 0
    assert sorted(path.name for path in (project / ".gpuenergy" / "runs").iterdir()) == left
    assert main(["report", "c"]) == 2  # it is empty, but there
    assert latest_run(project) is not None


def test_a_run_that_was_resumed_counts_as_the_last(project):
    for name in "abc":
        make_run(project, name)
    (project / ".gpuenergy" / "latest").write_text("a\n")
    assert main(["clean", "--keep", "1", "--yes"]) == 0
    assert [path.name for path in (project / ".gpuenergy" / "runs").iterdir()] == ["a"]


@pytest.mark.parametrize("number", ["0", "-1", "x", ""])
def test_a_number_to_keep_must_be_one(number):
    assert "is not a whole number from 1 to" in ended(2, "clean", f"--keep={number}").err


def exported(project: Path, name: str = "out") -> Path:
    write_export({"driver.cu": "d", "kernels/case1/k.cu": "k"}, project / name)
    return project / name


def test_exports_are_removed_where_that_is_asked_for(project):
    folder = exported(project)
    assert f"kept without --exports: {folder}: 3 files, " in ended(0, "clean", "--yes").out
    assert (folder / "driver.cu").exists()
    assert main(["clean", "--exports", "--yes"]) == 0
    assert list(project.iterdir()) == []


def test_what_somebody_added_to_an_export_or_changed_in_it_is_kept(project):
    folder = exported(project)
    (folder / "driver.cu").write_text("mine")
    (folder / "build").mkdir()
    (folder / "build" / "program").write_text("built")
    (folder / "kernels" / "notes").write_text("mine")
    assert main(["clean", "--exports", "--yes"]) == 0
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert left == ["build/program", "driver.cu", SIGN, "kernels/notes"]
    (folder / "driver.cu").unlink()
    assert exported(project) == folder  # it is still known as ours


@pytest.mark.parametrize("name", ["../mine", "/etc/passwd", "a/../../mine", "", "link/mine"])
def test_a_list_that_leads_out_of_its_folder_is_refused(project, tmp_path, name):
    (mine := tmp_path / "mine").write_text("mine")
    (project / "mine").write_text("mine")
    (folder := project / "out").mkdir()
    (folder / "link").symlink_to(tmp_path)
    digest = hashlib.sha256(b"mine").hexdigest()
    sign = {"made_by": "pytest-gpuenergy", "files": {name: digest}}
    (folder / SIGN).write_text(json.dumps(sign))
    assert "which is not in its folder" in ended(2, "clean", "--exports", "--yes").err
    assert mine.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made_by": "me", "files": {}}', "\0"])
def test_a_damaged_list_is_one_sentence(project, text):
    folder = exported(project)
    (folder / SIGN).write_text(text)
    assert main(["clean", "--yes"]) == 0  # it does not concern the runs
    assert ended(2, "clean", "--exports", "--yes").err.count("\n") == 1
    assert (folder / "driver.cu").exists()


def test_without_a_run_there_is_nothing_to_do():
    assert ended(0, "clean").out == "nothing to remove\n"


@pytest.mark.parametrize(
    ("answer", "stays"), [("y", False), ("Yes", False), ("", True), ("n", True)]
)
def test_it_asks(project, answer, stays, monkeypatch):
    folder = make_run(project)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert main(["clean"]) == (1 if stays else 0)
    assert folder.exists() is stays


def test_when_nobody_can_answer_nothing_is_removed(project, monkeypatch):
    def nobody(_: str) -> str:
        raise EOFError

    folder = make_run(project)
    monkeypatch.setattr("builtins.input", nobody)
    assert main(["clean"]) == 1
    assert (folder / "run.json").exists()


@pytest.mark.parametrize("place", ["", "runs", "runs/20260101-000000"])
def test_files_of_others_are_kept(project, place, capsys):
    make_run(project)
    mine = project / ".gpuenergy" / place / "notes.txt"
    mine.write_text("mine")
    assert main(["clean", "--yes"]) == 0
    assert mine.read_text() == "mine"
    assert f"kept, not made by gpuenergy: {mine}" in capsys.readouterr().out


def test_a_clean_that_kept_something_can_be_repeated(project):
    make_run(project)
    mine = project / ".gpuenergy" / "notes.txt"
    mine.write_text("mine")
    main(["clean", "--yes"])
    mine.unlink()
    assert main(["clean", "--yes"]) == 0
    assert list(project.iterdir()) == []


def test_a_folder_of_that_name_made_by_somebody_else_is_refused(project):
    (project / ".gpuenergy" / "runs").mkdir(parents=True)
    assert "was not made by gpuenergy" in ended(2, "clean", "--yes").err
    assert (project / ".gpuenergy" / "runs").exists()


def test_a_linked_folder_is_refused(project, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run = make_run(elsewhere)
    (project / ".gpuenergy").symlink_to(elsewhere / ".gpuenergy")
    assert main(["clean", "--yes"]) == 2
    assert run.exists()


@pytest.mark.parametrize("link", ["runs", "runs/20260101-000000", "runs/20260101-000000/run.json"])
def test_links_are_not_followed(project, tmp_path, link):
    make_run(project)
    inside, outside = project / ".gpuenergy" / link, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    before = sorted(outside.rglob("*")) if outside.is_dir() else [outside]
    assert main(["clean", "--yes"]) == 0
    assert inside.is_symlink()
    assert all(path.exists() for path in before)


def test_the_cache_stays_unless_it_is_named(project):
    make_run(project)
    entry = cache_dir("cubin") / f"{HASH}.cubin"
    entry.write_text("code")
    assert main(["clean", "--yes"]) == 0
    assert entry.exists()


def test_the_cache_is_emptied():
    entries = [
        cache_dir("cubin") / f"{HASH}.cubin",
        cache_dir("lowered") / f"{HASH}-0.27.0.post1.json",
        cache_dir("emulated", "host") / f"{HASH[:32]}-checked",
        cache_dir("emulated", "host", f"host-{HASH[:16]}", "plain") / "kernel.h",
        cache_dir("references") / f"{HASH}.npz",
        cache_dir("verified") / f".gpuenergy-{HASH[:16]}.tmp",
        cache_dir("verified") / f".{HASH}.json.12.34.tmp",
    ]
    for entry in entries:
        entry.write_text("data")
    assert main(["clean", "--cache", "--yes"]) == 0
    assert [path for path in cache_dir().rglob("*") if path.is_file()] == []


def test_a_folder_of_compiled_kernels_is_emptied_too(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPILE_CACHE_DIR", str(tmp_path / "compiled"))
    entries = [compiled_dir("cubin") / f"{HASH}.cubin", cache_dir("references") / f"{HASH}.npz"]
    for entry in entries:
        entry.write_text("data")
    assert main(["clean", "--cache", "--yes"]) == 0
    assert not any(entry.exists() for entry in entries)


def test_a_cache_that_is_shared_with_others_keeps_their_files(tmp_path, monkeypatch):
    home = tmp_path / "home"
    kept = [home / "references" / "thesis.bib", home / ".git" / "objects" / "ab" / HASH[:38]]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    monkeypatch.setenv("GPUENERGY_CACHE", str(home))
    assert main(["clean", "--cache", "--yes"]) == 0
    assert all(path.exists() for path in kept)


def test_links_in_the_cache_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (cache_dir("emulated", "host") / f"host-{HASH[:16]}").symlink_to(outside)
    assert main(["clean", "--cache", "--yes"]) == 0
    assert (outside / "mine").exists()


def test_a_saved_power_limit_is_never_removed(monkeypatch):
    monkeypatch.setenv("GPUENERGY_STATE", str(cache_dir()))
    lease = state_dir("leases") / "GPU-0.json"
    lease.write_text("{}")
    assert main(["clean", "--cache", "--yes"]) == 0
    assert lease.exists()


@pytest.mark.slow
def test_every_folder_that_the_package_caches_in_is_known():
    calls = [
        call
        for path in Path(pytest_gpuenergy.__file__).parent.rglob("*.py")
        if re.search(r"\b(cache_dir|compiled_dir)\(", source := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("cache_dir", "compiled_dir")
        and any(isinstance(part, ast.Constant) for part in call.args)
    ]
    names = {
        "/".join(part.value for part in call.args if isinstance(part, ast.Constant))
        for call in calls
    }
    assert names == set(CACHE_FOLDERS)


@pytest.mark.slow
def test_all_that_a_measurement_caches_is_removed(shared_cache, tmp_path, monkeypatch):
    kernel = Kernel(
        'extern "C" __global__ void f(float* y) { y[threadIdx.x] = 1.0f; }',
        (Launch("f", (1, 1, 1), (32, 1, 1), ("y",)),),
    )
    ones = Contract(
        "ones", (Tensor("y", (32,), "float32", "output"),), lambda _: {"y": np.ones(32)}
    )
    monkeypatch.setenv("GPUENERGY_CACHE", str(shared_cache))
    with open_device("emulated") as device:
        verify_on_device(device, kernel, ones)
        with seeded_arenas(ones, 1) as arenas, device.repeat(Job.of(kernel, ones), arenas):
            pass
    # What other tests are building at this moment comes and goes.
    shutil.copytree(shared_cache, tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "copy"))
    (cache_dir("emulated", "host") / ".build-123-abc_d").mkdir()
    assert [path for path in cache_dir().rglob("*") if path.is_file()]
    assert main(["clean", "--cache", "--yes"]) == 0
    assert [path for path in cache_dir().rglob("*") if path.is_file()] == []


@pytest.fixture
def copy(project: Path) -> Path:
    """A copy of a project that a fleet has left, with a run."""
    sent = project / "_ray_pkg_1234"
    (sent / "bench").mkdir(parents=True)
    (sent / "bench" / "notes.txt").symlink_to(project)
    (sent / "pyproject.toml").write_text("")
    made = persistent_copy(sent, "bench")
    shutil.rmtree(sent)
    make_run(state_dir("fleet", "bench"), "a")
    make_run(state_dir("fleet", "bench"), "b")
    return made


def test_what_fleets_have_left_is_named_and_kept_unless_asked_for(copy):
    assert f"kept without --fleet: {state_dir('fleet')}: " in ended(0, "clean", "--yes").out
    assert (copy / "pyproject.toml").exists()
    assert (copy / ".gpuenergy" / "runs" / "a").is_dir()


def test_what_fleets_have_left_is_removed_and_no_link_is_followed(copy, project):
    (project / "mine.txt").write_text("mine")
    assert main(["clean", "--fleet", "--yes"]) == 0
    assert not copy.exists()
    assert list(state_dir("fleet").iterdir()) == []
    assert (project / "mine.txt").read_text() == "mine"


def test_the_last_runs_of_fleets_can_be_kept(copy):
    assert main(["clean", "--fleet", "--keep", "1", "--yes"]) == 0
    assert not copy.exists()
    assert [path.name for path in state_dir("fleet", "bench").glob(".gpuenergy/runs/*")] == ["b"]


def test_a_copy_in_use_or_in_the_making_is_kept(copy, monkeypatch, capsys):
    making = copy.with_name(".making")
    making.mkdir()
    monkeypatch.chdir(copy / "bench")
    assert main(["clean", "--fleet", "--yes"]) == 0
    assert (copy / "pyproject.toml").exists()
    assert making.exists()
    printed = capsys.readouterr().out
    assert all(f"kept, in use: {path}\n" in printed for path in (copy, making))
