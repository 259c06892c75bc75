"""What multiplications wait for is counted from the machine code."""

from __future__ import annotations

from pathlib import Path

import pytest
import register_banks

LISTING = """
\t.section\t.text.other,"ax",@progbits
.text.other:
.L_x_0:
        /*0000*/                   FFMA R1, R2, R3, R1 ;
        /*0010*/                   BRA `(.L_x_0);
\t.section\t.text.gemm,"ax",@progbits
.text.gemm:
        /*0000*/                   MOV R1, R2 ;
.L_x_1:
        /*0010*/                   S2R R0, SR_TID.X ;
.L_x_2:
        /*0020*/                   LDS.128 R8, [R5+0x10] ;
        /*0030*/                   FFMA R20, R8.reuse, R4, R21 ;
        /*0040*/                   FFMA R22, R8, R6, R22 ;
        /*0050*/              @P0  BRA `(.L_x_2) ;
        /*0060*/                   FFMA R20, R8, R4, R20 ;
        /*0070*/              @P1  BRA `(.L_x_1) ;
        /*0080*/                   EXIT ;
"""


def test_the_main_loop_is_the_innermost_one_of_the_kernel():
    loop = register_banks.main_loop(LISTING)
    assert (loop.instructions, loop.multiplications) == (4, 2)
    assert loop.bank_cycles == 2 + 2  # R8 and R4, then R6 and R22, are even
    assert (loop.banks, loop.cycles) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("instructions", "cycles"),
    [
        (["FFMA R9, R2, R3, R9"], 2),
        (["FFMA R9, R2, R3, RZ"], 1),
        (["FFMA R9, R3, R5, R9"], 3),
        (["FFMA R9, R2, R2, R9"], 1),
        (["FFMA R9, R2.reuse, R3, R9", "FFMA R7, R2, R4, R7"], 3),
        (["FFMA R9, R2, R3, R9", "FFMA R7, R2, R4, R7"], 4),
        (["FFMA R9, R2.reuse, R3, R9", "FFMA R7, R4, R2, R7"], 4),  # kept in another place
        (["FFMA R9, R2.reuse, R3, R9", "MOV R1, R2", "FFMA R7, R2, R4, R7"], 3),
        (["FFMA.FTZ R9, -R2, |R4|, R9", "IADD3 R1, R3, R5, R7"], 2),
        (["FFMA R9, R2, c[0x0][0x160], R9"], 1),
    ],
)
def test_a_bank_is_read_once_in_a_cycle(instructions, cycles):
    assert register_banks.bank_cycles(instructions) == cycles


def test_a_row_is_a_kernel(monkeypatch, capsys):
    monkeypatch.setattr(register_banks, "sass", lambda *_: LISTING)
    monkeypatch.setattr(register_banks, "NvrtcCompiler", lambda: None)
    records = Path(register_banks.__file__).parents[1] / "bench/records" / "nvidia-h200"
    assert register_banks.main([str(records)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| 2048 x 2048 x 2048 | 128 x 256 x 16, 16 x 8 | columns | 2.00 | 3.00 | 48.4 |" in lines
    assert "| 2048 x 2048 x 2048 | 128 x 256 x 16, 16 x 8 | rows | 2.00 | 3.00 |  |" in lines
    assert len([line for line in lines if "| rows |" in line]) == 10
