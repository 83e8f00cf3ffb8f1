"""A symbol that leaves its level is reported; one that carries the level's namespace is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from check_symbols import foreign_symbols  # noqa: E402


@pytest.mark.parametrize(
    "symbol",
    [
        "0000000000000000 R _ZN7megamoe10isa_avx5129gemm_bf16E",
        "0000000000000000 W _ZN7megamoe6kernel7combineINS_10isa_avx5123F32EEEvRKNS0_10CombineRowE",
        "0000000000000000 t _ZN12_GLOBAL__N_14tileE",
        "0000000000000000 r .LC0",
    ],
)
def test_own_and_local_symbols_pass(symbol: str) -> None:
    assert foreign_symbols("avx512", symbol) == []


@pytest.mark.parametrize(
    ("symbol", "problem"),
    [
        ("0000000000000000 W _ZSt3maxIfERKT_S2_S2_", "visible outside"),
        ("0000000000000000 T _ZN7megamoe6format13bf16_to_floatEt", "visible outside"),
        ("0000000000000000 u _ZN7megamoe6kernel5tableE", "visible outside"),
        # The name of another level that only begins alike.
        ("0000000000000000 R _ZN7megamoe15isa_avx512_vnni7gemm_s8E", "visible outside"),
        ("0000000000000000 t _GLOBAL__sub_I_gemm_bf16", "runs before main"),
    ],
)
def test_foreign_symbols_are_named(symbol: str, problem: str) -> None:
    (message,) = foreign_symbols("avx512", symbol)
    assert problem in message
    assert symbol.split()[-1] in message
