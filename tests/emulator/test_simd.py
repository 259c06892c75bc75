"""CUDA's SIMD and DPX intrinsics on the host, against a model in Python's integers.

The model follows the CUDA Math API's descriptions and, for rounded averages, PTX ISA, "vavrg2".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

pytestmark = pytest.mark.slow

Parts = Sequence[int]
CASES = 16
WORD = 2**32
KINDS = (("s32", 32, True), ("u32", 32, False), ("s16x2", 16, True), ("u16x2", 16, False))


def split(word: int, bits: int, signed: bool) -> list[int]:
    parts = [word >> k & 2**bits - 1 for k in range(0, 32, bits)]
    return [part - 2**bits if signed and part >= 2 ** (bits - 1) else part for part in parts]


def joined(parts: Parts, bits: int) -> int:
    return sum(part % 2**bits << bits * k for k, part in enumerate(parts))


def clamped(value: int, bits: int, signed: bool) -> int:
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return min(max(value, least), most)


ONE = {"abs": abs, "neg": lambda a: -a}
TWO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
}
COMPARED = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
}
# For signed and for unsigned parts.
BOTH = {
    "max": max,
    "min": min,
    "absdiff": lambda a, b: abs(a - b),
    # Rounded to the nearest integer, halves away from zero.
    "avg": lambda a, b: (abs(a + b) + 1) // 2 * (1 if a + b >= 0 else -1),
}


def by_part(f: Callable[..., int], bits: int, signed: bool) -> Callable[..., int]:
    """Return the model of an intrinsic that applies ``f`` to each part."""

    def model(*words):
        parts = zip(*(split(word, bits, signed) for word in words), strict=True)
        return joined([f(*one) for one in parts], bits)

    return model


def clamping(f: Callable[..., int], bits: int, signed: bool) -> Callable[..., int]:
    return by_part(lambda *parts: clamped(f(*parts), bits, signed), bits, signed)


def sum_of_differences(bits: int, signed: bool) -> Callable[..., int]:
    def model(a, b):
        pairs = zip(split(a, bits, signed), split(b, bits, signed), strict=True)
        return sum(abs(one - other) for one, other in pairs)

    return model


def mask(f: Callable[..., int]) -> Callable[..., int]:
    return lambda a, b: -int(f(a, b))


def simd() -> Iterator[tuple[str, int, Callable[..., int]]]:
    """Yield the name, the number of operands and the model of each intrinsic on parts of a word."""
    for parts in (2, 4):
        bits = 32 // parts
        for name, f in ONE.items():
            yield f"__v{name}{parts}", 1, by_part(f, bits, True)
            yield f"__v{name}ss{parts}", 1, clamping(f, bits, True)
        for name, f in TWO.items():
            yield f"__v{name}{parts}", 2, by_part(f, bits, True)
            yield f"__v{name}ss{parts}", 2, clamping(f, bits, True)
            yield f"__v{name}us{parts}", 2, clamping(f, bits, False)
        yield f"__vhaddu{parts}", 2, by_part(lambda a, b: (a + b) // 2, bits, False)
        for kind, signed in (("s", True), ("u", False)):
            for name, f in BOTH.items():
                yield f"__v{name}{kind}{parts}", 2, by_part(f, bits, signed)
            yield f"__vsad{kind}{parts}", 2, sum_of_differences(bits, signed)
        for name, f in COMPARED.items():
            for kind, signed in (("", True),) if name in "eq ne" else (("s", True), ("u", False)):
                yield f"__vset{name}{kind}{parts}", 2, by_part(f, bits, signed)
                yield f"__vcmp{name}{kind}{parts}", 2, by_part(mask(f), bits, signed)


def not_negative(f: Callable[..., int]) -> Callable[..., int]:
    return lambda *parts: max(f(*parts), 0)


def after_sum(f: Callable[..., int], bits: int, signed: bool) -> Callable[..., int]:
    return lambda a, b, c: f(split((a + b) % 2**bits, bits, signed)[0], c)


def dpx() -> Iterator[tuple[str, int, Callable[..., int]]]:
    """Yield the same for DPX intrinsics, which have two or three operands."""
    for kind, bits, signed in KINDS:
        for name, f in (("max", max), ("min", min)):
            added = after_sum(f, bits, signed)
            yield f"__vi{name}3_{kind}", 3, by_part(f, bits, signed)
            yield f"__viadd{name}_{kind}", 3, by_part(added, bits, signed)
            if signed:
                yield f"__vi{name}_{kind}_relu", 2, by_part(not_negative(f), bits, signed)
                yield f"__vi{name}3_{kind}_relu", 3, by_part(not_negative(f), bits, signed)
                yield f"__viadd{name}_{kind}_relu", 3, by_part(not_negative(added), bits, signed)


INTRINSICS = [*simd(), *dpx()]
TEXT = """
__global__ void k(const unsigned* x, unsigned* y) {
  for (int i = 0; i < CASES; ++i, x += 3) {
    unsigned a = x[0], b = x[1], c = x[2];
CALLS
  }
}
"""
EDGES = (0, 1, 0xFF, 0x7F, 0x80, 0x7FFF, 0x8000, 0x80808080, 0x7F7F7F7F, 0x7FFFFFFF, 0x80000000)
words = st.integers(0, WORD - 1) | st.sampled_from([*EDGES, WORD - 1, 0xFF01FE02, 0x80007FFF])
cases = st.lists(st.tuples(words, words, words), min_size=CASES, max_size=CASES)


@given(cases)
def test_simd_and_dpx_intrinsics_follow_their_descriptions(computed, drawn):
    calls = "".join(
        f"    *y++ = {name}({', '.join('abc'[:count])});\n" for name, count, _ in INTRINSICS
    )
    text = TEXT.replace("CALLS", calls).replace("CASES", str(CASES))
    x = np.array(drawn, np.uint32).ravel()
    y = computed(text, x, size=CASES * len(INTRINSICS), dtype="uint32").reshape(CASES, -1)
    expected = [[model(*operands[:count]) for _, count, model in INTRINSICS] for operands in drawn]
    wrong = {
        (INTRINSICS[k][0], hex(drawn[case][0]), hex(drawn[case][1]), hex(drawn[case][2]))
        for case, k in np.argwhere(y != np.array(expected, np.uint32))
    }
    assert not wrong


CHOSEN = {"max": (max, lambda a, b: a >= b), "min": (min, lambda a, b: a <= b)}


@given(cases)
def test_dpx_intrinsics_tell_which_operand_was_chosen(computed, drawn):
    calls, models = "", []
    for name in CHOSEN:
        for kind, bits, signed in KINDS:
            flags = "&high, &low" if bits == 16 else "&low"
            calls += f"    high = 0; *y++ = __vib{name}_{kind}(a, b, {flags});"
            calls += " *y++ = 2 * high + low;\n"
            models.append((name, bits, signed))
    text = TEXT.replace("CALLS", calls).replace("CASES", str(CASES))
    text = text.replace("c = x[2];", "c = x[2]; bool high, low;")
    x = np.array(drawn, np.uint32).ravel()
    y = computed(text, x, size=CASES * 2 * len(models), dtype="uint32")
    expected = []
    for a, b, _ in drawn:
        for name, bits, signed in models:
            chosen, compared = CHOSEN[name]
            pairs = list(zip(split(a, bits, signed), split(b, bits, signed), strict=True))
            expected.append(joined([chosen(pair) for pair in pairs], bits))
            expected.append(sum(compared(*pair) << k for k, pair in enumerate(pairs)))
    assert y.tolist() == expected
