"""What a profiler has recorded, as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from profiler_traces import layer

from pytest_gpuenergy.replay import read_trace, write_trace
from pytest_gpuenergy.support import ReportError


class Recorded:
    """A profiler that writes ``text``; None if it does not get as far as a file."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def export_chrome_trace(self, path: str) -> None:
        if self.text is not None:
            Path(path).write_text(self.text)


WHOLE = json.dumps({"traceEvents": layer()}) + "\n"


def test_a_trace_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "trace.json.gz"
    write_trace(Recorded(WHOLE), path)
    assert len(read_trace(path)) == len(layer())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", [None, "", WHOLE[:-2]])
def test_a_trace_that_is_not_whole_leaves_an_earlier_one_as_it_was(tmp_path, text):
    path = tmp_path / "trace.json.gz"
    write_trace(Recorded(WHOLE), path)
    before = path.read_bytes()
    with pytest.raises(ReportError, match="could not write the whole trace"):
        write_trace(Recorded(text), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
