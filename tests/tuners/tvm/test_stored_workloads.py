"""What a database stores of its workloads: plain tensor programs, and no other objects of TVM's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hostile_records import module_of, stored_with
from hypothesis import given, strategies as st

from pytest_gpuenergy.support import FormError
from pytest_gpuenergy.tuners import check_stored_workload

HOSTILE = ("(", "; int x", "\n#include <x>\n", '"', "::system", "λ", "\ud800", "\0", "[[", " ")


def texts(module: Any) -> Iterator[Callable[[str], None]]:
    """What adds to one of the module's texts, for each of them."""
    for node in module["nodes"]:
        yield lambda more, node=node: node.update(type=node["type"] + more)
        data = node.get("data")
        if isinstance(data, str):
            yield lambda more, node=node: node.update(data=node["data"] + more)
        elif isinstance(data, dict):
            for key in [key for key, value in data.items() if isinstance(value, str)]:
                yield lambda more, data=data, key=key: data.update({key: data[key] + more})


def test_a_stored_convolution_is_let_through(database):
    check_stored_workload(json.loads(database.workloads[0]))


@given(data=st.data())
def test_a_changed_name_in_a_stored_workload_is_refused(database, data):
    module = module_of(database.workloads[0])
    add_to_text = data.draw(st.sampled_from(list(texts(module))))
    add_to_text(data.draw(st.sampled_from(HOSTILE) | st.text(min_size=1).map("({}".format)))
    with pytest.raises(FormError, match="its node"):
        check_stored_workload(stored_with(module))


@pytest.mark.parametrize(
    "node",
    [
        {"type": "ir.Op", "data": "tirx.call_extern"},
        {"type": "ir.Op", "data": "tirx.tvm_call_packed"},
        {"type": "tirx.StringImm", "data": {"span": 0, "ty": 0, "value": 0}},
        {"type": "ir.EnvFunc", "data": {"name": 0}},
        {"type": "ffi.Module", "data": "AAAA"},
        {"type": "ffi.Function"},
        {"type": "tirx.AttrStmt", "data": {}},
        {"type": "ir.Range", "data": {"min": 0, "extent": 10**6, "span": 0}},
        {"type": "ir.Range", "data": {"min": 0, "extent": 0, "span": 0, "more": 0}},
        {"type": ["ffi.Array"], "data": []},
        ["ffi.Array"],
    ],
    ids=str,
)
def test_a_node_of_another_type_is_refused(database, node):
    module = module_of(database.workloads[0])
    module["nodes"][20] = node
    with pytest.raises(FormError, match="its node 20 is"):
        check_stored_workload(stored_with(module))
