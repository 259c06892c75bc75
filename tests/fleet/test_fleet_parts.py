"""What relays and nodes do that needs no other host: arguments, copies, interpreters, counts."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuenergy.fleet import (
    Interpreter,
    ProbedGpu,
    ProbedHost,
    WorkerOrder,
    persistent_copy,
    without_taken,
)
from pytest_gpuenergy.support import DeviceError


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ("bench", "bench"),
        ("/here", "/there"),
        ("/here/bench/test_it.py::test[a-/b]", "/there/bench/test_it.py::test[a-/b]"),
        ("--junitxml=/here/a.xml", "--junitxml=/there/a.xml"),
        ("/hereabouts/a.py", "/hereabouts/a.py"),
        ("a=/here/b", "a=/here/b"),
    ],
)
def test_paths_in_the_project_are_those_of_the_other_host(given, there):
    order = WorkerOrder("popen", "h1", None, "/here", 1, 1, {})
    assert order.arguments([given], "/there") == ["--rootdir=/there", there]


def test_a_root_that_was_given_is_kept():
    order = WorkerOrder("popen", "h1", None, "/here", 1, 1, {})
    assert order.arguments(["--rootdir=/here/a"], "/there") == ["--rootdir=/there/a"]


def hosts(*unfit: bool) -> list[ProbedHost]:
    gpus = [
        ProbedGpu(i, f"GPU-{i}", "H200", False, "1", no_measuring="MIG" if bad else None)
        for i, bad in enumerate(unfit)
    ]
    return [ProbedHost("n", gpus=(gpu,)) for gpu in gpus]


@pytest.mark.parametrize(("free", "left"), [(3, 2), (2, 2), (1, 1), (0, 0)])
def test_gpus_that_other_jobs_hold_are_left_out(free, left):
    found = without_taken(hosts(False, True, False), free)
    usable = [gpu for host in found for gpu in host.gpus if gpu.no_measuring is None]
    assert len(usable) == left
    assert found[1].gpus[0].no_measuring == "MIG"


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What Ray has sent, and places of this node's own."""
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUENERGY_STATE", str(tmp_path / "state"))
    folder = tmp_path / "_ray_pkg_1234"
    (folder / "bench").mkdir(parents=True)
    (folder / "bench/test_it.py").write_text("pass\n")
    return folder


def test_runs_outlive_the_project_that_ray_sent(sent, tmp_path):
    copy = persistent_copy(sent, "bench")
    assert (copy / "bench/test_it.py").read_text() == "pass\n"
    (copy / ".gpuenergy/runs").mkdir()
    shutil.rmtree(sent)
    later = tmp_path / "_ray_pkg_5678"
    later.mkdir()
    assert persistent_copy(later, "bench") != copy
    assert (tmp_path / "state/fleet/bench/.gpuenergy/runs").is_dir()


def test_a_copy_is_made_once_and_removed_when_it_is_old(sent, tmp_path):
    copy = persistent_copy(sent, "bench")
    (copy / "mark").touch()
    assert persistent_copy(sent, "bench") == copy
    assert (copy / "mark").exists()
    os.utime(copy, (0, 0))
    later = tmp_path / "_ray_pkg_5678"
    later.mkdir()
    persistent_copy(later, "bench")
    assert not copy.exists()
    assert (tmp_path / "state/fleet/bench/.gpuenergy").is_dir()


@pytest.fixture
def interpreter(tmp_path: Path) -> Iterator[Interpreter]:
    one = Interpreter()
    code = "import os, sys; print(os.environ['GPUENERGY_FLEET_GPU'] + input()); input()"
    one.start(None, ["-c", code], str(tmp_path), 3, {})
    yield one
    one.stop()


def output(interpreter: Interpreter, kind: int) -> bytes:
    found = b""
    while True:
        for one, data in interpreter.read(60):
            if one == kind and not data:
                return found
            found += data if one == kind else b""


def test_an_actors_interpreter_is_talked_to_through_calls(interpreter):
    assert interpreter.write(b" wafers\n")
    assert interpreter.write(b"")
    assert output(interpreter, 1) == b"3 wafers\n"


def test_what_it_says_when_it_fails_is_passed_on(interpreter):
    assert interpreter.write(b"")
    assert b"EOFError" in output(interpreter, 2)
    assert not interpreter.write(b"more\n")


def test_an_interpreter_is_stopped(interpreter):
    interpreter.stop()
    assert output(interpreter, 1) == b""
    assert not interpreter.write(b"more")


def test_a_copy_that_does_not_fit_leaves_nothing_behind(sent, tmp_path):
    (sent / "large.bin").write_bytes(bytes(10_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DeviceError, match=r"cannot be copied to .*File too large.*make room"):
            persistent_copy(sent, "bench")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "state/fleet/bench/copies").iterdir()) == []


def refuse_renames(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def rename(folder: Path, copy: Path) -> None:
        if number == errno.ENOTEMPTY:  # as if another actor had been faster
            shutil.copytree(folder, copy, symlinks=True)
        raise OSError(number, os.strerror(number), str(folder))

    monkeypatch.setattr(Path, "rename", rename)


def test_a_copy_that_another_actor_has_made_first_is_used(sent, monkeypatch):
    refuse_renames(monkeypatch, errno.ENOTEMPTY)
    copy = persistent_copy(sent, "bench")
    assert (copy / "bench/test_it.py").is_file()
    assert [*copy.parent.iterdir()] == [copy]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOSPC])
def test_a_copy_that_cannot_be_put_in_place_is_reported(sent, tmp_path, monkeypatch, number):
    refuse_renames(monkeypatch, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        persistent_copy(sent, "bench")
    assert [*(tmp_path / "state/fleet/bench/copies").iterdir()] == []
