"""Printed text contains no commands to the terminal or to GitHub's runner."""

from __future__ import annotations

import re
import sys
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
    KernelFault,
    printable,
    printable_output,
    printable_text,
)

HOSTILE = st.text() | st.text("\n\r\t\x1b\x9b\x07\u2028 :a")


@given(HOSTILE)
@example("::error::pwned")
@example("  :::stop-commands::x")
def test_a_printed_line_is_one_line_that_commands_nothing(text):
    line = printable(text)
    assert len(line.splitlines()) <= 1
    assert line.isprintable()
    assert not line.lstrip().startswith("::")


@given(st.from_regex(r"[\wµ·±%()+,.-][ \wµ·±%()+,.:-]*", fullmatch=True))
def test_what_people_write_is_printed_as_it_is(text):
    assert printable(text) == text


def commands_nothing(text: str) -> bool:
    lines = text.split("\n")
    return all(line.replace("\t", " ").isprintable() for line in lines) and not any(
        line.lstrip().startswith("::") for line in lines
    )


@given(HOSTILE)
@example("a\n\t::error::pwned")
def test_printed_text_keeps_its_lines_and_commands_nothing(text):
    shown = printable_text(text)
    assert commands_nothing(shown)
    assert shown.count("\n") == text.count("\n")


@given(st.from_regex(r"[\w(){};\n\t][\w (){};\n\t]*", fullmatch=True))
def test_what_people_write_keeps_its_lines_and_tabs(text):
    assert printable_text(text) == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(HOSTILE, max_size=6))
@example([":", ":error::pwned"])
def test_what_is_printed_in_pieces_commands_nothing(capsys, pieces):
    with printable_output():
        for piece in pieces:
            sys.stdout.write(piece)
    assert capsys.readouterr().out == printable_text("".join(pieces))


@pytest.mark.parametrize(
    "error",
    [InputError("x\x1b[2J\n::error::y"), DeviceError("\x9b31m"), KernelFault("compile", "\r::x")],
    ids=lambda error: type(error).__name__,
)
def test_no_error_commands_the_terminal(error):
    assert commands_nothing(str(error))


def test_an_error_keeps_its_lines():
    assert re.fullmatch("a\n  b", str(DeviceError("a\n  b")))


@pytest.mark.tvm
def test_what_tune_says_meanwhile_is_one_line_that_commands_nothing(capsys, monkeypatch, tmp_path):
    layer = "1,4,4,2,2,1,1,1,0"
    hostile = InputError("TVM says\n::error::y")
    monkeypatch.setattr(
        "pytest_gpuenergy.tuners.tvm.tvm_space.require_space", Mock(side_effect=hostile)
    )
    shapes = ["--shape", f"a={layer}", "--shape", "b=1,4,4,2,2,3,3,1,1"]
    assert main(["tune", *shapes, "--out", str(tmp_path), "--gpu-device", "emulated"]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "a: not tuned: TVM says : :error::y"
