"""The command line: help, exit codes, and how errors and interrupts end."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuenergy import __version__, cli
from pytest_gpuenergy.commands import clean
from pytest_gpuenergy.support import DeviceError, InputError

H200 = Path(__file__).parents[1] / "bench/results/nvidia-h200-2026-11-22/report.json"
ACTIONS = [
    *([name] for name in cli.COMMANDS),
    *(["kernels", action] for action in ("list", "show", "export")),
    ["baseline", "update"],
    *(["powercap", action] for action in ("show", "set", "restore")),
]


def raising(error: BaseException) -> Callable[[Namespace], int]:
    def run(_: Namespace) -> int:
        raise error

    return run


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"\n    {name} " in shown


@pytest.mark.parametrize("words", ACTIONS, ids=" ".join)
def test_every_command_has_help_with_an_example(words, capsys):
    assert cli.main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    _, separator, example = shown.partition("example:\n")
    assert separator
    assert f"gpuenergy {' '.join(words)}" in example


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpuenergy {__version__}\n"


@pytest.mark.parametrize("words", [[], ["no-such-command"], ["clean", "--no-such-option"]])
def test_wrong_usage_ends_with_2(words, capsys):
    assert cli.main(words) == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gemm", "perf", "MNK=8", "--mod", "tf32"], "gemm perf does not understand --mod tf32"),
        (["advise", "--mode", "tf32"], "understand --mode: use --modes."),
        (["tune", "--zzz"], "understand --zzz: see gpuenergy tune --help."),
        (["--zzz", "doctor"], "gpuenergy does not understand --zzz: see gpuenergy --help."),
    ],
)
def test_an_unknown_option_is_one_sentence_and_no_abbreviation(words, told, capsys):
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


@pytest.mark.parametrize(
    "words",
    [
        ["gemm", "perf", "MNK=8", "--out"],
        ["tune", "--out"],
        ["extract", "trace.json", "--out"],
        ["report", "--csv"],
        ["report", "--json"],
        ["replay", "run", "--export"],
        ["advise", "--md"],
        ["baseline", "update", "--to"],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_current_folder(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words, ""]) == 2
    assert "it is empty: give a path, such as ." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"), [(InputError("No such file."), 2), (DeviceError("No such GPU."), 1)]
)
def test_an_error_is_one_sentence_on_stderr(error, code, monkeypatch, capsys):
    monkeypatch.setattr(clean, "run", raising(error))
    assert cli.main(["clean"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"gpuenergy: error: {error}\n"
    assert captured.out == ""


def test_an_interrupt_ends_with_130(monkeypatch):
    monkeypatch.setattr(clean, "run", raising(KeyboardInterrupt()))
    assert cli.main(["clean"]) == 130


def test_an_unforeseen_error_is_not_hidden(monkeypatch):
    monkeypatch.setattr(clean, "run", raising(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["clean"])


def in_a_process(*words: str, stdout: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuenergy.cli", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])},
    )


@pytest.mark.slow
def test_a_reader_who_leaves_early_gets_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = in_a_process("clean", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        done = in_a_process("clean", stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == (
        "gpuenergy: error: The output cannot be written: No space left on device.\n"
    )


@pytest.mark.slow
def test_a_terminal_without_unicode_gets_no_traceback(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = in_a_process("report", str(H200), stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"k01 +[0-9.]+ \\xb5s ", done.stdout)


def test_a_command_makes_no_parser_of_another(monkeypatch):
    made = []
    import_module = importlib.import_module

    def noted(name: str, *arguments: str) -> ModuleType:
        made.append(name.partition("pytest_gpuenergy.commands.")[2])
        return import_module(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", noted)
    assert cli.main(["history", "--help"]) == 0
    assert [name for name in made if name in cli.COMMANDS] == ["history"]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pytest_gpuenergy import cli; cli.build_parser(); "
        "print(*sys.modules.keys() & "
        "{'numpy', 'tvm', 'cupy', 'torch', 'matplotlib', 'pytest', 'pynvml'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])},
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("command", "function"),
    [("doctor", "run"), ("powercap show", "_show"), ("history", "run"), ("clean", "run")],
)
def test_every_command_removes_what_dead_runs_left_in_memory(
    command, function, tmp_path, monkeypatch
):
    monkeypatch.setattr("pytest_gpuenergy.support.scratch._SHARED_MEMORY", tmp_path)
    module = f"pytest_gpuenergy.commands.{command.split()[0]}"
    monkeypatch.setattr(f"{module}.{function}", lambda _: 0)
    left = tmp_path / "gpuenergy-999999999-abc"
    left.mkdir()
    (left / "arena").write_bytes(b"x")
    cli.main(command.split())
    assert not left.exists()
