"""What ssh, srun and Python say when they fail, as one sentence with what to do."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.fleet import reason_in, usage_problem


@given(st.text(max_size=400))
def test_anything_becomes_one_printable_line(text: str) -> None:
    reason = reason_in(text)
    assert bool(reason) == bool(text.strip())
    assert not reason or (reason.isprintable() and reason.endswith((".", "!", "?")))


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("Warning: slow.\nssh: connect to host a port 22: Connection refused\n", "ssh: connect to"),
        ("No ED25519 key is known\nHost key verification failed.\n", "compare the key it shows"),
        ("me@a: Permission denied (publickey,password).\n", "ssh-copy-id"),
        ("ModuleNotFoundError: No module named 'pytest_gpuenergy'\n", "install pytest-gpuenergy"),
        ("/usr/bin/env: \u2018/x\u2019: No such file or directory\n", "give python=PATH"),
        (
            "srun: error: Node failure on node2\nsrun: Job step aborted: Waiting up to 32 seconds "
            "for job step to finish.\n",
            "srun: error: Node failure on node2.",
        ),
        ("Connection closed by 10.0.0.1 port 22\n", "Connection closed by 10.0.0.1 port 22."),
    ],
)
def test_the_reason_is_found_among_what_is_printed(printed: str, reason: str) -> None:
    assert reason in reason_in(printed)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "usage: -c [options] [file_or_dir]\n-c: error: unrecognized arguments: --kernels\n"
            "  inifile: /p/pyproject.toml\n  rootdir: /p",
            "unrecognized arguments: --kernels: the project there has another conftest.py than "
            "here: copy it, or give dir=PATH.",
        ),
        ("--gpuenergy-seed: x is no number.\nMore.", "--gpuenergy-seed: x is no number."),
    ],
)
def test_a_usage_error_is_told_without_its_usage(said: str, reason: str) -> None:
    assert usage_problem(said) == reason
