"""Workloads by name, by network and by sizes; those of a project; equal shapes."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import (
    CASES,
    Conv2d,
    all_networks,
    choose_workloads,
    distinct_shapes,
    find_workload,
    network,
    parse_shape,
)

OWN_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
NINE = "1,8,8,4,4,3,3,1,1"
TOML = """
[tool.gpuenergy.workloads]
stem = [1, 224, 224, 32, 3, 3, 3, 2, 1]
atrous = [1, 28, 28, 64, 64, 3, 3, 1, 2, 2]
depthwise = [1, 112, 112, 64, 64, 3, 3, 1, 1, 1, 64]  # a group per channel
"""


def project(folder: Path, text: str = TOML) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def names(workloads: tuple[Conv2d, ...]) -> list[str]:
    return [workload.name for workload in workloads]


def test_networks_have_their_usual_layers():
    assert names(network("cases")) == list(CASES) == [f"case{k}" for k in range(1, 8)]
    assert names(network("resnet")) == [f"resnet{k:02d}" for k in range(1, 21)]
    layers = ("00", "02", "04", "05", "08", "09", "12", "13", "18", "19")
    assert names(network("yolo")) == [f"yolo{k}" for k in layers]


@pytest.mark.parametrize("name", ["resnet", "yolo"])
def test_names_of_a_network_select_no_neighbour(name):
    layers = names(network(name))
    assert not [one for one in layers for other in layers if one != other and one in other]


def test_an_unknown_network_lists_the_choices(tmp_path):
    with pytest.raises(InputError, match=r"'vgg': choose one of cases, resnet, yolo, gemm\.$"):
        network("vgg")
    with pytest.raises(InputError, match="resnet, yolo, gemm, project"):
        network("vgg", project(tmp_path))


def test_a_bundled_workload_is_found_by_name():
    assert find_workload("resnet09") in all_networks()["resnet"]
    assert find_workload("case3") is CASES["case3"]


def test_an_unknown_workload_lists_the_choices(tmp_path):
    with pytest.raises(InputError, match=r"one of case1, .* resnet01 \.\.\. resnet20, .*_nt\.$"):
        find_workload("case8")
    with pytest.raises(InputError, match=r"8192_nt, stem, atrous, depthwise\.$"):
        find_workload("case8", project(tmp_path))


def test_a_project_has_workloads_of_its_own(tmp_path):
    assert all_networks(project(tmp_path))["project"] == network("project", tmp_path)
    assert find_workload("stem", tmp_path) == Conv2d.of("stem", 1, 224, 224, 32, 3, 3, 3, 2, 1)
    assert find_workload("atrous", tmp_path).shape.dilation == 2
    assert find_workload("depthwise", tmp_path).shape.groups == 64
    assert find_workload("case1", tmp_path) is CASES["case1"]


def test_a_project_is_found_from_inside(tmp_path):
    inside = project(tmp_path) / "bench" / "conv"
    inside.mkdir(parents=True)
    assert all_networks(inside)["project"] == all_networks(tmp_path)["project"]


@pytest.mark.parametrize("text", ["", "[tool.gpuenergy.powercaps]\nL4 = [40]\n"])
def test_a_project_may_have_none(tmp_path, text):
    assert all_networks(project(tmp_path, text))["project"] == ()
    with pytest.raises(InputError, match=r"no workloads of its own: add them to \[tool"):
        network("project", tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("stem = 3", "the workload 'stem' must be a list of integers, N,H,W,CO,CI,KH,KW,stride"),
        (f'stem = "{NINE}"', "must be a list of integers"),
        ("stem = [1, 8, 8, 4, 4, 3, 3, 1, 1.0]", "must be a list of integers"),
        ("stem = [1, 8, 8, 4, 4, 3, 3, 1, true]", "must be a list of integers"),
        ("stem = [1, 8, 8, 4, 4, 3, 3, 1]", "'stem' cannot be used: conv2d takes the nine numbers"),
        (f"stem = [{NINE},1,1,1]", "not 12 numbers"),
        ("stem = [1, 8, 8, 4, 4, 3, 3, 1, -1]", "padding to be an integer of at least 0, not -1"),
        (f"stem = [{NINE},1,3]", "3 does not divide 4 and 4"),
        (f"case1 = [{NINE}]", "the name 'case1' is taken by case1: choose another one"),
        (f"ResNet03 = [{NINE}]", "the name 'ResNet03' is taken by resnet03"),
        (f"stem = [{NINE}]\nStem = [{NINE}]", "the name 'Stem' is taken by stem"),
        (f'"../stem" = [{NINE}]', "'../stem' cannot name a workload"),
        (f'"a b" = [{NINE}]', "cannot name a workload: use letters, digits"),
        (f'"" = [{NINE}]', "'' cannot name a workload"),
        (f"all = [{NINE}]", "'all' is a command-line keyword"),
        (f"NOT = [{NINE}]", "'NOT' is a command-line keyword"),
        (f"Performance = [{NINE}]", "'Performance' is a name that gpuenergy tune uses"),
        (f'"tuning.csv" = [{NINE}]', "'tuning.csv' is a name that gpuenergy tune uses"),
        (f"net.stem = [{NINE}]", "the workload 'net' must be a list of integers"),
    ],
)
def test_an_entry_that_cannot_be_is_told_in_one_sentence(tmp_path, entry, message):
    project(tmp_path, f"[tool.gpuenergy.workloads]\n{entry}\n")
    with pytest.raises(InputError) as error:
        all_networks(tmp_path)["project"]
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "pyproject.toml"))
    assert "\n" not in str(error.value)


def test_a_name_may_begin_like_another(tmp_path):
    text = f"[tool.gpuenergy.workloads]\ncase = [{NINE}]\ncase10 = [{NINE}]\n"
    assert names(all_networks(project(tmp_path, text))["project"]) == ["case", "case10"]


@OWN_FOLDER
@given(
    table=st.dictionaries(
        st.text("aZ09_-. é/", max_size=6),
        st.lists(st.integers(-1, 12), min_size=8, max_size=12) | st.integers(),
        max_size=4,
    )
)
def test_any_table_is_read_whole_or_refused(tmp_path, table):
    entries = "\n".join(f'"{name}" = {value}' for name, value in table.items())
    project(tmp_path, f"[tool.gpuenergy.workloads]\n{entries}\n")
    try:
        workloads = all_networks(tmp_path)["project"]
    except InputError as error:
        assert "pyproject.toml: " in str(error)  # noqa: PT017 -- either is right
        return
    given_sizes = {name: (*value, 1, 1)[:11] for name, value in table.items()}  # type: ignore[misc]
    assert {w.name: tuple(vars(w.shape).values()) for w in workloads} == given_sizes


def test_a_shape_names_itself_after_its_sizes():
    assert parse_shape("1,56,48,64,32,3,1,2,0").name == "conv_1x56x48_64x32_3x1_s2_p0"
    assert parse_shape("1,56,56,64,64,3,3,1,2,2,64").name == "conv_1x56x56_64x64_3x3_s1_p2_d2_g64"


def test_a_shape_may_have_a_name_and_blanks():
    wanted = Conv2d.of("stem", 1, 8, 8, 4, 4, 3, 3, 1, 1)
    assert parse_shape(" stem = 1, 8, 8, 4, 4, 3, 3, 1, 1 ") == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--shape '' is not understood: give [NAME=]N,H,W,CO,CI,KH,KW,stride,padding"),
        ("1,8,8,4,4,3,3,1", "such as 1,56,56,64,64,3,3,1,1"),
        (NINE + ",1,1,1", "is not understood"),
        ("1,8,8,4,4,3,3,1,x", "is not understood"),
        ("1,8,8,4,4,3,3,1,٣", "is not understood"),
        ("1,8,8,4,4,3,3,1," + "9" * 5000, "is not understood"),
        (f"a=b={NINE}", "is not understood"),
        (f"={NINE}", "'' cannot name a workload"),
        (f"a/b={NINE}", "'a/b' cannot name a workload"),
        (f"all={NINE}", "'all' is a command-line keyword"),
        (f"performance={NINE}", "'performance' is a name that gpuenergy tune uses"),
        (f"tuning.csv={NINE}", "'tuning.csv' is a name that gpuenergy tune uses"),
        ("0,8,8,4,4,3,3,1,1", "conv2d needs N to be an integer of at least 1, not 0"),
        ("1,8,8,4,4,3,3,1,-1", "conv2d needs padding to be an integer of at least 0, not -1"),
        (NINE + ",1,3", "3 does not divide 4 and 4"),
    ],
)
def test_a_shape_that_cannot_be_is_told(text, message):
    with pytest.raises(InputError) as error:
        parse_shape(text)
    assert message in str(error.value)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, ...]:
    """Nine to eleven numbers of a convolution that there can be."""
    n, outs, ins, kh, kw, strides, dilation, groups = (draw(st.integers(1, 3)) for _ in range(8))
    padding, more = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    dilation, groups = dilation if more else 1, groups if more == 2 else 1
    h, w = (draw(st.integers(dilation * (taps - 1) + 1, 12)) for taps in (kh, kw))
    numbers = (n, h, w, outs * groups, ins * groups, kh, kw, strides, padding, dilation, groups)
    return numbers[: 9 + more]


@given(sizes(), st.none() | st.text(string.ascii_uppercase + string.digits, min_size=4, max_size=9))
def test_a_shape_is_read_as_it_is_written(numbers, name):
    text = ",".join(map(str, numbers))
    found = parse_shape(text if name is None else f"{name}={text}")
    assert found.shape == Conv2d.of("x", *numbers).shape
    assert name is None or found.name == name


@given(sizes(), sizes())
def test_only_equal_shapes_get_equal_names(one, other):
    first, second = (parse_shape(",".join(map(str, numbers))) for numbers in (one, other))
    assert (first.name == second.name) == (first.shape == second.shape)


@given(st.text(st.sampled_from("0123456789,= abx.-/"), max_size=40))
def test_any_other_text_is_refused_in_one_sentence(text):
    try:
        workload = parse_shape(text)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 -- either is right
    else:
        assert choose_workloads(shapes=[text]) == (workload,)


def test_workloads_are_chosen_by_name_network_and_shape(tmp_path):
    chosen = choose_workloads(
        ["case2,stem", "case1"], ["yolo,project"], [f"mine={NINE}"], project(tmp_path)
    )
    assert names(chosen) == [
        "case2",
        "stem",
        "case1",
        *names(network("yolo")),
        "atrous",
        "depthwise",
        "mine",
    ]


def test_all_are_the_seven_cases():
    assert choose_workloads(["all"]) == network("cases")


def test_a_shape_may_be_a_known_one_under_its_name():
    text = "case7=1,14,14,256,256,3,3,1,1"
    assert choose_workloads(["case7"], shapes=[text, text]) == (CASES["case7"],)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([f"case1={NINE}"], "the name of another workload, case1, but other sizes"),
        (
            [f"a={NINE}", f"a={NINE},2"],
            "the name of another workload, a, but other sizes or options",
        ),
        (
            [f"a={NINE} mode=tf32", f"a={NINE}"],
            "the name of another workload, a, but other sizes or options",
        ),
        ([], "No workload is named: give names such as case1, a network"),
    ],
)
def test_a_choice_that_cannot_be_is_told(shapes, message):
    with pytest.raises(InputError, match=message):
        choose_workloads([","], [""], shapes)


@pytest.mark.parametrize(
    ("name", "proper"),
    [
        ("case2_nhwc_3xtf32", "case2_3xtf32_nhwc"),
        ("2_relu_bias", "case2_bias_relu"),
        ("case2_float32", "case2"),
        ("case2_nchw_tf32", "case2_tf32"),
    ],
)
def test_a_name_with_its_options_in_another_order_is_told_the_right_one(name, proper):
    with pytest.raises(InputError, match=f"no workload '{name}': write {proper}.$"):
        choose_workloads([name])


@pytest.mark.parametrize("name", ["case2_tf32_3xtf32", "case2_fp8", "case9_tf32", "_tf32", "tf32"])
def test_a_name_that_means_none_lists_the_choices(name):
    with pytest.raises(InputError, match=f"no workload '{name}': choose one of case1, case2"):
        choose_workloads([name])


def test_a_name_does_not_say_another_mode_or_layout(tmp_path):
    message = "the name 'a_tf32' says tf32, and the mode is float16: choose another one"
    with pytest.raises(InputError, match=message):
        parse_shape(f"a_tf32={NINE} mode=float16")
    with pytest.raises(InputError, match="'a_nhwc' says nhwc, and the layout is nchw"):
        network("project", project(tmp_path, f"[tool.gpuenergy.workloads]\na_nhwc = [{NINE}]"))
    named = parse_shape(f"a_tf32_nhwc={NINE} mode=tf32 layout=nhwc bias=1")
    assert named.name == "a_tf32_nhwc"


def test_equal_shapes_are_one():
    shared = {
        first.name: names(others)
        for first, others in distinct_shapes(
            workload for group in all_networks().values() for workload in group
        ).items()
        if others
    }
    assert shared == {
        "case1": ["yolo02"],
        "case2": ["yolo08"],
        "case3": ["yolo12"],
        "case4": ["yolo18"],
        "case5": ["resnet03"],
        "case6": ["resnet06"],
        "case7": ["resnet09"],
    }


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3))))
def test_every_workload_is_the_first_or_shares_with_it(pairs):
    workloads = [Conv2d.of(name, n, 8, 8, 4, 4, 3, 3, 1, 1) for name, n in pairs]
    distinct = distinct_shapes(workloads)
    assert len({first.shape for first in distinct}) == len(distinct)
    assert all(other.shape == first.shape for first in distinct for other in distinct[first])
    found = [w for first, others in distinct.items() for w in (first, *others)]
    assert set(found) == set(workloads)
    assert len(found) == len(set(found))
    assert list(distinct) == sorted(distinct, key=workloads.index)
