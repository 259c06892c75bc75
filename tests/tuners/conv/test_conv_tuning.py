"""Convolutions in groups are tuned, kept, resumed and exported without TVM."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.support import FormError, InputError, UnavailableError
from pytest_gpuenergy.tuners import (
    FORMS,
    TEMPLATE_FORM,
    DepthwiseParameters,
    GroupedParameters,
    kernels_of,
    load_records,
    records_of,
)
from pytest_gpuenergy.tuners.tvm import tvm_requirements as requirements
from pytest_gpuenergy.tuning import TEMPLATE, find_records
from pytest_gpuenergy.workloads import CASES, Conv2d, Gemm

DEPTHWISE = Conv2d.of("dw", 1, 10, 12, 8, 8, 3, 3, 1, 1, 1, 8)
GROUPED = Conv2d.of("gr", 1, 6, 6, 8, 8, 3, 3, 1, 1, 1, 2)
EMULATED = ("--gpu-device", "emulated", "--no-energy", "--keep", "2")


def no_tvm() -> str:
    raise UnavailableError("TVM is missing.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "entry"),
    [
        pytest.param(DEPTHWISE, "depthwise", id="depthwise"),
        pytest.param(GROUPED, "grouped", id="grouped", marks=pytest.mark.thorough),
    ],
)
def test_it_is_tuned_kept_resumed_and_exported(workload, entry, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(requirements, "check_tvm", no_tvm)
    sizes = ",".join(str(size) for size in vars(workload.shape).values())
    tuned = tmp_path / "tuned"
    command = ["tune", "--shape", f"{workload.name}={sizes}", *EMULATED, "--out", str(tuned)]
    assert main([*command, "--trials", "3", "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    assert (outcome["tried"], outcome["valid"], outcome["kept"]) == (3, 3, 2)
    assert main([*command, "--trials", "3"]) == 0
    assert "already complete" in capsys.readouterr().err
    assert main([*command, "--trials", "4", "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tried"] == 4

    file = records_of(tuned, workload)
    (kernel,) = kernels_of(file, [1])
    assert kernel.launches[0].entry == kernel.origin.details["template"] == entry
    assert (kernel.origin.kind, kernel.origin.rank) == ("template", 1)
    exported = tmp_path / "exported"
    words = ["--records", str(tuned), "--kernels", "top1", "--out", str(exported)]
    assert main(["kernels", "export", *words]) == 0
    assert f"{entry}(" in (exported / "kernels" / workload.name / "kernel01.cu").read_text()


def test_without_records_the_usual_tuner_is_named(tmp_path):
    with pytest.raises(UnavailableError, match=r'tune --shape "gr=conv2d:.*" --tuner template'):
        records_of(tmp_path, GROUPED)
    with pytest.raises(UnavailableError, match=r"tune --case case7 --out"):
        records_of(tmp_path, CASES["case7"])
    with pytest.raises(InputError, match=r"--shape .* --tuner template --out"):
        find_records(tmp_path, DEPTHWISE, variant="template")


def stored(chosen: Any, **changed: Any) -> dict[str, Any]:
    recipe = TEMPLATE_FORM.with_time(TEMPLATE_FORM.recipe(chosen), 0.5)
    content: dict[str, Any] = json.loads(recipe)
    return {**content, **changed}


@pytest.mark.parametrize("parameters", [DepthwiseParameters(), GroupedParameters(channels=2)])
def test_what_is_stored_is_read_again(parameters):
    form = FORMS[TEMPLATE]
    recipe = form.check(stored(parameters), DEPTHWISE)
    assert TEMPLATE_FORM.parameters(recipe) == parameters
    assert form.identity(recipe) == TEMPLATE_FORM.recipe(parameters)


@pytest.mark.parametrize(
    ("workload", "value", "message"),
    [
        (GROUPED, stored(DepthwiseParameters()), "depthwise does not compute gr"),
        (Gemm("g", 8, 8, 8), stored(GroupedParameters()), "grouped does not compute g"),
        (DEPTHWISE, stored(DepthwiseParameters(), template="simt"), "simt needs asynchronous"),
        (DEPTHWISE, stored(DepthwiseParameters(), template="none"), "simt or mma .* or grouped"),
        (DEPTHWISE, stored(DepthwiseParameters(), parameters={}), "needs columns"),
    ],
)
def test_recipes_of_something_else_are_refused(workload, value, message):
    with pytest.raises(FormError, match=message):
        FORMS[TEMPLATE].check(value, workload)


@pytest.mark.slow
def test_a_changed_record_is_refused(tmp_path):
    sizes = ",".join(str(size) for size in vars(DEPTHWISE.shape).values())
    command = ["tune", "--shape", f"dw={sizes}", *EMULATED, "--trials", "2", "--out"]
    assert main([*command, str(tmp_path)]) == 0
    path = find_records(tmp_path, DEPTHWISE, variant="template")
    path.write_text(path.read_text().replace('"rows":', '"rows":-'))
    with pytest.raises(InputError, match="needs rows to be a whole number from 1"):
        load_records(path)
