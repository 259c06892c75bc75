"""The study of the template for convolutions judges the stored trials."""

from __future__ import annotations

import gzip
import json

import convolution_estimate
import pytest
from convolution_estimate import TRIALS, Layer, read_layers, speed_tables
from convolution_results import regret_table

from pytest_gpuenergy.workloads import Conv2d

CONV = Conv2d.of("c", 1, 8, 8, 8, 8, 3, 3, 1, 1, mode="tf32")


def test_regret_is_relative_to_the_fastest_kernel():
    layer = Layer(CONV, [3.0, 4.0, 2.0, 1.0], {"nchw": 4.0, "nhwc": 2.0})
    assert [layer.regret(first) for first in (1, 3, 4)] == [2.0, 1.0, 0.0]
    *_, of_all = regret_table([layer]).splitlines()
    assert of_all == "| all | 1 | 4 | 200.0% | 200.0% | 100.0% | 100.0% |"


def test_cudnn_is_compared_in_the_same_layout_first():
    layers = [Layer(CONV, [2.0], {"nchw": n, "nhwc": 1.0}) for n in (4.0, 16.0)]
    (table,) = speed_tables(layers)
    assert "| c | 2.0 | 4.0 | 1.0 | 2.00 | 0.50 |" in table
    assert table.endswith("| geometric mean |  |  |  | 4.00 | 0.50 |")


def test_the_stored_trials_are_read_and_printed(capsys):
    layers = read_layers(TRIALS)
    assert len(layers) == 70
    assert all(len(layer.times_us) >= 11 for layer in layers)
    assert convolution_estimate.main([]) == 0
    assert capsys.readouterr().out.count("| geometric mean |") == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", gzip.compress(b"[]"), gzip.compress(b'{"rows":')],
    ids=["empty", "plain", "list", "truncated"],  # compressed bytes have the time in them
)
def test_a_file_without_trials_is_refused(content, tmp_path, capsys):
    path = tmp_path / "trials.json.gz"
    path.write_bytes(content)
    assert convolution_estimate.main([str(path)]) == 2
    assert "has no trials of convolutions" in capsys.readouterr().err


def test_a_file_that_does_not_name_a_layer_is_refused(tmp_path, capsys):
    stored = json.loads(gzip.decompress(TRIALS.read_bytes()))
    path = tmp_path / "trials.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**stored, "layers": {}}).encode()))
    assert convolution_estimate.main([str(path)]) == 2
    assert "has no trials of convolutions" in capsys.readouterr().err
