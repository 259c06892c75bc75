"""Schedules of serving: lists of steps, and traces of requests that are batched."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.replay import Batching, Request, Step, batched, read_schedule, served_steps
from pytest_gpuenergy.support import InputError

REQUESTS = st.lists(
    st.builds(
        Request,
        arrival_s=st.floats(0, 10),
        prompt_tokens=st.integers(1, 3000),
        new_tokens=st.integers(1, 9),
    ),
    min_size=1,
    max_size=12,
)
BATCHINGS = st.builds(
    Batching,
    max_batch=st.integers(1, 10),
    bucket_tokens=st.integers(1, 512),
    step_ms=st.none() | st.floats(0.1, 2000),
)


def read(path: Path, text: str, batching: Batching | None = None):
    path.write_text(text)
    return read_schedule(path, batching or Batching())


@given(REQUESTS, BATCHINGS)
def test_each_token_of_each_request_is_generated_once(requests, batching):
    generated = Counter(
        index for step in served_steps(requests, batching) for index in step.requests
    )
    assert generated == {index: found.new_tokens for index, found in enumerate(requests)}


@given(REQUESTS, BATCHINGS)
def test_no_step_has_more_requests_than_the_largest_batch(requests, batching):
    for step in served_steps(requests, batching):
        assert 0 < len(set(step.requests)) == len(step.requests) <= batching.max_batch


@given(REQUESTS, BATCHINGS)
def test_the_prefill_of_a_request_comes_once_and_before_its_decode_steps(requests, batching):
    prefilled: list[int] = []
    for step in served_steps(requests, batching):
        if step.phase == "prefill":
            prefilled += step.requests
        else:
            assert set(step.requests) <= set(prefilled)
    assert sorted(prefilled) == list(range(len(requests)))


@given(REQUESTS, BATCHINGS)
def test_a_step_reads_what_its_requests_have_so_far(requests, batching):
    generated: Counter[int] = Counter()
    for step in served_steps(requests, batching):
        in_cache = [max(0, generated[index] - 1) for index in step.requests]
        prompts = [requests[index].prompt_tokens for index in step.requests]
        if step.phase == "decode":
            in_cache = [generated[index] - 1 for index in step.requests]
        assert step.read_tokens == sum(prompts) + sum(in_cache)
        generated.update(step.requests)


@given(REQUESTS, BATCHINGS)
def test_requests_are_prefilled_in_the_order_of_their_arrival(requests, batching):
    prefilled = [
        requests[step.requests[0]].arrival_s
        for step in served_steps(requests, batching)
        if step.phase == "prefill"
    ]
    assert prefilled == sorted(prefilled)


@given(REQUESTS, BATCHINGS)
def test_the_sizes_of_a_trace_have_all_of_its_tokens(requests, batching):
    found = batched(requests, batching)
    served = found.served.items()
    assert sum(one.new_tokens for _, one in served) == sum(one.new_tokens for one in requests)
    prompts = sum(one.read_tokens for step, one in served if step.phase == "prefill")
    assert prompts == sum(one.prompt_tokens for one in requests)
    assert found.requests == len(requests)


@given(REQUESTS, BATCHINGS)
def test_a_size_has_room_for_its_batch_and_is_a_multiple_of_the_bucket(requests, batching):
    for step, served in batched(requests, batching).served.items():
        assert served.new_tokens <= served.steps * step.batch
        assert step.batch <= batching.max_batch
        assert step.tokens % batching.bucket_tokens == 0 < step.tokens


@given(REQUESTS, BATCHINGS)
def test_the_steady_state_begins_and_ends_with_first_tokens(requests, batching):
    """Of N requests, the first tokens of those between the B first and the B last are in it."""
    steady = batched(requests, batching).steady
    firsts = sum(one.steps for step, one in steady.items() if step.phase == "prefill")
    assert firsts == max(0, len(requests) - 2 * batching.max_batch)


def test_all_requests_wait_from_the_beginning_without_a_duration_of_steps():
    requests = [Request(100.0 * number, 10, 5) for number in range(4)]
    steps = list(served_steps(requests, Batching(max_batch=4)))
    assert [len(step.requests) for step in steps] == [1, 1, 1, 1, 4, 4, 4, 4]


def test_requests_that_arrive_one_after_another_are_not_batched():
    requests = [Request(100.0 * number, 10, 3) for number in range(2)]
    steps = list(served_steps(requests, Batching(max_batch=4, step_ms=10)))
    assert [len(step.requests) for step in steps] == [1] * 6


def test_a_request_joins_when_it_has_arrived():
    requests = [Request(0, 10, 5), Request(0.025, 10, 2)]
    steps = list(served_steps(requests, Batching(max_batch=4, step_ms=10)))
    sizes = [(step.phase, len(step.requests)) for step in steps]
    decode, both = ("decode", 1), ("decode", 2)
    assert sizes == [("prefill", 1), decode, decode, ("prefill", 1), both, decode]


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_a_batch_is_padded_to_the_next_that_vllm_captures(batch, most):
    captured = [1, 2, 4, *range(8, 256, 8), *range(256, 2001, 16)]
    batch = min(batch, most)
    larger = min(size for size in [*captured, most] if size >= batch)
    assert Batching(max_batch=most).padded(batch) == larger


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["prefill", "decode"]),
        st.integers(1, 64),
        st.integers(1, 4096),
        st.integers(1, 1000),
    ),
    min_size=1,
    max_size=10,
)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_and_json_lines_say_the_same(tmp_path, steps):
    names = ("step", "batch", "tokens", "count")
    table = "\n".join([",".join(names), *(",".join(map(str, step)) for step in steps)])
    lines = "\n".join(json.dumps(dict(zip(names, step, strict=True))) for step in steps)
    found = read(tmp_path / "steps.csv", table)
    assert found == read(tmp_path / "steps.jsonl", lines)
    counts: Counter[Step] = Counter()
    for phase, batch, tokens, count in steps:
        counts[Step(phase, batch, tokens)] += count
    assert {step: served.steps for step, served in found.served.items()} == counts


def test_the_requests_of_a_list_are_its_prefilled_sequences(tmp_path):
    text = "step,batch,tokens,count\nprefill,4,100,2\ndecode,8,100,50\n"
    found = read(tmp_path / "steps.csv", text)
    assert found.requests == 8
    assert found.rounding("prefill") == found.rounding("decode") == 1


def test_a_trace_is_read_with_or_without_arrivals(tmp_path):
    with_them = "arrival_s,prompt_tokens,new_tokens\n0,300,5\n\n1.5,100,2\n"
    without = "prompt_tokens,new_tokens\n300,5\n100,2\n"
    first = read(tmp_path / "trace.csv", with_them)
    assert first == read(tmp_path / "other.csv", without)
    assert first.requests == 2


HEADER = "step,batch,tokens,count\n"


def test_a_whole_number_may_be_written_as_a_real_one(tmp_path):
    real = read(tmp_path / "real.csv", HEADER + "prefill,1.0,8.0,1e3\n")
    assert real == read(tmp_path / "whole.csv", HEADER + "prefill,1,8,1000\n")


TRACE = "arrival_s,prompt_tokens,new_tokens\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no steps"),
        (HEADER, "has no steps"),
        (HEADER + "prefill,1,8,0\n", "All counts in .* are 0"),
        ("prefill,1,8,1\n", "Line 1 .*no header"),
        (HEADER + "prefill,1,8,1\nfill,1,8,1\n", "Line 3 .*its step is 'fill'"),
        (HEADER + "decode,0,8,1\n", "Line 2 .*its batch is 0"),
        (HEADER + "decode,1.5,8,1\n", "Line 2 .*its batch is 1.5"),
        (HEADER + "decode,1,,1\n", "Line 2 .*it has no tokens"),
        (HEADER + "decode,1,8,-1\n", "Line 2 .*its count is -1"),
        (HEADER + "decode,1,99999999999,1\n", "Line 2 .*its tokens is 99999999999"),
        (HEADER + "decode,1,8\n", "Line 2 .*it has 3 columns, and the header 4"),
        ("step,batch,tokens,tokens\ndecode,1,8,1\n", "Line 1 .*names a column twice"),
        ("step,batch,tokens,size\ndecode,1,8,1\n", "Line 2 .*'size' that is none of"),
        (HEADER + 'decode,"1,8,1\n', "Line .*it is no CSV"),
        (TRACE + "0,8,0\n", "Line 2 .*its new_tokens is 0"),
        (TRACE + "soon,8,1\n", "Line 2 .*its arrival_s is 'soon'"),
        (TRACE + "nan,8,1\n", "Line 2 .*its arrival_s is nan"),
        (TRACE + "inf,8,1\n", "Line 2 .*its arrival_s is inf"),
        (TRACE + "0,16777216,16777216\n0,1,1\n", "generates 16777217 tokens"),
        ('{"step": "decode", "batch": true, "tokens": 8}', "Line 1 .*its batch is True"),
        ('{"step": "decode", "batch": 1, "tokens": 8}\n{', "Line 2 .*not complete JSON"),
        ('{"step": ["decode"], "batch": 1, "tokens": 8}', r"Line 1 .*its step is \['decode'\]"),
        ('[{"step": "decode", "batch": 1, "tokens": 8}]', "Line 1 .*it begins a list"),
        ('{"size": 8}', "Line 1 .*neither those of a step nor those of a request"),
        ("{}", "Line 1 .*neither those of a step nor those of a request"),
    ],
)
def test_a_bad_schedule_is_refused_with_its_line(tmp_path, text, why):
    with pytest.raises(InputError, match=why):
        read(tmp_path / "schedule", text)


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_other_file_is_read_or_refused(tmp_path, content):
    path = tmp_path / "schedule"
    path.write_bytes(HEADER.encode() + content)
    with contextlib.suppress(InputError):  # raises nothing else
        assert read_schedule(path, Batching()).served
