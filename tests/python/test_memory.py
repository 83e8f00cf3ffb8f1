"""Inputs with gaps between their elements are read where they are: peak memory shows no copy of them."""

import os
import subprocess
import sys

import pytest

# Runs every call with small arrays, so that everything is loaded, then with large ones. Prints how far the peak
# of each rose above what was there before, less the results.
PROGRAM = """
import sys
import numpy as np
import megamoe
FRAMEWORK = sys.argv[1]
if FRAMEWORK == "torch":
    import torch

def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024

def own(array):
    return torch.from_numpy(array) if FRAMEWORK == "torch" else array

def calls(rows, columns):
    # Arrays with every second column of a wider one, filled in place.
    wide = np.empty((rows, 2 * columns), np.float32)
    wide.fill(1)
    gaps = own(wide)[:, ::2]
    index = np.arange(2 * rows, dtype=np.int32)
    slots = own(index)[::2]
    probs = own(np.ones((rows, 2), np.float32))[:, :1]
    ids = own(index % 4)[::2].reshape(-1, 1)
    return {
        "moe_init_routing_v3": lambda: megamoe.moe_init_routing_v3(gaps, ids, expert_num=4, active_num=4),
        "moe_init_routing_v3 int8": lambda: megamoe.moe_init_routing_v3(
            gaps, ids, expert_num=4, active_num=4, quant_mode=1),
        "moe_token_permute": lambda: megamoe.moe_token_permute(gaps, ids, 4),
        "moe_token_permute_grad": lambda: megamoe.moe_token_permute_grad(gaps, slots[:4], 2),
        "moe_token_unpermute": lambda: megamoe.moe_token_unpermute(gaps, slots[:4], probs[:4]),
        "moe_token_unpermute_grad": lambda: megamoe.moe_token_unpermute_grad(
            gaps, gaps[:4], slots[:4], probs[:4]),
        "moe_gating_top_k": lambda: megamoe.moe_gating_top_k(gaps, 2),
        "quantise": lambda: megamoe.quantise("int8_per_token", gaps),
        "cast": lambda: megamoe.cast(gaps, "float8_e4m3fn"),
        "convert_layout": lambda: megamoe.convert_layout(gaps, "FRACTAL_NZ"),
    }

def grown(call):
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")  # the peak starts again from here
    before = status("VmHWM")
    results = call()
    results = results if isinstance(results, tuple) else (results,)
    size = sum(array.numel() * array.element_size() if FRAMEWORK == "torch" else array.nbytes
               for array in results)
    return status("VmHWM") - before - size

for call in calls(16, 16).values():
    call()
for name, call in calls(2048, 4096).items():
    print(name, grown(call), sep=":")
"""
NAMES = [
    "moe_init_routing_v3",
    "moe_init_routing_v3 int8",
    "moe_token_permute",
    "moe_token_permute_grad",
    "moe_token_unpermute",
    "moe_token_unpermute_grad",
    "moe_gating_top_k",
    "quantise",
    "cast",
    "convert_layout",
]
MIB = 1 << 20
INPUT = 32 * MIB  # what a copy of the input without its gaps would take


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_no_copy_of_inputs_with_gaps(framework):
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system does not measure peaks of memory")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, framework],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": str(MIB)},  # what is freed is given back at once
    )
    assert done.returncode == 0, done.stderr
    grown = dict(line.split(":") for line in done.stdout.splitlines())
    assert list(grown) == NAMES
    assert {name: int(size) for name, size in grown.items() if int(size) >= INPUT // 4} == {}
