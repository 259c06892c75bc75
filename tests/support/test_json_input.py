"""Typed values from untrusted JSON."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, strategies as st
from msgspec import Meta, Struct

from pytest_gpuenergy.support import (
    FormError,
    NotJsonError,
    convert,
    decode,
    dump,
    encode,
    read_unpacked,
)


class Inner(Struct, frozen=True):
    x: int


@dataclass(frozen=True)
class Size:
    width: int

    def __post_init__(self) -> None:
        if self.width % 2:
            raise ValueError("the width is odd")


class Outer(Struct, frozen=True):
    name: str = ""
    size: Annotated[float, Meta(ge=0)] = 0.0
    part: Annotated[int, Meta(gt=0, le=9)] = 1
    kind: Literal["a", "b"] = "a"
    triple: tuple[int, int, int] = (1, 2, 3)
    some: Annotated[tuple[int, ...], Meta(min_length=1)] = (1,)
    maybe: Inner | None = None
    by_name: dict[str, Inner] = {}
    sizes: tuple[Size, ...] = ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "the form is a list instead of an object"),
        ({"name": None}, "name is null instead of a string"),
        ({"size": -1}, "size is less than 0"),
        ({"size": True}, "size is a boolean instead of a number"),
        ({"part": 0}, "part is less than 1"),
        ({"part": 10}, "part is greater than 9"),
        ({"part": 1.5}, "part is a number instead of an integer"),
        ({"kind": "c"}, "kind is 'c', which is not allowed: give a or b"),
        ({"triple": [1]}, "triple does not have 3 values"),
        ({"some": []}, "some does not have at least 1 values"),
        ({"maybe": 3}, "maybe is an integer instead of an object or null"),
        ({"maybe": {}}, "maybe.x is missing"),
        ({"by_name": {"k": {}}}, "x is missing in a value of by_name"),
        (
            {"by_name": {"k": {"x": "1"}}},
            "x in a value of by_name is a string instead of an integer",
        ),
        ({"by_name": {"k": []}}, "a value of by_name is a list instead of an object"),
        ({"sizes": [{"width": 2}, {"width": 3}]}, "sizes[1] is wrong: the width is odd"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_with_its_place(value, said):
    with pytest.raises(FormError) as raised:
        decode(json.dumps(value), Outer, "the form")
    assert str(raised.value) == said
    with pytest.raises(FormError) as raised:
        convert(value, Outer, "the form")
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the form is not complete JSON (input data was truncated)"),
        (b'{"name": "x', "the form is not complete JSON (input data was truncated)"),
        (b"{} {}", "the form is not complete JSON (trailing characters (byte 4))"),
        (b'{"name": 3, "size": ', "the form is not complete JSON (input data was truncated)"),
        (b"\xff", "the form is not UTF-8 text"),
        (b'{"later": ' + b"[" * 10**6 + b"]" * 10**6 + b"}", "the form is nested too deeply"),
    ],
)
def test_what_is_not_json_is_told_from_what_does_not_fit(content, said):
    with pytest.raises(NotJsonError) as raised:
        decode(content, Outer, "the form")
    assert str(raised.value) == said


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_text_is_a_value_or_a_problem_in_one_line(content):
    for kind in (Outer, object):
        try:
            value = decode(content, kind)
        except FormError as error:
            said = str(error)
            assert said
            assert len(said.splitlines()) == 1
        else:
            assert decode(encode(value), kind) == value


@given(st.text(st.sampled_from("ab\ud83d\ude00\ud800\udc00\\u"), max_size=8))
def test_whole_characters_are_read_as_they_are(text):
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert decode(json.dumps(text), str) == whole.replace("\ufffd", "?")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_is_written_is_what_python_writes(value):
    assert dump(value) == json.dumps(value, indent=1) + "\n"
    assert encode(value).decode() == json.dumps(value)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": object()}, b"x\xff", {1j}])
def test_what_json_does_not_have_is_not_written(value):
    with pytest.raises((TypeError, ValueError)):
        encode(value)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_file_is_decompressed_whatever_its_name(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
):
    path = tmp_path / name
    path.write_bytes(pack(b'{"a": 1}'))
    assert read_unpacked(path, "trace", 1 << 20) == b'{"a": 1}'
