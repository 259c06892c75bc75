"""What the page about improving kernels shows can be used as it is."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from pytest_gpuenergy.search import SearchParameters, read_spec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/optimize.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_spec_can_be_read(tmp_path):
    (tmp_path / "softmax.json").write_text(block("json"))
    source = (ROOT / "bench/search/kernels/softmax.cu").read_text()
    (tmp_path / "softmax.cu").write_text(source)
    assert read_spec(tmp_path / "softmax.json").source == source


def test_the_python_code_writes_a_spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(block("python"), {})
    assert read_spec(tmp_path / "double.json").name == "double"


def test_the_table_has_all_parameters_with_their_defaults():
    shown: dict[str, float] = {}
    for names, values in re.findall(r"^\| (`[A-Z_`, ]+`) \| ([-0-9., ]+) \|", PAGE, re.MULTILINE):
        parts = zip(names.split(","), values.split(","), strict=True)
        shown |= {name.strip(" `").lower(): float(value) for name, value in parts}
    assert shown == asdict(SearchParameters())
