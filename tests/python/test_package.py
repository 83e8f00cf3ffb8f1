"""What the package says of itself, and what it needs."""

import os
import subprocess
import sys
from importlib import resources

import pytest

import megamoe


def run_python(code, **environment):
    """A fresh interpreter; its exit code, output and errors."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )


def test_info():
    info = megamoe.info()
    assert info["version"] == megamoe.__version__
    names = [level["name"] for level in info["levels"]]
    assert names[0] == "generic" and info["isa"] in names
    assert info["isa_reason"]
    for level in info["levels"]:
        assert level["runnable"] == (not level["reason"])


def test_unknown_isa_in_the_environment_is_an_error():
    done = run_python("import megamoe; megamoe.info()", MEGAMOE_ISA="sse9")
    assert done.returncode == 1
    assert "ValueError" in done.stderr and "sse9" in done.stderr


def test_import_does_not_import_torch():
    done = run_python("import megamoe, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_typed():
    files = {entry.name for entry in resources.files(megamoe).iterdir()}
    assert {"py.typed", "_core.pyi"} <= files


def test_errors_carry_a_code():
    with pytest.raises(ValueError) as caught:
        megamoe.get_symm_buffer_for_mega_moe(None, 4, 1, -1, 64, 32)
    assert caught.value.code == megamoe.Code.INVALID_ARGUMENT
    assert issubclass(megamoe.DeadlineError, RuntimeError) and issubclass(megamoe.DeadlineError, TimeoutError)
