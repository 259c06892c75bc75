"""What is said about faults that there are not, however long their names are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpuenergy.emulator import parse_faults
from pytest_gpuenergy.support import InputError

LONG = "x" * 70_000


@pytest.mark.parametrize(
    "faults",
    [
        {LONG: True},
        {LONG: "no_permission"},
        {"power_limit": LONG},
        {"power_limit": [[LONG]]},
        {"slower": {LONG: 1}},
        {"slower": {"percent": LONG}},
        {LONG: {"after_s": "soon"}},
    ],
)
def test_a_name_of_any_length_fits_the_message(faults: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        parse_faults(json.dumps(faults))
    assert len(str(caught.value)) < 1000
