"""Kernel specs: reading them, refusing wrong ones, and what they describe."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from kernel_specs import SCALE, SOURCE, launch_with, spec_with, write

from pytest_gpuenergy.search import (
    KernelSpec,
    Layout,
    TensorSpec,
    check_fits,
    fixed_input,
    kernel_of,
    read_spec,
    tensor_layout,
    workload_of,
    write_spec,
)
from pytest_gpuenergy.search.spec import reference
from pytest_gpuenergy.search.validation import variant_refusals
from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.workloads import ErrorBound, is_untouched

X, Y = SCALE["tensors"]
BY, N = SCALE["scalars"]


def packed(values: Any) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes())).decode()


def packed_with_more(values: Any) -> str:
    return base64.b64encode(base64.b64decode(packed(values)) + b"more").decode()


def with_x(**fields: Any) -> dict[str, Any]:
    return spec_with(tensors=[{**X, **fields}, Y])


def with_y(**fields: Any) -> dict[str, Any]:
    return spec_with(tensors=[X, {**Y, **fields}])


def chosen(imports: str, decorator: str) -> dict[str, Any]:
    """Return a Triton kernel with a decorator that chooses constants."""
    source = f"{imports}@{decorator}\n@triton.jit\ndef scale(x, y, by, n): pass\n"
    return spec_with(language="triton", source=source, launch={"grid": [1]})


class TestRefusals:
    @pytest.mark.parametrize(
        ("spec", "why"),
        [
            (spec_with(schema_version=None), "its schema_version is None"),
            (spec_with(schema_version=2), "its schema_version is 2, but this gpuenergy reads 1"),
            (spec_with(nonsense=1), "it has the unknown field nonsense"),
            (with_x(role="both"), "'both', which is not allowed: give inout, input or output"),
            (with_x(bound=1e-3), "x is an input and has a bound or steps"),
            (with_y(bound=1.5), "y has bound 1.5 instead of a number from 0 to 1"),
            (with_y(steps=1), "y has steps, of which only integers can have some"),
            (spec_with(entry=None), "entry"),
            (spec_with(tensors=None), "tensors"),
            (spec_with(language="opencl"), "opencl"),
            (spec_with(source=None), "either source, the text itself, or file, a path"),
            (spec_with(file="scale.cu"), "either source, the text itself, or file, a path"),
            (spec_with(source="  \n"), "a kernel needs source text"),
            (spec_with(name="../up"), "its name is '../up'"),
            (spec_with(entry="scale; evil"), "is not the name of a function"),
            (spec_with(arguments=["x", "y", "z", "n"]), "it has the argument 'z'"),
            (spec_with(arguments=["x", "by", "n"]), "its tensor y is not among the arguments"),
            (spec_with(arguments=["x", "y", ["by", ["z"]]]), "it has the argument 'z'"),
            (spec_with(arguments=[["x", "by"], "n"]), "its tensor y is not among the arguments"),
            (spec_with(arguments=["x", [3]]), "'scale' cannot have the argument 3: give the name"),
            (
                chosen("import triton\n", "triton.jit") | {"arguments": [["x", "y"], "by"]},
                "it has the struct {x, y}, which a Triton function cannot take",
            ),
            (spec_with(scalars=[BY, N, N]), "two things that are called n"),
            (spec_with(launch=launch_with(constants={"N": 4})), "its constant N has the name"),
            (spec_with(launch=launch_with(constants={"a b": 4})), "cannot use the name 'a b'"),
            (spec_with(launch=launch_with(grid=[])), "launch.grid needs one to three sizes"),
            (spec_with(launch=launch_with(grid=["N // 5000"])), "launch.grid is 0"),
            (spec_with(launch=launch_with(grid=["M"])), "launch.grid: The size 'M'"),
            (spec_with(launch=launch_with(block=[])), "launch.block needs one to three"),
            (spec_with(launch=launch_with(block=[2048])), "launch.block has 2048 threads"),
            (spec_with(launch=launch_with(shared_bytes=-1)), "launch.shared_bytes is -1"),
            (spec_with(language="triton"), "for CUDA only"),
            (spec_with(sizes=[]), "it has no sizes"),
            (spec_with(sizes=[{"N": 4000}, {"M": 5}]), r"sizes\[1\] has other names"),
            (spec_with(sizes=[{"N": 0}]), r"sizes\[0\].N is 0"),
            (spec_with(sizes=[{"N": 5}, {"N": 5}]), "two of its sizes are the same"),
            (spec_with(sizes=[{"N": "5"}]), "is a string instead of"),
            (spec_with(sizes=[{"N": 1 << 38}]), "tensor x takes more than 64 GiB"),
            (spec_with(tolerance=0), "its tolerance is 0"),
            (spec_with(flops="-N"), "flops is -4000"),
            (spec_with(flops="N / 2"), "only integers, names"),
            (spec_with(reduction_length=0), "reduction_length is 0"),
            (spec_with(reference={"z": "x"}), "its reference has z instead of its outputs: y"),
            (spec_with(reference={"y": "x +"}), "the reference of y is not a Python expression"),
            (spec_with(reference={"y": "x * M"}), "the reference of y uses M, which is no input"),
            (spec_with(reference={"y": "open('f')"}), "the reference of y uses open"),
            (spec_with(scalars=[BY, {**N, "dtype": "int8"}]), "scalar 'n' has value 4000"),
            (spec_with(scalars=[BY, {**N, "value": "M"}]), "'M' is not a known name"),
            (with_x(dtype="complex64"), "tensor x has dtype 'complex64'"),
            (with_x(dtype="int32"), "tensor x is int32: give it an init such as randint"),
            (with_x(init="uniform", low=1, high=1), "tensor x has low 1 and high 1"),
            (with_x(dtype="int32", init="randint", high=1.5), "no whole numbers"),
            (with_x(dtype="uint8", init="randint", low=-1), "a range that uint8 cannot represent"),
            (with_x(dtype="int8", init="randint", high=129), "a range that int8 cannot represent"),
            (with_x(init="nonsense"), "nonsense"),
            (with_x(shape=["N - 4000"]), "tensor x has 0 in its shape"),
            (with_x(shape=["N"] * 9), "more than 8 dimensions"),
            (with_x(strides=[1, 2]), "tensor x has 2 strides for its shape"),
            (with_x(strides=[-1]), "tensor x has -1 in its strides"),
            (with_x(data=[1.0, 2.0]), r"the data of tensor x is no list .* shape \(4000,\)"),
            (with_x(data=[[1.0], [2.0, 3.0]]), "the data of tensor x is no list"),
            (with_x(data="nonsense!"), "is not base64 of zlib-compressed bytes"),
            (with_x(data=packed(np.zeros(7, "f4"))), "does not have the 16000 bytes of float32"),
            (with_x(data=packed(np.zeros(1 << 20))), "does not have the 16000 bytes of float32"),
            (
                with_x(data=packed(np.zeros(9)), shape=["N * 100000"]),
                "tensor x is larger than 256 MiB, too large to be given as data",
            ),
            (with_x(shape=["N * 10000000"], strides=[0], init="ones"), "takes more than 64 GiB"),
            (with_x(shape=[1], data=[1e39]), "has numbers that are no finite float32"),
            (with_x(shape=[1], data=packed(np.array([np.nan], "f4"))), "no finite float32"),
            (with_x(shape=[1], data=packed_with_more(np.zeros(1, "f4"))), "the 4 bytes of float32"),
            (with_x(shape=[1], data=[10**400]), "the data of tensor x is no list"),
            (with_x(init="full", value=1e39), "init full with 1e.39, which float32 cannot"),
            (with_x(dtype="int8", init="full", value=128), "init full with 128, which int8 cannot"),
            (with_x(dtype="int32", init="full", value=1.5), "init full with 1.5, which int32"),
            (with_x(dtype="int8", init="arange"), "init arange with 3999, which int8 cannot"),
            (spec_with(scalars=[{**BY, "value": 1e39}, N]), "scalar 'by' has value 1e.39"),
            (with_y(init="ones"), "tensor y is an output: it can only have the init zeros"),
            (with_y(role="input"), "no tensor with the role output"),
            (with_y(strides=[2]), "tensor y is an output whose strides overlap or leave gaps"),
            (chosen("import triton\n", "triton.autotune(configs=[], key=[])"), "triton.autotune"),
            (chosen("import triton as tr\n", "tr.heuristics({})"), "triton.heuristics, which"),
            (chosen("from triton import autotune as a\n", "a([], [])"), "triton.autotune, which"),
        ],
    )
    def test_a_bad_spec_is_told_in_one_sentence(self, tmp_path, spec, why):
        with pytest.raises(InputError, match=why) as told:
            read_spec(write(tmp_path, spec | {"name": spec.get("name") or "spec"}))
        assert str(told.value).count(". ") == 0
        assert str(told.value).endswith(".")

    def test_what_is_no_spec_is_told_in_one_sentence(self, tmp_path):
        path = tmp_path / "spec.json"
        for content in (b"", b"[]", b'{"schema_version": 1', b"\xff\xfe", b"[" * 5000):
            path.write_bytes(content)
            with pytest.raises(InputError, match="cannot be used, because"):
                read_spec(path)


class TestFiles:
    def test_a_source_beside_the_spec_or_below_is_read(self, tmp_path):
        (tmp_path / "cuda").mkdir()
        (tmp_path / "cuda/scale.cu").write_text(SOURCE)
        spec = read_spec(write(tmp_path, spec_with(source=None, file="cuda/scale.cu")))
        assert spec.source == SOURCE
        assert spec.file == ""

    @pytest.mark.parametrize("name", ["../scale.cu", "/etc/passwd", "a/../../scale.cu", "a\0b"])
    def test_a_source_outside_the_folder_is_refused(self, tmp_path, name):
        (tmp_path / "scale.cu").write_text(SOURCE)
        (tmp_path / "specs").mkdir()
        path = write(tmp_path / "specs", spec_with(source=None, file=name))
        with pytest.raises(InputError, match="is not in the folder of the spec"):
            read_spec(path)

    def test_a_link_is_refused(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/scale.cu").write_text(SOURCE)
        (tmp_path / "specs").mkdir()
        (tmp_path / "specs/file.cu").symlink_to(tmp_path / "elsewhere/scale.cu")
        (tmp_path / "specs/folder").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "specs/loop").symlink_to("loop")
        for name in ("file.cu", "folder/scale.cu", "loop"):
            path = write(tmp_path / "specs", spec_with(source=None, file=name))
            with pytest.raises(InputError, match="is a symbolic link"):
                read_spec(path)

    @pytest.mark.parametrize(
        ("content", "why"),
        [(b"", "source text"), (b"\xff\xff", "is not UTF-8"), (None, "cannot be read")],
    )
    def test_a_source_that_is_no_text_is_refused(self, tmp_path, content, why):
        if content is not None:
            (tmp_path / "scale.cu").write_bytes(content)
        with pytest.raises(InputError, match=why):
            read_spec(write(tmp_path, spec_with(source=None, file="scale.cu")))

    def test_a_spec_built_in_python_is_written_and_read_back(self, tmp_path):
        spec = read_spec(write(tmp_path))
        built = msgspec.structs.replace(spec, name="other", tolerance=0.01)
        write_spec(built, tmp_path / "other.json")
        assert read_spec(tmp_path / "other.json") == built

    def test_a_bad_spec_is_not_written(self, tmp_path):
        spec = read_spec(write(tmp_path))
        with pytest.raises(InputError, match="its entry 'no name' is not the name of a function"):
            write_spec(msgspec.structs.replace(spec, entry="no name"), tmp_path / "bad.json")
        assert not (tmp_path / "bad.json").exists()


class TestInputs:
    @pytest.mark.parametrize(
        ("fields", "right"),
        [
            ({"init": "zeros"}, [0, 0, 0, 0]),
            ({"init": "ones"}, [1, 1, 1, 1]),
            ({"init": "full", "value": 2.5}, [2.5, 2.5, 2.5, 2.5]),
            ({"init": "arange"}, [0, 1, 2, 3]),
            ({"data": [1, 2, 3, 4.5]}, [1, 2, 3, 4.5]),
            ({"data": packed(np.array([4, 3, 2, 1], "f4"))}, [4, 3, 2, 1]),
        ],
    )
    def test_inputs_without_a_seed_are_what_the_spec_says(self, tmp_path, fields, right):
        spec = read_spec(write(tmp_path, {**with_x(**fields), "sizes": [{"N": 4}]}))
        workload = workload_of(spec, spec.sizes[0])
        for seed in (0, 1):
            assert workload.make_inputs(seed)["x"].tolist() == right

    def test_drawn_inputs_keep_to_their_range(self, tmp_path):
        spec = read_spec(write(tmp_path, with_x(init="uniform", low=3.0, high=4.0)))
        drawn = workload_of(spec, spec.sizes[0]).make_inputs(7)["x"]
        assert drawn.min() >= 3
        assert drawn.max() <= 4
        assert len(np.unique(drawn)) > 1000

    def test_bfloat16_data_are_rounded(self):
        tensor = TensorSpec("x", (2,), "bfloat16", data=[1.0, 1.00001])
        found = fixed_input(tensor, (2,))
        assert found is not None
        assert found.tolist() == [0x3F80, 0x3F80]

    @given(st.lists(st.integers(-200, 200), min_size=1, max_size=9))
    def test_integer_data_fit_or_are_refused(self, data):
        tensor = TensorSpec("x", (len(data),), "int8", data=data)
        if all(-128 <= value <= 127 for value in data):
            found = fixed_input(tensor, (len(data),))
            assert found is not None
            assert found.tolist() == data
        else:
            with pytest.raises(FormError, match="that int8 cannot represent"):
                fixed_input(tensor, (len(data),))


class TestLayouts:
    @given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
    def test_permuted_outputs_are_allowed_and_keep_their_values(self, shape, draw):
        order = list(range(len(shape)))
        draw.shuffle(order)
        strides, step = [0] * len(shape), 1
        for axis in order:
            strides[axis], step = step, step * shape[axis]
        tensor = TensorSpec("y", tuple(shape), role="output", strides=tuple(strides))
        layout = tensor_layout(tensor, {})
        values = np.arange(step, dtype=np.float32).reshape(shape)
        buffer = layout.buffer(values)
        assert buffer.shape == (step,)
        assert (layout.view(buffer) == values).all()
        for index in np.ndindex(*shape):
            place = sum(i * s for i, s in zip(index, strides, strict=True))
            assert buffer[place] == values[index]

    def test_an_input_may_have_gaps_and_overlaps(self):
        assert tensor_layout(TensorSpec("x", (3, 4), strides=(10, 2)), {}) == Layout(
            (3, 4), (10, 2)
        )
        assert Layout((3, 4), (10, 2)).buffer_shape == (27,)
        assert Layout((3, 4), (0, 1)).buffer_shape == (4,)

    def test_a_reference_sees_a_strided_input_as_it_is(self, tmp_path):
        spec = read_spec(
            write(tmp_path, spec_with(tensors=[{**X, "strides": [2]}, Y], sizes=[{"N": 5}]))
        )
        workload = workload_of(spec, spec.sizes[0])
        assert workload.tensors[0].shape == (9,)
        inputs = workload.make_inputs(0)
        right = workload.reference(inputs)["y"]
        assert np.allclose(right, 2.5 * inputs["x"][::2].astype(float))


class TestReferences:
    @pytest.mark.parametrize(
        ("expression", "why"),
        [
            ("1 // 0 * x", r"fails \(ZeroDivisionError: "),
            ("x[:3]", r"has the shape \(3,\) instead of \(4,\): mend"),
            ("2.0", r"has the shape \(\) instead"),
            ("None", r"fails \(TypeError|has the shape"),
            ("'text'", r"fails \(ValueError: could not convert"),
            ("x * 1j", r"fails \(TypeError: complex numbers\)"),
            ("np.zeros(10**15)", r"fails \(MemoryError: "),
            ("9**9**9**9", r"fails \(OverflowError: an integer of more than 65536 bits"),
            ("1 << 10**12", r"fails \(OverflowError: an integer of more than"),
            ("(10**19000) * (10**19000) * x", r"fails \(OverflowError: an integer of more"),
            ("sum(range(10**12)) * x", r"fails \(OverflowError: a range of more than 134217728"),
            ("[0] * 10**11", r"fails \(OverflowError: a repetition to more than 134217728"),
            ("[x.fill(0), by * x][1]", r"fails \(ValueError: assignment destination is read-only"),
        ],
    )
    def test_one_that_fails_is_told_in_one_sentence(self, expression, why, tmp_path):
        fields = {"reference": {"y": expression}, "sizes": [{"N": 4}]}
        spec = read_spec(write(tmp_path, spec_with(**fields)))
        workload = workload_of(spec, spec.sizes[0])
        with pytest.raises(InputError, match=why) as told:
            workload.reference(workload.make_inputs(0))
        assert str(told.value).count(". ") == 0

    @pytest.mark.parametrize(
        "expression", ["[0 for _ in range(10**8)]", "sum(1 for _ in range(10**8)) * x"]
    )
    def test_one_that_does_not_end_is_told_in_one_sentence(self, expression, tmp_path, monkeypatch):
        monkeypatch.setattr(reference, "LONGEST_S", 0.02)
        spec = read_spec(write(tmp_path, spec_with(reference={"y": expression})))
        workload = workload_of(spec, spec.sizes[0])
        inputs = workload.make_inputs(0)
        with pytest.raises(InputError, match=r"takes longer than 0\.02 s: mend the expression in"):
            workload.reference(inputs)
        monkeypatch.setattr(reference, "LONGEST_S", 1e9)
        with pytest.raises(InputError, match=r"takes longer than"):
            workload.reference(inputs)

    def test_tensors_that_do_not_fit_into_this_machine_are_refused(self, tmp_path, monkeypatch):
        spec = read_spec(write(tmp_path))
        workload = workload_of(spec, spec.sizes[0])
        check_fits(workload)
        monkeypatch.setattr(variant_refusals.os, "sysconf", lambda _: 200)
        with pytest.raises(InputError, match=r"scale-N4000 take 0 GiB .* this machine has 0 GiB"):
            check_fits(workload)


class TestKernels:
    def test_constants_are_macros_before_cuda_text(self, tmp_path):
        constants = {"ITEMS": 4, "DOWN": -3, "HALF": 0.5, "FLAG": True}
        spec = read_spec(write(tmp_path, spec_with(launch=launch_with(constants=constants))))
        kernel = kernel_of(spec, spec.baseline, spec.sizes[1])
        text = str(kernel.content["source"])
        assert text.startswith(
            "#define ITEMS 4\n#define DOWN (-3)\n#define HALF 0.5\n#define FLAG 1\n"
        )
        assert kernel.content["launches"][0]["grid"] == (4, 1, 1)  # type: ignore[index]

    def test_constants_are_arguments_of_a_triton_function(self, tmp_path):
        launch = {"grid": ["ceil_div(N, B)", 2], "constants": {"B": 256}, "num_warps": 8}
        text = "import triton\n\n@triton.jit\ndef scale(x, y, by, n, B):\n    pass\n"
        spec = read_spec(write(tmp_path, spec_with(language="triton", source=text, launch=launch)))
        content = kernel_of(spec, spec.baseline, spec.sizes[0]).content
        assert content["constants"] == {"B": 256}
        assert content["grid"] == (16, 2, 1)
        assert content["num_warps"] == 8

    def test_an_output_with_the_init_zeros_is_cleared_by_a_launch(self, tmp_path):
        spec = read_spec(write(tmp_path, with_y(init="zeros")))
        kernel = kernel_of(spec, spec.baseline, spec.sizes[0])
        assert [one["entry"] for one in kernel.content["launches"]] == [  # type: ignore[attr-defined]
            "gpuenergy_clear<16000>",
            "scale",
        ]

    def test_a_cleared_output_has_the_size_that_the_spec_gives_it(self, tmp_path):
        spec = read_spec(write(tmp_path, with_y(init="zeros", shape=["N * ITEMS"])))
        launch = msgspec.structs.replace(spec.launch, constants={"ITEMS": 1})
        kernel = kernel_of(
            spec, msgspec.structs.replace(spec.baseline, launch=launch), spec.sizes[0]
        )
        assert "gpuenergy_clear<64000>" in str(kernel.content["launches"])

    def test_workloads_with_long_names_are_told_apart(self, tmp_path):
        sizes = [{"N": n, "M" * 95: n} for n in (4, 5)]
        spec = read_spec(write(tmp_path, spec_with(sizes=sizes)))
        names = [workload_of(spec, one).name for one in spec.sizes]
        assert len(set(names)) == 2
        assert max(map(len, names)) <= 100

    def test_half_precision_may_use_tensor_cores_and_float32_may_not(self, tmp_path):
        for fields, allowed in (
            ({}, False),
            ({"tensor_cores": True}, True),
            ({"tensors": [{**X, "dtype": "float16"}, Y]}, True),
        ):
            spec = read_spec(write(tmp_path, spec_with(**fields)))
            assert workload_of(spec, spec.sizes[0]).allows_tensor_cores is allowed

    def test_a_tolerance_is_the_bound(self, tmp_path):
        spec: KernelSpec = read_spec(write(tmp_path, spec_with(tolerance=0.01)))
        assert workload_of(spec, spec.sizes[0]).error_bound.max_relative == 0.01


def test_a_spec_states_initial_contents_and_bounds(tmp_path):
    count = {"name": "q", "shape": ["N"], "dtype": "int8", "role": "output", "steps": 1}
    spec = spec_with(
        arguments=["x", "y", "q", "by", "n"],
        tensors=[X, {**Y, "role": "inout", "bound": 2e-6}, count],
        reference={"y": "y + by * x", "q": "np.ma.masked_where(x > 0, np.zeros_like(x))"},
    )
    read = read_spec(write(tmp_path, spec))
    workload = workload_of(read, {**read.sizes[0]})
    inputs = workload.make_inputs(0)
    found = workload.reference(inputs)
    assert [tensor.name for tensor in workload.outputs] == ["y", "q"]
    wide = workload.widened(inputs)
    np.testing.assert_array_equal(found["y"], wide["y"] + float(BY["value"]) * wide["x"])
    assert workload.io.bounds["y"] == ErrorBound(2e-6, 2e-6)
    assert workload.io.bounds["q"] == ErrorBound(steps=1)
    assert (is_untouched(found["q"]) == (inputs["x"] > 0)).all()
