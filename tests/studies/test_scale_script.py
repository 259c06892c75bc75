"""What size costs: the script counts and measures what it says, however long that takes here."""

from __future__ import annotations

import pytest
import scale

from pytest_gpuenergy.report import load_report


def rows(text: str) -> dict[str, int]:
    """Measurements by part."""
    header, rule, *lines = text.splitlines()
    assert header == "| part | measurements | wall (s) | processor (s) | at most (s) |"
    assert rule == "|---|---:|---:|---:|---:|"
    found = {}
    for line in lines:
        part, count, wall, processor, _ = (cell.strip() for cell in line.strip("|").split("|"))
        assert float(wall) >= 0
        assert float(processor) >= 0
        found[part] = int(count)
    return found


@pytest.mark.slow
def test_reports_are_loaded_compared_and_shown(tmp_path, capsys):
    folder = tmp_path / "kept"
    sizes = ["--items", "30", "--load", "200", "--folder", str(folder)]
    assert scale.main(["--parts", "load,compare,page", *sizes]) == 0
    assert rows(capsys.readouterr().out) == {"load": 200, "compare": 30, "page": 30}
    base, new = (load_report(folder / f"{name}.json") for name in ("base", "new"))
    assert [m.identity for m in base.measurements] == [m.identity for m in new.measurements]
    assert base.measurements != new.measurements
    assert (folder / "page.html").stat().st_size > 0


def test_an_enlarged_report_has_no_item_twice():
    made = scale.enlarged(load_report(scale.PUBLISHED), 400, "run", 0).measurements
    assert len({m.node_id for m in made}) == len({m.identity for m in made}) == 400


@pytest.mark.slow
def test_a_session_is_run_and_its_end_timed(capsys):
    assert scale.main(["--parts", "session", "--items", "10"]) == 0
    assert rows(capsys.readouterr().out) == {"session": 10}
