"""Reading what a kernel's process answers, whoever has written it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import Answers
from pytest_gpuenergy.support import KernelFault


def cut(text: bytes, places: list[int]) -> list[bytes]:
    """``text`` in pieces, as a pipe may deliver it."""
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.lists(st.integers(0, 99)))
def test_an_answer_is_read_however_it_is_cut(count: int, spent_us: int, places: list[int]) -> None:
    answers = Answers("k")
    line = f"{answers.ask()} ran {count} {spent_us / 1e6:.6f}\n"
    for piece in cut(line.encode(), places):
        answers.take(piece)
    told = answers.runs(most=count, budget_s=0.0, elapsed_s=1.0)
    assert told == (count, spent_us / 1e6)


@given(st.binary(min_size=1), st.lists(st.integers(0, 99)))
def test_any_bytes_without_the_token_are_a_fault(text: bytes, places: list[int]) -> None:
    answers = Answers("k")
    answers.ask()
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        [answers.take(piece) for piece in cut(text + b"\n", places)]


@given(st.one_of(st.text(), st.from_regex(r"(ran|fault|profile|done)[ 0-9a-z.\n]*")))
def test_any_text_with_the_token_is_an_answer_or_a_fault(text: str) -> None:
    answers = Answers("k")
    token = answers.ask()
    count, spent_s, said = 1, 0.0, ""
    try:
        answers.take(f"{token} {text}\n".encode(errors="replace"))
        count, spent_s = answers.runs(most=9, budget_s=0.0, elapsed_s=1.0)
    except KernelFault as fault:
        said = str(fault)
    assert said.isprintable()
    assert 1 <= count <= 9
    assert 0 <= spent_s <= 1.1


def test_an_answer_to_the_question_before_is_a_fault() -> None:
    answers = Answers("k")
    old = answers.ask()
    answers.take(f"{old} ran 1 0.000001\n".encode())
    answers.runs(most=1, budget_s=0.0, elapsed_s=1.0)
    answers.ask()
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        answers.take(f"{old} ran 1 0.000001\n".encode())


def test_an_answer_without_end_is_a_fault() -> None:
    answers = Answers("k")
    answers.take(answers.ask().encode() + b" ")
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        [answers.take(b"0" * (1 << 16)) for _ in range(17)]
