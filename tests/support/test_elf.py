"""Sections of ELF files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_gpuenergy.support import sections


def test_a_program_has_code_and_names():
    content = Path(sys.executable).read_bytes()
    found = dict(sections(content))
    assert len(found[".text"]) > 0
    assert found[".text"] in content
    assert ".shstrtab" in found


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(59)])
def test_what_is_none_has_no_sections(content):
    assert list(sections(content)) in ([], [("", b"")])
