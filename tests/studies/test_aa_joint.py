"""How a session's error is split into a joint part and each item's own."""

from __future__ import annotations

from pathlib import Path

import aa_joint
import numpy as np
import pytest
from gate_shift_simulation import scaled
from gate_simulation import Session, drawn_measurement
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.report import Report, write_json


@pytest.mark.parametrize("joint", [0.0, 0.03])
def test_a_joint_error_is_told_from_the_items_own(tmp_path, joint):
    rng = np.random.default_rng(3)
    measure = drawn_measurement(rng)
    paths: list[Path] = []
    for number in range(12):
        common = 1 + joint * rng.standard_normal()
        measured = []
        for label in map(str, range(10)):
            found = measure(label, Session(0.0, 0.0), 1.0)
            factor = common * (1 + 0.01 * rng.standard_normal())
            found = scaled(found, {Metric.ENERGY: factor, Metric.EDP: factor})
            kernel = replace(found.kernel, digest=label)
            measured.append(replace(found, kernel=kernel, gpu_uuid="GPU-1"))
        paths.append(tmp_path / f"{number}.json")
        write_json(Report(a_run(run_id=str(number)), tuple(measured)), paths[-1])
    ((_, *counts, common_words, own_words, _),) = aa_joint.rows(paths)
    assert counts == ["12", "10"]
    assert float(own_words.split()[0]) == pytest.approx(1.0, abs=0.2)
    assert float(common_words.split()[0]) == pytest.approx(100 * joint, abs=1.0)
