"""What ssh, srun and Python say when they fail, as one sentence with what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuenergy.fleet.complaints import reason_in


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
