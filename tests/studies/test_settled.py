"""``studies/settled.py`` on the emulated GPU."""

from __future__ import annotations

import json

import pytest
import settled


@pytest.mark.slow
@pytest.mark.parametrize("profile", [pytest.param("h100", marks=pytest.mark.thorough), "h200"])
def test_items_are_those_of_a_settled_card(tmp_path, capsys, profile):
    path = tmp_path / "settled.json"
    device = ["--gpu-device", f"emulated:{profile}"]
    options = ["--kernels", "axpy", "--seconds", "20", "--json", str(path)]
    assert settled.main([*device, *options]) == 0
    items = json.loads(path.read_text())["items"]
    assert [(one["state"], one["held"]) for one in items] == [
        ("rested", True),
        ("warm", True),
    ]
    assert all(abs(one["energy_error"]) < 0.01 for one in items)
    assert "1 of 1 intervals hold the reference" in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_measured_is_kept_when_the_study_is_killed(tmp_path, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(settled, "reference_of", killed)
    path = tmp_path / "settled.json"
    options = ["--gpu-device", "emulated:h200", "--kernels", "axpy", "--json", str(path)]
    with pytest.raises(KeyboardInterrupt):
        settled.main([*options, "--preheat", "0"])
    readings = json.loads(path.read_text())["readings"]
    assert [(one["state"], one["kernel"]) for one in readings] == [("rested", "axpy")]


def test_a_reference_that_is_too_short_is_refused(tmp_path, capsys):
    path = tmp_path / "settled.json"
    assert settled.main(["--seconds", "5", "--json", str(path)]) == 2
    assert "give at least 20" in capsys.readouterr().err
    assert not path.exists()
