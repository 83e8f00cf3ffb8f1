"""The cells of the table "parameter x kind x profile" that only Python can try: values of a wrong Python type, required
arguments left out, and the arguments that only the first version of the operator has.

tests/data/limits/parameters.txt lists the parameters and absent.txt the cells that the table in C++ leaves to this one; a
cell of those without a case here is a failure.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import megamoe
from layers import BF16
from ranks import in_threads

DIRECTORY = Path(__file__).parent.parent / "data" / "limits"
KINDS = ["smallest", "largest", "outside", "wrong type", "wrong shape", "missing", "superfluous"]
PROFILES = ["cpu", "ascend_a2_a3", "ascend_950", "mega_moe_v1"]
OF_V1 = [profile for profile in PROFILES if profile != "ascend_a2_a3"]  # which has no dispatch_quant_mode 4
LEFT_OUT = object()
TOKENS, MOST_TOKENS = 2, 8


class Smallest:
    """The smallest legal settings, layer and call of a profile on one of two ranks, all values zero."""

    def __init__(self, profile):
        first, a2_a3 = profile == "mega_moe_v1", profile == "ascend_a2_a3"
        hidden = dict(cpu=64, mega_moe_v1=4096).get(profile, 1024)
        inter = 64 if profile == "cpu" else 512
        experts = 6 if first else 2
        topk = 6 if first else 2
        local = experts // 2
        self.settings = dict(num_experts=experts, num_max_tokens_per_rank=MOST_TOKENS, num_topk=topk)
        self.settings |= dict(hidden=hidden, intermediate_hidden=inter, profile=profile, threads=1)
        self.tokens = dict(
            x=np.zeros((TOKENS, hidden), BF16),
            topk_ids=np.tile(np.arange(topk, dtype=np.int32), (TOKENS, 1)),
            topk_weights=np.zeros((TOKENS, topk), np.float32),
        )
        if a2_a3:
            self.weights = dict(l1_weights=[np.zeros((hidden, 2 * inter), BF16)])
            self.weights |= dict(l2_weights=[np.zeros((inter, hidden), BF16)])
            return
        self.settings |= dict(dispatch_quant_mode=4, dispatch_quant_out_dtype=torch.float8_e4m3fn)
        codes = ml_dtypes.float8_e4m3fn
        self.weights = dict(
            l1_weights=np.zeros((local, 2 * inter, hidden), codes),
            l2_weights=np.zeros((local, hidden, inter), codes),
            l1_weights_sf=np.zeros((local, 2 * inter, hidden // 64, 2), np.uint8),
            l2_weights_sf=np.zeros((local, hidden, inter // 64, 2), np.uint8),
        )

    def size(self):
        """Arguments of `get_mega_moe_ccl_buffer_size`."""
        of_size = inspect.signature(megamoe.get_mega_moe_ccl_buffer_size).parameters
        values = self.settings | dict(ep_world_size=2, moe_expert_num=self.settings["num_experts"])
        return {name: value for name, value in values.items() if name in of_size}

    def call(self, buffer):
        return self.tokens | self.weights | dict(sym_buffer=buffer)

    def first_version(self, buffer):
        """Arguments of `mega_moe_v1`."""
        names = ("weight1", "weight2", "weight_scales1", "weight_scales2")
        values = self.tokens | dict(zip(names, self.weights.values())) | dict(context=buffer)
        return values | dict(
            moe_expert_num=buffer.num_experts,
            ep_world_size=2,
            ccl_buffer_size=buffer.ccl_buffer_size,
            dispatch_quant_mode=4,
            dispatch_quant_out_type=24,
        )


BUFFER, SIZE, CALL, V1 = (
    megamoe.get_symm_buffer_for_mega_moe,
    megamoe.get_mega_moe_ccl_buffer_size,
    megamoe.mega_moe,
    megamoe.ops.mega_moe_v1,
)


def wrong_type(parameter, function, value, text, argument=None):
    return parameter, "wrong type", function, {argument or parameter: value}, TypeError, text


def left_out(parameter, function, argument=None, how="positional"):
    name = argument or parameter
    text = f"{function.__name__}() missing 1 required {how} argument: '{name}'"
    return parameter, "missing", function, {name: LEFT_OUT}, TypeError, text


INTEGERS = (
    "num_experts",
    "num_max_tokens_per_rank",
    "num_topk",
    "hidden",
    "intermediate_hidden",
    "max_recv_token_num",
    "dispatch_quant_mode",
    "combine_quant_mode",
    "topk_weights_type",
    "topo_type",
    "rank_num_per_server",
    "combine_comm_mode",
    "ccl_buffer_size",
)
A_TYPE = "expected a torch or NumPy type, a name or an operator number"
NO_NAME = "mega_moe() got an unexpected keyword argument 'activation_out_dtype'"
GLOBAL_BS = "expected 0, or a multiple of 2 (ep_world_size) from 4 (tokens of x times ep_world_size) on"
# parameter, kind, function, changed arguments, exception (None = accepted), its whole text
CASES = [
    *(wrong_type(name, BUFFER, "4", f"{name} = '4': expected an integer") for name in INTEGERS),
    wrong_type("ep_world_size", SIZE, 2.0, "ep_world_size = 2.0: expected an integer"),
    wrong_type("weight1_interleave", CALL, None, "weight1_interleave = None: expected an integer"),
    wrong_type("dispatch_quant_out_dtype", BUFFER, [24], f"dispatch_quant_out_dtype = [24]: {A_TYPE}"),
    wrong_type("shared_expert_quant_out_dtype", CALL, [24], f"shared_expert_quant_out_dtype = [24]: {A_TYPE}"),
    wrong_type("comm_alg", BUFFER, 0, "comm_alg = 0: expected a string"),
    wrong_type("activation", CALL, 1, "activation = 1: expected a string"),
    wrong_type("activation_clamp", CALL, "7", "activation_clamp = '7': expected a number"),
    *(
        wrong_type(
            f"activation_params.{key}",
            CALL,
            {key: "1"},
            f"activation_params['{key}'] = '1': expected a number",
            "activation_params",
        )
        for key in ("alpha", "beta", "linear_beta")
    ),
    wrong_type("transpose_weight1", CALL, 1, "transpose_weight1 = 1: expected True or False"),
    wrong_type("transpose_weight2", CALL, 0, "transpose_weight2 = 0: expected True or False"),
    wrong_type("context", CALL, None, "sym_buffer = NoneType: expected a SymmBuffer", "sym_buffer"),
    wrong_type("context", V1, 7, "context = int: expected a SymmBuffer"),
    wrong_type("global_bs", V1, "16", "global_bs = '16': expected an integer"),
    *(left_out(name, BUFFER) for name in INTEGERS[:5]),
    left_out("ep_world_size", SIZE),
    left_out("ep_world_size", V1, how="keyword-only"),
    left_out("num_experts", V1, "moe_expert_num", "keyword-only"),
    left_out("ccl_buffer_size", V1, how="keyword-only"),
    left_out("context", CALL, "sym_buffer"),
    left_out("context", V1),
    ("activation_out_dtype", "superfluous", CALL, {"activation_out_dtype": None}, TypeError, NO_NAME),
    ("global_bs", "smallest", V1, {"global_bs": 0}, None, ""),
    ("global_bs", "smallest", V1, {"global_bs": 2 * TOKENS}, None, ""),
    ("global_bs", "largest", V1, {"global_bs": 1 << 62}, None, ""),
    *(
        ("global_bs", "outside", V1, {"global_bs": value}, ValueError, f"global_bs = {value}: {GLOBAL_BS}")
        for value in (-2, 2, 5)
    ),
]


def read_rows(name, columns, separator=None):
    rows = []
    for line in (DIRECTORY / name).read_text().splitlines():
        if line and not line.startswith("#"):
            row = [word.strip() for word in line.split(separator)]
            assert len(row) == columns, line
            rows.append(row)
    return rows


def takes(profile, parameter):
    """Whether a case of the list can be tried under a profile."""
    return profile in OF_V1 or parameter != "global_bs"


def test_every_cell_left_to_python_has_a_case():
    held = {(profile, case[0], case[1]) for profile in PROFILES for case in CASES if takes(profile, case[0])}
    parameters = [(row[0], row[1]) for row in read_rows("parameters.txt", 4)]
    rows = [
        (profiles.split(), names.split(), [kind.strip() for kind in kinds.split(",")], why)
        for profiles, names, kinds, why in read_rows("absent.txt", 4, "|")
    ]
    left = 0
    for profile in PROFILES:
        for parameter, kind_of_parameter in parameters:
            for kind in KINDS:
                reasons = {
                    why
                    for profiles, names, kinds, why in rows
                    if {"*", profile} & set(profiles)
                    and {"*", parameter, f":{kind_of_parameter}"} & set(names)
                    and {"*", kind} & set(kinds)
                }
                if reasons == {"python"}:
                    left += 1
                    assert (profile, parameter, kind) in held, (profile, parameter, kind)
    assert left > 100


@pytest.fixture(scope="module", params=PROFILES)
def ranks(request):
    """A profile with a buffer for each of two ranks."""
    groups, smallest = megamoe.Group.local(2), Smallest(request.param)
    buffers = in_threads(lambda rank: BUFFER(groups[rank], **smallest.settings), 2)
    for buffer in buffers:
        assert isinstance(buffer, megamoe.SymmBuffer), buffer
    yield request.param, smallest, buffers
    for buffer in buffers:
        buffer.destroy()


@pytest.mark.parametrize(
    "parameter, kind, function, changes, error, text",
    CASES,
    ids=[f"{case[0]}-{case[1]}-{case[2].__name__}".replace(" ", "_") for case in CASES],
)
def test_cell(ranks, parameter, kind, function, changes, error, text):
    profile, smallest, buffers = ranks
    if not takes(profile, parameter):
        pytest.skip("the first version takes no buffer of this profile")
    groups = megamoe.Group.local(2)
    arguments = {
        BUFFER: lambda rank: smallest.settings | dict(group=groups[rank]),
        SIZE: lambda rank: smallest.size(),
        CALL: lambda rank: smallest.call(buffers[rank]),
        V1: lambda rank: smallest.first_version(buffers[rank]),
    }[function]

    def work(rank):
        given = arguments(rank) | changes
        return function(**{name: value for name, value in given.items() if value is not LEFT_OUT})

    for result in in_threads(work, 2):
        if error is None:
            assert not isinstance(result, Exception), result
        else:
            assert type(result) is error and str(result).removeprefix("rank 0: ") == text
    for result in in_threads(lambda rank: CALL(**smallest.call(buffers[rank])), 2):
        assert not isinstance(result, Exception), result  # the next legal call works
