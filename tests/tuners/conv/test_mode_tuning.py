"""Convolutions in each mode and layout are tuned, kept, verified, resumed and exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
from command_outcomes import ended

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.kernels import Kernel, Launch, Origin
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import load_records, records_of
from pytest_gpuenergy.tuners.template_spaces import TEMPLATES
from pytest_gpuenergy.tuners.tvm import tvm_requirements
from pytest_gpuenergy.tuning import CardResources, TemplateParameters
from pytest_gpuenergy.workloads import Conv2d, Workload

NAIVE = """
#include <cuda_fp16.h>
constexpr int N = {N}, H = {H}, W = {W}, CO = {CO}, CI = {CI}, KH = {KH}, KW = {KW};
constexpr int STRIDE = {strides}, PADDING = {padding}, OH = {OH}, OW = {OW};
extern "C" __global__ void naive({T}* data, {T}* weight,{BIAS} {T}* output) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= N * CO * OH * OW) return;
  const int n = i / (CO * OH * OW), o = i / (OH * OW) % CO, y = i / OW % OH, x = i % OW;
  float sum = {START};
  for (int c = 0; c < CI; ++c) {{
    for (int kh = 0; kh < KH; ++kh) {{
      for (int kw = 0; kw < KW; ++kw) {{
        const int row = y * STRIDE + kh - PADDING, column = x * STRIDE + kw - PADDING;
        if (row < 0 || row >= H || column < 0 || column >= W) continue;
        sum += float(data[{DATA}]) * float(weight[{WEIGHT}]);
      }}
    }}
  }}
  output[{OUTPUT}] = {T}({END});
}}
"""
PLACES = {
    "nchw": {
        "DATA": "((n * CI + c) * H + row) * W + column",
        "WEIGHT": "((o * CI + c) * KH + kh) * KW + kw",
        "OUTPUT": "i",
    },
    "nhwc": {
        "DATA": "((n * H + row) * W + column) * CI + c",
        "WEIGHT": "((o * KH + kh) * KW + kw) * CI + c",
        "OUTPUT": "((n * OH + y) * OW + x) * CO + o",
    },
}


@dataclass(frozen=True, kw_only=True)
class NaiveParameters(TemplateParameters[Conv2d]):
    """A thread for each output."""

    template: ClassVar[str] = "naive"

    block: int = 64

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        return isinstance(workload, Conv2d)

    @classmethod
    def fitting(cls, _conv: Conv2d, _card: CardResources) -> Iterator[NaiveParameters]:
        yield from (cls(block=block) for block in (32, 64, 128))

    @property
    def threads(self) -> int:
        return self.block

    def registers(self, _workload: Conv2d) -> int:
        return 32

    def shared_bytes(self, _workload: Conv2d) -> int:
        return 0

    def choices(self, _workload: Conv2d) -> dict[str, object]:
        return {"tile": self.block}

    def cycles(self, _workload: Conv2d, _card: CardResources) -> float:
        return float(self.block)

    def kernel(self, workload: Conv2d) -> Kernel:
        s = workload.shape
        dtype = {"float16": "half"}.get(workload.dtype, "float")
        source = NAIVE.format(
            **vars(s) | PLACES[workload.layout],
            OH=s.OH,
            OW=s.OW,
            T=dtype,
            BIAS=f" {dtype}* bias," if workload.bias else "",
            START="float(bias[o])" if workload.bias else "0",
            END="fmaxf(sum, 0.0f)" if workload.relu else "sum",
        )
        outputs = s.N * s.CO * s.OH * s.OW
        arguments = tuple(tensor.name for tensor in workload.tensors)
        launch = Launch("naive", (-(-outputs // self.block), 1, 1), (self.block, 1, 1), arguments)
        details = {"template": self.template, **self.numbers}
        return Kernel(source, (launch,), origin=Origin("template", None, details))


@pytest.fixture
def templates() -> Iterator[dict[str, Any]]:
    """The templates, which are as they were after the test, also in their order."""
    known = cast("dict[str, Any]", TEMPLATES)
    before = dict(known)
    yield known
    known.clear()
    known.update(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        pytest.param("3xtf32", ["--layout", "nhwc", "--bias"], id="split"),
        pytest.param("float16", ["--relu"], id="half", marks=pytest.mark.thorough),
        pytest.param("tf32", ["--layout", "nhwc"], id="tf32", marks=pytest.mark.thorough),
    ],
)
def test_it_is_tuned_kept_resumed_and_exported(mode, words, tmp_path, templates, capsys):
    templates.clear()
    templates["naive"] = NaiveParameters
    options = ["--mode", mode, *words]
    sizes, tuned = "tiny=2,5,7,6,4,3,2,2,1", tmp_path / "tuned"
    command = ["tune", "--shape", sizes, *options, "--gpu-device", "emulated", "--out", str(tuned)]
    command += ["--keep", "2", "--no-energy", "--json"]
    assert main([*command, "--trials", "2"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    assert (outcome["tried"], outcome["valid"], outcome["kept"]) == (2, 2, 2)
    assert main([*command, "--trials", "3", "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tried"] == 3

    (path,) = tuned.glob("*.json")
    workload: Any = load_records(path).workload
    assert workload == Conv2d.of("tiny", 2, 5, 7, 6, 4, 3, 2, 2, 1).varied(
        mode=mode,
        layout="nhwc" if "nhwc" in words else "nchw",
        bias="--bias" in words,
        relu="--relu" in words,
    )
    assert workload.signature in path.name
    assert records_of(tuned, workload).ranks == (1, 2)
    arguments = ["--records", tuned, "--mode", mode, "--kernels", "top1"]
    ended(0, "kernels", "export", *arguments, "--out", tmp_path / "exported")
    assert (tmp_path / "exported" / "kernels" / workload.name / "kernel01.cu").is_file()


def test_a_mode_that_no_template_has_is_told(tmp_path, templates):
    for name in [name for name, kind in templates.items() if kind.computes(LAYER)]:
        del templates[name]
    command = ["tune", "--case", "case2", "--mode", "3xtf32", "--gpu-device", "emulated"]
    said = ended(2, *command, "--out", tmp_path / "tuned").err
    assert "case2_3xtf32 is a convolution with mode=3xtf32, which no template computes." in said


LAYER = Conv2d.of("layer", 1, 9, 9, 8, 8, 3, 3, 1, 1, mode="3xtf32")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--case", "case2", "--mode", "fp8"], "--mode 'fp8' is not known: choose from float32"),
        (["--case", "case2_tf32", "--mode", "3xtf32"], "case2_tf32 has the mode tf32, and --mode"),
        (["--network", "gemm", "--layout", "nhwc"], "kind gemm, which has no --layout: leave out"),
        (["--case", "case2_nhwc"], "no template computes: choose mode 3xtf32, which is as exact."),
        (["--case", "case2_relu", "--tuner", "tvm"], "--tuner template in mode 3xtf32, which is"),
        (["--case", "case2_tf32", "--tuner", "tvm"], "with --tuner template."),
    ],
)
def test_what_cannot_be_tuned_is_refused(words, said, tmp_path, monkeypatch):
    monkeypatch.setattr(tvm_requirements, "check_tvm", lambda: "0.27.0")  # takes seconds
    command = ["tune", *words, "--gpu-device", "emulated", "--out", tmp_path / "tuned"]
    assert said in ended(2, *command).err


def test_a_box_of_channels_that_do_not_lie_together_is_refused():
    with pytest.raises(InputError, match="cannot find the windows of layer: it needs"):
        TEMPLATES["implicit"](boxed=True).kernel(LAYER)


def test_an_empty_folder_for_records_is_refused():
    assert "argument --out: it is empty: give a path" in ended(2, "tune", "--out", "").err
