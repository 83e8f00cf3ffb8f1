"""Checkpoints that lack a tensor, or have one of another shape or type, in every layout: the error names file, tensor and place."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("safetensors")

import megamoe
from checkpoints import awq, fp8_blocks, gptq, int8_channels, packed, plain
from families import (
    DEEPSEEK, EXPERTS, QWEN, build, compressed, config, ernie, fused, granite, mixtral, oss, quantised, qwen2,
    qwen3,
)  # fmt: skip


def deepseek():
    settings = config("deepseek_v3", "n_routed_experts", n_shared_experts=1, topk_method="noaux_tc")
    return build(DEEPSEEK, fp8_blocks, settings, shared=1, shared_store=fp8_blocks)


LAYOUTS = {
    "per expert": qwen3,
    "fused": lambda: fused(qwen3()),
    "mixtral": mixtral,
    "fp8 blocks with shared experts": deepseek,
    "a gated shared expert": lambda: qwen2(plain, {}, 2),
    "gptq": lambda: qwen3(gptq(128, False, 1), **quantised("gptq", 128, desc_act=True)),
    "awq": lambda: mixtral(awq(64), **quantised("awq", 64)),
    "compressed-tensors": lambda: qwen3(packed(64, False), **compressed(64, False)),
    "int8": lambda: qwen3(int8_channels, **compressed(-1, bits=8)),
    "ernie": lambda: ernie(1),
    "granite": lambda: granite(2),
    "gpt-oss": lambda: oss(True),
    "gpt-oss in bfloat16": lambda: oss(False),
}  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def model(request):
    return LAYOUTS[request.param]()


def without(model, *names):
    for name in names:
        del model.tensors[QWEN[0] + name]
    return model


def owner(name):
    """What an error says a tensor is of."""
    if expert := re.search(r"experts\.(\d+)\.", name):
        return f"expert {expert[1]} of {EXPERTS} in layer 1"
    if "shared_experts" in name or "shared_mlp" in name:
        return "the shared experts in layer 1"
    if "shared_expert" in name:
        return "the shared expert in layer 1"
    if ".experts." not in name and "put_linear" not in name:
        return "the router in layer 1"
    return f"all {EXPERTS} experts in layer 1" + (", biases on both linear layers" if name.endswith("_bias") else "")


def some(model):
    """Names of all tensors but those of experts other than the first and one in the middle."""
    return [name for name in model.tensors if not re.search(r"experts\.[12346789]\.", name)]


def error_of(folder):
    with pytest.raises(RuntimeError) as caught:
        megamoe.load_layer(folder, 1)
    assert caught.value.code == megamoe.Code.DATA_LOSS
    return str(caught.value)


def test_any_missing_tensor_is_named(model, tmp_path):
    for name in some(model):
        if name.endswith(".weight_shape"):  # repeats what config.json says
            continue
        kept = model.tensors.pop(name)
        text = error_of(model.save(tmp_path))
        assert text == f"{tmp_path}/model.safetensors: tensor '{name}' is missing: expected for {owner(name)}"
        model.tensors[name] = kept


def test_any_tensor_of_another_shape_is_named(model, tmp_path):
    for name in some(model):
        kept = model.tensors[name]
        for axis in range(kept.ndim):
            model.tensors[name] = cut = np.concatenate([kept, kept.take([0], axis)], axis)
            text = error_of(model.save(tmp_path))
            expected = f"{tmp_path}/model.safetensors: tensor '{name}' has shape {cut.shape}: expected "
            assert text.startswith(expected + str(kept.shape)) or (kept.ndim == 3 and text.startswith(expected))
        model.tensors[name] = kept


def test_any_tensor_of_another_type_is_named(model, tmp_path):
    for name in some(model):
        kept = model.tensors[name]
        model.tensors[name] = np.zeros(kept.shape, np.uint64 if kept.dtype == np.int64 else np.int64)
        kind = model.tensors[name].dtype.name
        text = error_of(model.save(tmp_path))
        assert text.startswith(f"{tmp_path}/model.safetensors: tensor '{name}' has type {kind}: expected ")
        model.tensors[name] = kept


def test_a_truncated_file(model, tmp_path):
    path = model.save(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 7, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert str(path) in error_of(tmp_path)
    assert re.search(r"tensor '.*data_offsets = \[\d+,\d+\]: expected an end of at most \d+, .* may be truncated", error_of(tmp_path))


@pytest.mark.parametrize("tensor, value, place", [
    ("experts.3.gate_proj.weight_scale_inv", None, "expert 3 of 8 in layer 1"),
    ("shared_experts.up_proj.weight_scale_inv", None, "the shared experts in layer 1"),
    ("gate.e_score_correction_bias", None, "the router in layer 1"),
])  # fmt: skip
def test_layers_that_would_load_with_wrong_numbers(tensor, value, place, tmp_path):
    text = error_of(without(deepseek(), tensor).save(tmp_path))
    assert text.endswith(f"tensor '{DEEPSEEK[0]}{tensor}' is missing: expected for {place}")


def test_no_experts_but_one_matrix(tmp_path):
    model = qwen3()
    model.tensors = {name: value for name, value in model.tensors.items() if "experts.6.down" in name or "gate.weight" in name}
    assert "'model.layers.1.mlp.experts.0.gate_proj.weight' is missing" in error_of(model.save(tmp_path))


def test_more_experts_than_there_are(tmp_path):
    model = qwen3()
    model.config["num_experts"] = EXPERTS + 1
    text = error_of(model.save(tmp_path))
    assert "tensor 'model.layers.1.mlp.gate.weight' has shape (8, 256): expected (9, 256)" in text


def test_two_forms_of_the_same_weights(tmp_path):
    model = qwen3()
    name = f"{QWEN[0]}experts.4.up_proj"
    model.tensors[f"{name}.qweight"] = np.zeros((32, 128), np.int32)
    assert error_of(model.save(tmp_path)) == (
        f"{tmp_path}/model.safetensors: tensor '{name}.qweight' is there beside "
        f"'{QWEN[0]}experts.0.gate_proj.weight': expected one form for all"
    )


def test_scales_beside_weights_that_take_none(tmp_path):
    model = qwen3()
    name = f"{QWEN[0]}experts.4.up_proj.weight"
    model.tensors[f"{name}_scale_inv"] = np.ones((1, 2), np.float32)
    assert error_of(model.save(tmp_path)) == (
        f"{tmp_path}/model.safetensors: tensor '{name}' has type bfloat16: expected float8_e4m3fn or int8 beside "
        f"'{name}_scale_inv'"
    )


def test_scales_of_channels_of_fp8_are_refused(tmp_path):
    model = qwen3(fp8_blocks)
    for name in [name for name in model.tensors if name.endswith("_scale_inv")]:
        del model.tensors[name]
        model.tensors[name.removesuffix("_inv")] = np.ones((128, 1), np.float32)
    with pytest.raises(ValueError, match="weight_scale' scales float8_e4m3fn: expected 'model.*weight_scale_inv' of 128"):
        megamoe.load_layer(model.save(tmp_path), 1)


@pytest.fixture
def shards(tmp_path):
    """Two shards with an index: (folder, weight_map, writer of the index)."""
    from safetensors.numpy import save_file

    model = qwen3(awq(128), **quantised("awq", 128))
    model.tensors = {name: np.ascontiguousarray(value.astype(np.float32) if value.dtype.num >= 256 else value)
                     for name, value in model.tensors.items()}  # fmt: skip
    model.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    parts = [{}, {}]
    for i, (name, value) in enumerate(sorted(model.tensors.items())):
        parts[i % 2][name] = value
    for file, part in zip(files, parts):
        save_file(part, tmp_path / file)
    where = {name: file for file, part in zip(files, parts) for name in part}
    index = tmp_path / "model.safetensors.index.json"

    def write(changed):
        index.write_text(changed if isinstance(changed, str) else json.dumps({"weight_map": changed}))
        return tmp_path

    write(where)
    megamoe.load_layer(tmp_path, 1)
    return write, where, files, index, model


def test_an_index_that_lacks_a_tensor(shards):
    write, where, _, index, _ = shards
    name = f"{QWEN[0]}experts.2.down_proj.qzeros"
    text = error_of(write({key: file for key, file in where.items() if key != name}))
    assert text == f"{index}: tensor '{name}' is missing: expected for expert 2 of 8 in layer 1"


def test_an_index_that_names_a_file_which_is_not_there(shards):
    write, where, files, index, _ = shards
    first = sorted(where)[0]
    text = error_of(write(where | {first: "model-00003-of-00002.safetensors"}))
    assert text == (
        f"{index}: weight_map['{first}'] = \"model-00003-of-00002.safetensors\": expected a file that exists beside the index"
    )


def test_an_index_that_names_the_wrong_file(shards):
    write, where, files, index, _ = shards
    first = sorted(where)[0]
    text = error_of(write(where | {first: files[1]}))
    assert text == f"{index}: weight_map['{first}'] = \"{files[1]}\": expected a file that holds the tensor"


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "model.bin", 3])
def test_an_index_that_names_no_file_beside_it(shards, file):
    write, where, _, index, _ = shards
    text = error_of(write({sorted(where)[0]: file}))
    assert text.endswith(": expected the name of a .safetensors file beside the index")


def test_names_that_stand_twice(shards):
    write, where, files, index, _ = shards
    once = json.dumps({"weight_map": where})
    name = sorted(where)[0]
    twice = once.replace('{"weight_map": {', '{"weight_map": {' + f'"{name}": "{files[0]}", ')
    assert f"the name '{name}' stands twice in one object: expected once" in error_of(write(twice))


def test_a_shard_that_is_truncated_or_wrong_is_named(shards):
    write, where, files, index, model = shards
    folder = write(where)
    path = folder / files[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert error_of(folder).startswith(f"{path}: tensor '")
    path.write_bytes(whole)
    name = f"{QWEN[0]}experts.7.up_proj.qweight"
    model.config["hidden_size"] = 128
    (folder / "config.json").write_text(json.dumps(model.config))
    assert error_of(folder) == (
        f"{folder / where[QWEN[0] + 'gate.weight']}: tensor '{QWEN[0]}gate.weight' has shape (8, 256): expected (8, 128)"
    )
    assert name in where
