"""Work that does not fit into this machine's memory is refused before the system kills it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_gpuenergy.engine import Drawing, case_of, seeded_arenas
from pytest_gpuenergy.support import InputError, endless
from pytest_gpuenergy.workloads import Contract, Gemm, Tensor

LARGE = Gemm("large", 46_000, 1, 46_000, mode="float16")


def test_a_reference_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(endless, "available_bytes", lambda: 3 << 30)
    with pytest.raises(InputError, match=r"reference of large needs at least 15\.8 GiB .*3\.0 GiB"):
        case_of(LARGE, Drawing(1))


def test_buffers_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(endless, "available_bytes", lambda: 3 << 30)
    with (
        pytest.raises(InputError, match=r"buffer of large needs at least 3\.9 GiB"),
        seeded_arenas(LARGE, 1),
    ):
        pass


def test_memory_that_runs_out_is_told_in_one_sentence():
    def greedy(_: Mapping[str, Any]) -> dict[str, Any]:
        raise MemoryError

    tensors = (Tensor("x", (4,), "float32", "input"), Tensor("y", (4,), "float32", "output"))
    with pytest.raises(InputError, match="reference of mine needs more memory than this machine"):
        case_of(Contract("mine", tensors, greedy), Drawing(1))


def test_this_machine_has_memory_left():
    left = endless.available_bytes()
    assert left is None or left > 1 << 20
