"""Macros that stand for strings in inline PTX."""

from __future__ import annotations

from pytest_gpuenergy.emulator import MacroStrings, with_choice

# As in the header of TVM's kernels in half precision: no string, but a long row of words.
FUNCTION = """#define UNARY(NAME, OTHER) \\
static inline __device__ __host__ half NAME(half x) {   \\
  return __float2half(OTHER(__half2float(x)));          \\
}
"""
WORDS = f"#define WORDS {'word ' * 50}+ 1\n"
COMMENTED = '#define TYPE ".f32"  // one of two\n'
STRING = '#define WAIT(n) "cp.async.wait_group " #n ";"\n'


def test_a_macro_of_many_words_that_is_no_string_is_passed_over() -> None:
    strings = MacroStrings(FUNCTION + WORDS + STRING)
    assert strings.value("UNARY", "(a, b)") is None
    assert strings.value("WORDS", "") is None
    assert strings.value("WAIT", "(3)") == "cp.async.wait_group 3;"


def test_a_macro_with_several_definitions_is_a_choice() -> None:
    strings = MacroStrings(COMMENTED + '#define TYPE ".s32" /* the other */\n' + STRING)
    assert strings.value("TYPE", "") is None
    assert strings.choice_in('("add" TYPE " TYPE")') == ("TYPE", ['".f32"', '".s32"'])
    assert strings.choice_in('(WAIT(3) " TYPE")') is None
    assert with_choice('("add" TYPE " TYPE")', "TYPE", '".s32"') == '("add" ".s32" " TYPE")'
