"""The study of how long calls take at each place in a layer."""

from __future__ import annotations

import call_places
import pytest
from recorded_profile import BLOOM


def test_each_place_of_a_layer_has_its_time_and_that_alone(capsys):
    assert call_places.main([str(BLOOM), "--step", "0"]) == 0
    *lines, _, closing = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [int(row[0]) for row in rows] == list(range(25))
    # The same call, by what it launches and takes alone, after other kernels.
    first, second, third = (rows[place] for place in (17, 19, 22))
    assert first[4] == second[4] == third[4]
    assert float(first[3]) < float(second[3]) < float(third[3])
    assert closing == "Means over layers are +0.29% above their medians."


@pytest.mark.parametrize("step", ["7"])
def test_a_step_that_is_not_there_is_refused(step, capsys):
    assert call_places.main([str(BLOOM), "--step", step]) == 2
    assert "no layers that make equally many calls" in capsys.readouterr().err
