"""Unique kernels, their signatures, and what of a trace they cover."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from profiler_traces import (
    ADDMM,
    GEMM,
    STRANGE_VALUES,
    events,
    lasting,
    launch,
    layer,
    operator,
    write,
)

from pytest_gpuenergy.replay import (
    KernelExtraction,
    Signature,
    UniqueKernel,
    extract_kernels,
    launches,
    read_trace,
    replay_signature,
    unique_kernels,
    write_extraction,
)
from pytest_gpuenergy.support import InputError

COPY = lasting("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 70.0, 5.0, bytes=4096)


def unique(written: list[dict[str, Any]]) -> list[UniqueKernel]:
    return unique_kernels(launches(events(written)))


def signature(written: list[dict[str, Any]]) -> Signature:
    (kernel,) = unique(written)
    return replay_signature(kernel)


def extracted(folder: Path, written: list[dict[str, Any]]) -> KernelExtraction:
    return extract_kernels(write(folder / "trace.json", written))


def test_launches_with_the_same_arguments_are_one_kernel():
    (kernel,) = unique([*layer(), *layer(ts=100.0, correlation=2, dur=7.0)])
    assert (kernel.calls, kernel.total_us) == (2, 12.0)


@pytest.mark.parametrize(
    "other",
    [
        layer(ts=100.0, correlation=2, grid=[8, 2, 1]),
        layer(ts=100.0, correlation=2, **{"shared memory": 0}),
        [
            operator("aten::addmm", 100.0, 20.0, **(ADDMM | {"Input Strides": [[1], [64, 1]]})),
            *launch(GEMM, 110.0, 140.0, 2),
        ],
        [lasting("user_annotation", "decode", 99.0, 50.0), *layer(ts=100.0, correlation=2)],
    ],
    ids=["grid", "shared memory", "strides", "phase"],
)
def test_launches_that_differ_in_anything_are_two_kernels(other):
    assert len(unique([*layer(), *other])) == 2


def test_layers_do_not_make_kernels_different():
    written = [
        entry
        for number in (2, 5)
        for entry in [
            lasting("user_annotation", f"layer {number}", number * 100.0, 50.0),
            *layer(ts=number * 100.0 + 1, correlation=number),
        ]
    ]
    (kernel,) = unique(written)
    assert kernel.layers == (2, 5)


def test_an_id_depends_on_nothing_but_the_kernel():
    (alone,) = unique(layer())
    later, _ = unique([*layer(ts=900.0, correlation=8, dur=50.0), *launch("add", 0.0, 5.0, 9)])
    assert later.id == alone.id


def test_the_kernel_that_takes_the_most_time_comes_first():
    names = [k.name for k in unique([*launch("a", 0, 5, 1), *launch("b", 10, 15, 2, dur=9.0)])]
    assert names == ["b", "a"]


def test_a_copy_is_of_the_first_tier():
    assert signature([COPY]).tier == 1
    assert signature([COPY]).recipe["bytes"] == 4096


def test_a_matrix_product_is_of_the_second_tier():
    found = signature(layer())
    assert (found.tier, found.category, found.missing) == (2, "product", None)
    assert found.recipe["shapes"] == ADDMM["Input Dims"]


def test_the_copy_of_a_bias_is_no_matrix_product():
    copy = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>"
    found = signature([operator("aten::addmm", 0.0, 9.0, **ADDMM), *launch(copy, 1, 20, 1)])
    assert (found.tier, found.category) == (3, "copy")


@pytest.mark.parametrize(
    "shape",
    [[-8, 32], [2**70, 32], [8.5, 32], [None, 32], ["8", 32], [True, 32], "8x32"],
    ids=str,
)
def test_a_product_of_what_has_no_size_is_of_no_tier(shape):
    dims = [[64], shape, [32, 64], [], []]
    written = [operator("aten::addmm", 0.0, 9.0, **(ADDMM | {"Input Dims": dims}))]
    assert signature([*written, *launch(GEMM, 1, 20, 1)]).tier is None


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "product"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "product"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "product"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("void (anonymous namespace)::softmax_warp_forward<c10::Half>", "normalization"),
        ("void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", "elementwise"),
        ("void at::native::index_elementwise_kernel<128, 4>", "gather"),
        ("void at::native::reduce_kernel<512, 1, ArgMaxOps<float>>", "reduction"),
        ("void at::native::CatArrayBatchedCopy<OpaqueType<2>>", "copy"),
        ("cudnn_infer_ampere_scudnn_winograd_128x128", "convolution"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL", "communication"),
        ("my_own_kernel", "other"),
    ],
)
def test_a_kernel_is_classified_by_its_name(name, category):
    assert signature(launch(name, 0, 5, 1)).category == category


def test_any_other_operator_is_of_the_third_tier():
    shapes = {"Input Dims": [[8]], "Input type": ["float"], "Input Strides": [[1]]}
    norm = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
    found = signature(
        [operator("aten::native_layer_norm", 0.0, 9.0, **shapes), *launch(norm, 1, 20, 1)]
    )
    assert (found.tier, found.category) == (3, "normalization")


def test_a_triton_kernel_is_of_the_fourth_tier():
    shapes = {"Input Dims": [[8]], "Input type": ["float"], "Input Strides": [[1]]}
    name = "triton_poi_fused_add_cos_sin_0"
    found = signature([operator(name, 0.0, 9.0, **shapes), *launch(name, 1, 20, 1)])
    assert (found.tier, found.category) == (4, "elementwise")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (launch("add", 1, 20, 1), "which operator"),
        ([operator("aten::mm", 0.0, 9.0), *launch(GEMM, 1, 20, 1)], "record_shapes=True"),
        (
            [
                operator("aten::mm", 0.0, 9.0, **{"Input Dims": [[8]], "Input type": ["float"]}),
                *launch(GEMM, 1, 20, 1),
            ],
            "strides",
        ),
        ([lasting("gpu_memset", "Memset (Device)", 0.0, 5.0)], "how many bytes"),
        (launch("ncclDevKernel_AllReduce_Sum_f16_RING_LL", 1, 20, 1), "other GPUs"),
    ],
    ids=["operator", "shapes", "strides", "bytes", "communication"],
)
def test_what_cannot_be_replayed_says_why(written, reason):
    found = signature(written)
    assert found.tier is None
    assert reason in (found.missing or "")


def test_coverage_counts_time_and_calls_that_can_be_replayed(tmp_path):
    found = extracted(tmp_path, [*layer(dur=30.0), *launch("add", 50, 80, 2, dur=10.0)])
    assert found.time_coverage == pytest.approx(0.75)
    assert found.call_coverage == pytest.approx(0.5)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 100)), min_size=1, max_size=12))
def test_the_busy_time_is_that_of_all_microseconds_in_which_something_runs(spans):
    written = [lasting("kernel", "k", float(begin), float(length)) for begin, length in spans]
    found = KernelExtraction(launches(events(written)), [])
    busy = {us for begin, length in spans for us in range(begin, begin + length)}
    assert found.busy_us == pytest.approx(len(busy))
    assert found.span_us == pytest.approx(max(busy) + 1 - min(busy))


def test_launches_of_a_cuda_graph_are_said_to_have_no_operators(tmp_path):
    graph = lasting("cuda_runtime", "cudaGraphLaunch", 50.0, 2.0, correlation=2)
    kernels = [
        lasting("kernel", name, 60.0 + n, 15.0, correlation=2) for n, name in enumerate("ab")
    ]
    found = extracted(tmp_path, [*layer(dur=10.0), graph, *kernels])
    (note,) = found.notes
    assert note.startswith("2 launches with 75.0% of the GPU time belong to CUDA graphs")


def test_a_trace_of_the_host_alone_is_refused(tmp_path):
    with pytest.raises(InputError, match="ran on a GPU"):
        extracted(tmp_path, [operator("aten::add", 0.0, 9.0)])


@pytest.mark.parametrize(
    "word",
    [
        *("inf", "-inf", "nan", "NaN", "Infinity", "1e999", "-2.5E+0400"),
        *("-nan(ind)", "nan(snan)", "1.#INF", "-1.#IND00"),
    ],
)
def test_a_number_that_json_does_not_have_costs_only_itself(tmp_path, word):
    written = [*layer(), operator('aten::"nan, inf', 90.0, 1.0, note="NUMBER")]
    path = write(tmp_path / "trace.json", written)
    path.write_text(path.read_text().replace('"NUMBER"', word))
    found = read_trace(path)
    assert len(found) == len(written)
    assert (found[-1].name, found[-1].args) == ('aten::"nan, inf', {"note": None})


@pytest.mark.parametrize(
    "strange",
    [
        {"name": None},
        {"ts": None},
        {"ph": 5},
        {"pid": []},
        {"args": "none"},
        {"cat": ["kernel"]},
    ],
)
def test_an_event_that_cannot_be_read_costs_only_itself(tmp_path, strange):
    found = extracted(tmp_path, [*layer(), operator("aten::add", 90.0, 1.0) | strange])
    assert len(found.launches) == 1
    assert found.notes == ["1 event that cannot be read is left out: profile again"]


def test_a_name_that_is_not_utf8_keeps_the_rest_of_itself(tmp_path):
    path = write(tmp_path / "trace.json", [*layer(), operator("aten::NAME", 90.0, 1.0)])
    path.write_bytes(path.read_bytes().replace(b"NAME", b"caf\xe9"))
    assert read_trace(path)[-1].name == "aten::caf\N{REPLACEMENT CHARACTER}"


def test_a_trace_without_an_event_that_can_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"traceEvents\[0\].name is null instead of a string"):
        extracted(tmp_path, [operator("aten::add", 0.0, 9.0) | {"name": None}])


@pytest.mark.parametrize("since_us", [0, 1_700_000_000_000_000])
def test_times_in_strings_as_rocprof_writes_them_are_numbers(tmp_path, since_us):
    as_text = [
        event | {"ts": f"{since_us + int(event['ts'])}.123", "dur": str(event["dur"])}
        for event in layer()
    ]
    found = read_trace(write(tmp_path / "trace.json", as_text))
    assert [event.ts - found[0].ts for event in found] == [
        pytest.approx(event["ts"], abs=1e-9) for event in layer()
    ]
    assert [event.dur for event in found] == [event["dur"] for event in layer()]


def test_a_clock_that_counts_from_1970_keeps_its_digits(tmp_path):
    path = write(tmp_path / "trace.json", layer())
    text = path.read_text()
    for event in layer():
        text = text.replace(
            f'"ts": {event["ts"]}', f'"ts": 1700000000000{500 + int(event["ts"]):03d}.123'
        )
    path.write_text(text)
    begins = [event.ts for event in read_trace(path)]
    assert begins == [pytest.approx(event["ts"] + 0.123, abs=1e-9) for event in layer()]


def test_a_launch_that_ends_before_it_begins_is_left_out_with_a_sentence(tmp_path):
    found = extracted(tmp_path, [*layer(), *launch("add", 50.0, 80.0, 2, dur=-1.0)])
    assert len(found.launches) == 1
    assert found.notes == ["1 event with a negative duration is left out: profile again"]


@pytest.mark.parametrize("name", ["ts", "dur"])
@pytest.mark.parametrize("value", ["nan", "inf", None])
def test_a_launch_without_a_time_is_left_out_with_a_sentence(tmp_path, name, value):
    (call, kernel) = launch("add", 50.0, 80.0, 2)
    changed = {key: one for key, one in kernel.items() if key != name}
    if value is not None:
        changed[name] = value
    found = extracted(tmp_path, [*layer(), call, changed])
    assert len(found.launches) == 1
    assert found.notes == ["1 event without a begin or a duration is left out: profile again"]


def test_a_launch_with_a_begin_and_an_end_of_its_own_does_not_vanish_unsaid(tmp_path):
    (call, kernel) = launch("add", 50.0, 80.0, 2)
    apart = [kernel | {"ph": "B"}, kernel | {"ph": "E", "ts": 85.0}]
    found = extracted(tmp_path, [*layer(), call, *apart])
    assert len(found.launches) == 1
    assert found.notes == ["2 events without a begin or a duration are left out: profile again"]


def test_a_trace_of_such_launches_alone_says_so(tmp_path):
    with pytest.raises(InputError, match="1 event with a negative duration is left out"):
        extracted(tmp_path, launch("add", 50.0, 80.0, 2, dur=-1.0))


@pytest.mark.parametrize(
    ("strange", "told"),
    [
        ({"dur": None}, "that cannot be read"),
        ({"dur": ...}, "without a begin or a duration"),
        ({"ts": ...}, "without a begin or a duration"),
        ({"dur": 1e300}, "at no time of a clock"),
        ({"ts": -1e20}, "at no time of a clock"),
    ],
)
def test_a_launch_at_no_time_is_left_out_with_a_sentence(tmp_path, strange, told):
    call, kernel = launch("add", 50.0, 80.0, 2)
    kernel = {name: value for name, value in (kernel | strange).items() if value is not ...}
    found = extracted(tmp_path, [*layer(), call, kernel])
    assert len(found.launches) == 1
    assert found.notes == [f"1 event {told} is left out: profile again"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("grid", [-1, 1, 1]),
        ("grid", "1,1,1"),
        ("block", [128, 1]),
        ("block", [128, 1.5, 1]),
        ("shared memory", 0.5),
        ("registers per thread", -3),
    ],
)
def test_a_plan_that_is_not_understood_is_told(tmp_path, field, value):
    call, kernel = launch("add", 50.0, 80.0, 2)
    kernel["args"] = {**kernel["args"], field: value}
    found = extracted(tmp_path, [*layer(), call, kernel])
    assert found.notes == [
        f"{field} is not understood in 1 launch, such as of 'add', and left out there"
    ]


@pytest.mark.parametrize("end", ["]", "", ",", ",\n"])
def test_a_list_of_events_may_lack_its_end_and_begin_with_a_mark(tmp_path, end):
    path = tmp_path / "trace.json"
    text = ",".join(map(json.dumps, layer()))
    path.write_text(f"[{text}{end}", encoding="utf-8-sig")
    assert len(read_trace(path)) == len(layer())


def test_a_list_of_events_that_ends_within_one_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("[" + ",".join(map(json.dumps, layer()))[:-3])
    with pytest.raises(InputError, match="not complete JSON"):
        read_trace(path)


def test_a_product_of_rocm_is_no_work_for_cublaslt():
    name = "Cijk_Alik_Bljk_HHS_BH_MT64x64x32_SE_1LDSB0"
    found = signature([operator("aten::addmm", 0.0, 9.0, **ADDMM), *launch(name, 1.0, 20.0, 1)])
    assert (found.category, found.tier) == ("product", 3)


@pytest.mark.parametrize("strides", [[], [[1]], [[], [], [], [], []], [[1], [1], [1, 32], [], []]])
def test_an_operator_without_the_strides_of_each_tensor_cannot_be_called_again(strides):
    arguments = ADDMM | {"Input Strides": strides}
    found = signature([operator("aten::addmm", 0.0, 9.0, **arguments), *launch(GEMM, 1, 20, 1)])
    assert found.tier is None
    assert "strides" in (found.missing or "")


@given(content=st.binary(max_size=300))
def test_any_other_content_is_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        extract_kernels(path)


@pytest.mark.parametrize("times", [(1e308, 1e308), (0.0, 1e300), (-1e200, 1.0)])
def test_times_that_no_clock_shows_are_refused(tmp_path, times):
    with pytest.raises(InputError, match="time"):
        extracted(tmp_path, launch("add", 0.0, times[0], 1, dur=times[1]))


def test_a_number_of_any_length_is_kept(tmp_path):
    written = [operator("aten::add", 0, 9, **(ADDMM | {"Concrete Inputs": [2**70]}))]
    found = extracted(tmp_path, [*written, *launch("add", 1, 20, 1, bytes=2**65)])
    write_extraction(found, tmp_path)
    assert len(found.kernels) == 1


@given(
    place=st.integers(0, 3),
    key=st.sampled_from(("ts", "dur", "pid", "tid", "name", "cat", "ph", "args")),
    value=STRANGE_VALUES,
)
def test_a_trace_with_a_strange_value_is_read_or_refused(tmp_path_factory, place, key, value):
    written = layer()
    written[place][key] = value
    path = write(tmp_path_factory.mktemp("odd") / "trace.json", written)
    try:
        found = extract_kernels(path)
    except InputError:
        return
    write_extraction(found, path.parent)
    assert found.launches


@given(
    key=st.sampled_from(
        ("correlation", "grid", "block", "shared memory", "bytes", "Input Dims", "External id")
    ),
    value=STRANGE_VALUES,
)
def test_a_launch_with_a_strange_argument_is_read_or_refused(tmp_path_factory, key, value):
    written = layer()
    for entry in written:
        entry["args"][key] = value
    path = write(tmp_path_factory.mktemp("odd") / "trace.json", written)
    try:
        found = extract_kernels(path)
    except InputError:
        return
    write_extraction(found, path.parent)
    assert len(found.launches) == 1
