"""The committed cases of mega_moe through the package: both frameworks, raw and packed weights, threads and
processes."""

import uuid

import numpy as np
import pytest

import cases
import megamoe
from ranks import in_processes, in_threads

CASES = cases.names("mm_")
ERRORS = cases.names("err_mm_")
BUFFER_ATTRIBUTES = (
    "max_recv_token_num",
    "dispatch_quant_mode",
    "dispatch_quant_out_dtype",
    "combine_quant_mode",
    "comm_alg",
    "num_max_tokens_per_rank",
    "topo_type",
    "rank_num_per_server",
    "topk_weights_type",
    "combine_comm_mode",
    "profile",
)
ACTIVATION_PARAMETERS = {"situglu": ("beta", "linear_beta")}
# Argument of the case -> argument of mega_moe, once for the routed and once for the shared experts.
WEIGHTS = {"weight": "l{}_weights", "weight_scales": "l{}_weights_sf", "bias": "l{}_bias"}


def is_bytes(tensor, style):
    """Whether a style carries the weights as uint8, so that their type has to be stated."""
    own = ("int4", "float4_e2m1") if style == "numpy" else ("int4",)
    return tensor.dtype in own or (style == "bytes" and tensor.dtype.startswith("float"))


def convert(tensor, style):
    """A tensor of a case as the caller of a style has it.

    numpy: ml_dtypes types, packed types as bytes. torch: torch's own types. bytes: uint8 wherever it is
    taken, with the type beside it.
    """
    array = tensor.array
    if style == "bytes" and tensor.dtype.startswith(("float8", "float4")):
        array = tensor.bytes()
    if style == "torch":
        import torch

        array = cases.to_torch(array)
        if tensor.dtype == "float4_e2m1":
            array = array.view(torch.float4_e2m1fn_x2)
    if tensor.layout == "ND":
        return array
    shape = tensor.shape
    if tensor.dtype == "int32":
        shape = (*shape[:-1], 8 * shape[-1])
    return megamoe.FractalTensor(array, shape, tensor.layout)


def make_buffer(case, group):
    attrs = case.attrs
    x, ids, weight1 = (case.input(arg) for arg in ("x", "topk_ids", "weight1"))
    outputs = weight1.shape[1] if weight1.dtype.startswith("float") else weight1.shape[2]
    return megamoe.get_symm_buffer_for_mega_moe(
        group,
        attrs["moe_expert_num"],
        num_topk=ids.shape[1],
        hidden=x.shape[1],
        intermediate_hidden=outputs * (8 if weight1.dtype == "int32" else 1) // 2,
        threads=1,
        **{name: attrs[name] for name in BUFFER_ATTRIBUTES},
    )


def activation(case):
    name, listed = case.attrs["activation"], case.attrs["activation_params"]
    keys = ACTIVATION_PARAMETERS.get(name, ("clamp", "alpha", "beta"))
    parameters = dict(zip(keys, listed))
    return dict(
        activation=name, activation_clamp=parameters.pop("clamp", None), activation_params=parameters or None
    )


def call_arguments(case, rank, style, packed=False):
    arguments = activation(case)
    for name in ("x", "scales", "topk_ids", "topk_weights", "x_active_mask"):
        if (tensor := case.input(name, rank)) is not None:
            arguments[name] = convert(tensor, style)
    for prefix in ("", "shared_"):
        for index in (1, 2):
            for source, target in WEIGHTS.items():
                if (tensor := case.input(f"{prefix}{source}{index}", rank)) is None:
                    continue
                arguments[prefix + target.format(index)] = convert(tensor, style)
                if source == "weight" and is_bytes(tensor, style):
                    arguments[f"{prefix}weight{index}_type"] = tensor.dtype
    if case.attrs["shared_expert_quant_out_dtype"] != 28:
        arguments["shared_expert_quant_out_dtype"] = case.attrs["shared_expert_quant_out_dtype"]
    arguments["weight1_interleave"] = case.attrs.get("weight1_interleave", 0)
    return pack(case, arguments) if packed else arguments


def pack(case, arguments):
    """The same call with packed weights."""
    result = dict(arguments)
    order = result.pop("weight1_interleave")
    for prefix in ("", "shared_"):
        if f"{prefix}l1_weights" not in arguments:
            continue

        def take(name):
            return result.pop(prefix + name, None)

        layer = megamoe.pack_weights(
            take("l1_weights"),
            take("l2_weights"),
            l1_sf=take("l1_weights_sf"),
            l2_sf=take("l2_weights_sf"),
            l1_bias=take("l1_bias"),
            l2_bias=take("l2_bias"),
            weight1_interleave=order,
            weight1_type=take("weight1_type"),
            weight2_type=take("weight2_type"),
            gated=case.attrs["activation"] != "gelu",
            threads=1,
        )
        result[f"{prefix}l1_weights"], result[f"{prefix}l2_weights"] = layer
    return result


def run_rank(case, rank, group, style, packed=False):
    with make_buffer(case, group) as buffer:
        y, counts = megamoe.mega_moe(sym_buffer=buffer, **call_arguments(case, rank, style, packed))
        scenario = buffer.describe().splitlines()[0]
    return y, counts, scenario


def check_rank(case, rank, result):
    assert not isinstance(result, (Exception, str)), result
    y, counts, scenario = result
    assert scenario.startswith(f"scenario: {case.attrs['scenario']}")
    cases.check(case.expect["y", rank], y)
    cases.check(case.expect["expert_token_nums", rank], counts)


@pytest.mark.parametrize("style, packed", [("numpy", False), ("torch", False), ("bytes", True)])
@pytest.mark.parametrize("name", CASES)
def test_case(name, style, packed):
    case = cases.load(name)
    groups = megamoe.Group.local(case.ranks) if case.ranks > 1 else [None]
    results = in_threads(lambda rank: run_rank(case, rank, groups[rank], style, packed), case.ranks)
    for rank, result in enumerate(results):
        check_rank(case, rank, result)


def shm_rank(rank, name, key, ranks):
    y, counts, scenario = run_rank(cases.load(name), rank, megamoe.Group.shm(key, rank, ranks), "numpy")
    return y.view(np.uint16), counts, scenario


@pytest.mark.parametrize("name", ["mm_fp4_shared_in_w8", "mm_w4int_nz_ep2"])
def test_case_over_processes(name):
    case = cases.load(name)
    results = in_processes(shm_rank, case.ranks, name, f"vectors-{uuid.uuid4().hex}", case.ranks)
    for rank, (y, counts, scenario) in enumerate(results):
        check_rank(case, rank, (y.view(cases.TYPES["bfloat16"]), counts, scenario))


@pytest.mark.parametrize("name", ERRORS)
def test_error_names_the_argument(name):
    case = cases.load(name)
    with pytest.raises((ValueError, TypeError)) as caught:
        run_rank(case, 0, None, "numpy")
    renamed = {"weight2": "l2_weights"}
    assert renamed.get(case.error_arg, case.error_arg) in str(caught.value)
