"""A level without its instruction, a wide instruction in the generic level and a spilled tile are reported."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from check_disassembly import FITTED_COMPILER, problems_of  # noqa: E402
from isa_objects import compiler_of  # noqa: E402

TILE = "0000000000000000 <void megamoe::isa_x::(anonymous namespace)::tile_s8<2>(megamoe::kernel::Tile const&)>:\n"
OTHER = "0000000000000000 <megamoe::isa_x::pack(megamoe::kernel::PackRows const&)>:\n"
DOT = "   0:\tvpdpbusd %zmm1,%zmm2,%zmm3\n"
SPILL = "   6:\tvmovdqa64 %zmm0,0x40(%rsp)\n"
RELOAD = "   6:\tvmovaps -0x40(%rbp),%zmm0\n"


def test_level_needs_its_instruction() -> None:
    assert problems_of("avx512_vnni", TILE + DOT) == []
    (message,) = problems_of("avx512_vnni", TILE)
    assert "vpdpbusd" in message


def test_narrow_form_does_not_count() -> None:
    assert problems_of("avx512_vnni", TILE + DOT.replace("zmm", "xmm"))


def test_generic_has_no_wide_instruction() -> None:
    assert problems_of("generic", OTHER + "   0:\tmulps  %xmm0,%xmm1\n") == []
    (message,) = problems_of("generic", OTHER + "   0:\tvmulps %ymm0,%ymm1,%ymm2\n")
    assert "vmulps %ymm0,%ymm1,%ymm2" in message
    assert problems_of("generic", OTHER + "   0:\tvmulss %xmm0,%xmm1,%xmm2\n")


def test_tiles_keep_vectors_in_registers() -> None:
    assert problems_of("avx512_vnni", OTHER + SPILL + RELOAD + TILE + DOT) == []
    (message,) = problems_of("avx512_vnni", TILE + DOT + SPILL + RELOAD)
    assert "2 vector accesses to the stack" in message
    assert "tile_s8<2>" in message
    assert problems_of("avx512_vnni", TILE + DOT + SPILL, "Clang 14") == []


def test_compiler_is_the_one_of_the_build(tmp_path: Path) -> None:
    assert compiler_of(tmp_path) == ""
    (tmp_path / "CMakeFiles/3.25.1").mkdir(parents=True)
    (tmp_path / "CMakeFiles/3.25.1/CMakeCXXCompiler.cmake").write_text(
        'set(CMAKE_CXX_COMPILER_ID "GNU")\nset(CMAKE_CXX_COMPILER_VERSION "12.2.0")\n'
    )
    assert compiler_of(tmp_path) == FITTED_COMPILER


def test_unknown_level_needs_a_row() -> None:
    (message,) = problems_of("avx1024", "")
    assert "REQUIRED" in message
