"""A kind of workload that nothing here was written for is named, tuned, kept and refused alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, ClassVar

import numpy as np
import pytest
from tuning_fakes import FakeDevice, WordSpace, time_by_digest, word_kernel

from pytest_gpuenergy.kernels import RankedKernel, export_kernels
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import tvm_operator
from pytest_gpuenergy.tuning import Tuner, TuneSettings, TuningGpus, find_records, read_records
from pytest_gpuenergy.workloads import (
    KINDS,
    ErrorBound,
    Tensor,
    Workload,
    all_networks,
    from_parameters,
    parse_shape,
    to_parameters,
)


@dataclass(frozen=True)
class Blend(Workload):
    """output = data weight, element by element."""

    kind: ClassVar[str] = "blend"

    name: str
    size: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        roles: Any = (("data", "input"), ("weight", "input"), ("output", "output"))
        return tuple(Tensor(name, (self.size,), "float32", role) for name, role in roles)

    @property
    def parameters(self) -> Mapping[str, int | str]:
        return {"kind": self.kind, "size": self.size}

    @property
    def flops(self) -> int:
        return self.size

    @property
    def error_bound(self) -> ErrorBound:
        return ErrorBound.for_reduction(1)

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"output": inputs["data"].astype(np.float64) * inputs["weight"]}


class BlendKind:
    name = "blend"
    grammar = "SIZE"
    example = "64"
    networks: ClassVar[Mapping[str, tuple[Workload, ...]]] = {}

    def parse(self, text: str) -> Blend | None:
        return Blend(f"blend_{text}", int(text)) if text.isdecimal() else None

    def format_sizes(self, workload: Workload) -> str:
        return str(workload.parameters["size"])

    def from_sizes(self, name: str, sizes: Sequence[int]) -> Blend:
        return Blend(name, *sizes)

    def from_parameters(self, name: str, parameters: Mapping[str, Any]) -> Blend:
        return Blend(name, **parameters)


@pytest.fixture(autouse=True)
def blend(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: Any = KINDS
    monkeypatch.setitem(kinds, "blend", BlendKind())


def test_it_is_named_on_the_command_line_and_by_a_project(tmp_path):
    assert parse_shape("blend:64") == Blend("blend_64", 64)
    assert parse_shape("mine=blend:64") == Blend("mine", 64)
    with pytest.raises(InputError, match=r"give \[NAME=\]blend:SIZE, such as 64"):
        parse_shape("blend:many")
    text = '[tool.gpuenergy.workloads]\nmine = {kind = "blend", size = 64}\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert all_networks(tmp_path)["project"] == (Blend("mine", 64),)


def test_it_is_tuned_and_its_records_are_found(tmp_path):
    device = FakeDevice(time_by_digest)
    tuner = Tuner(
        gpus=TuningGpus((device,), (lambda *_, **__: None,)),
        make_space=lambda workload: WordSpace(workload, [["lorem", "ipsum"], ["dolor"]]),
        folder=tmp_path,
        settings=TuneSettings(trials=3, keep=2, energy=False),
        tell=lambda _: None,
        live=None,
        stop=Event(),
    )
    (result,) = tuner.tune([Blend("mine", 64)])
    assert result.path.name == "mine_blend_size_64.json"
    other = Blend("other", 64)
    file = read_records(find_records(tmp_path, other))
    assert (file.workload.name, len(file.records)) == ("mine", 2)


def test_it_is_made_again_from_its_parameters():
    assert from_parameters(to_parameters(Blend("mine", 64))) == Blend("mine", 64)


def test_what_cannot_be_done_for_it_is_told(tmp_path):
    with pytest.raises(InputError, match="of the kind blend, which cannot be tuned with TVM"):
        tvm_operator(Blend("mine", 64))
    item = RankedKernel(Blend("mine", 64), 1, word_kernel("x"))
    with pytest.raises(InputError, match="exported driver has no reference"):
        export_kernels([item], tmp_path)
