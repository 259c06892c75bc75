"""Texts that NumPy reads as types, or fails to read, where a type of numbers is expected."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.engine import read_job, write_job
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor, is_known

TEXTS = [
    *("f4,f8", "f4,", "V16", "O", "object", "S5", "U3", "M8[ns]", "m8", "c16", "complex64"),
    *("(2,)f4", "(1000000000,)f4", "(1000000000000,1000000000)f8", "('f4',(2,))", "2f4", "(", "["),
    *(">f4", ">i8", "float128", "g", "longdouble", "", " ", "f4\0", "{'names': ['a']}", "f4:"),
    *("x" * 100_000, "bfloat16,f4", "\u00e9", "\ud800"),
]
SCALE = Contract(
    "scale",
    (Tensor("x", (4,), "float32", "input"), Tensor("y", (4,), "float32", "output")),
    lambda inputs: {"y": inputs["x"]},
    values=(Scalar("a", "float32", 1.0),),
)
KERNEL = Kernel(
    'extern "C" __global__ void scale(const float* x, float* y, float a) {}',
    (Launch("scale", (1, 1, 1), (4, 1, 1), ("x", "y", "a")),),
)
KNOWN = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint64", "bool"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_tensor_of_another_type_is_refused(text):
    tensor = Tensor("y", (4,), text, "output")
    with pytest.raises(InputError, match="give one such as float32") as raised:
        Contract("mine", (tensor,), lambda _: {"y": np.zeros(4)})
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("text", TEXTS)
def test_a_scalar_of_another_type_is_refused(text):
    with pytest.raises(InputError, match="give one such as float32") as raised:
        Scalar("n", text, 1)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("text", TEXTS[:-1])
@pytest.mark.parametrize("kind", ["tensors", "scalars"])
def test_a_job_of_another_type_is_refused(tmp_path, text, kind):
    name = write_job(tmp_path, Job.of(KERNEL, SCALE), SCALE)
    path = tmp_path / "jobs" / f"{name}.json"
    content = json.loads(path.read_text())
    content["io"][kind][0]["dtype"] = text
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="give one such as float32"):
        read_job(tmp_path, name)


@pytest.mark.parametrize("text", KNOWN)
def test_types_of_numbers_are_known(text):
    assert is_known(text)


@pytest.mark.parametrize("value", [None, 4, float, np.float32, np.dtype("float32"), b"f4", ["f4"]])
def test_what_is_no_text_is_not_known(value):
    assert not is_known(value)


@given(st.text(max_size=25) | st.text("fiubOVSUMmc48(),:[]'<>=12 ", max_size=12))
def test_a_known_type_is_a_plain_number(text):
    if is_known(text) and text != "bfloat16":
        found = np.dtype(text)
        assert found.subdtype is found.names is None
        assert found.kind in "fiub"
        assert found.isnative
