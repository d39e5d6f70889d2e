"""Random checkpoints: the published shapes, exactly, and weights that a decoder takes like any others."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from ipex_assist.bench.pairs import CONFIGS, PAIRS, find_pair, first_layers, published_config
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.speculative.sources.assistant_name import SELF

pytestmark = pytest.mark.one_stack

# By the models' cards and the sizes of their files on the hub.
PARAMETERS = {
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-13b": 12_853_473_280,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "JackFram/llama-160m": 162_417_408,
    "TheBloke/guanaco-33B-HF": 32_528_943_616,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "bigcode/starcoder": 15_517_456_384,
    "bigcode/tiny_starcoder_py": 164_144_128,
}
TINY_OPT = published_config("facebook/opt-350m") | {
    "hidden_size": 64,
    "ffn_dim": 96,
    "word_embed_proj_dim": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 160,
}
TINY_BIGCODE = published_config("bigcode/tiny_starcoder_py") | {
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 160,
    "n_positions": 256,
}
TINY_MIXTURE = published_config("Qwen/Qwen3-30B-A3B") | {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 160,
    "max_position_embeddings": 256,
}
TINY_LLAMA = published_config("TinyLlama/TinyLlama-1.1B-Chat-v1.0") | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
}


def stored(name: str, shape: tuple[int, ...], family: str) -> dict[str, tuple[int, ...]]:
    """What checkpoints have for a parameter: all experts of transformers 5 are one, gate and up together."""
    gate, up, down = "gate_proj", "up_proj", "down_proj"
    if family == "minimax_m2":
        name, gate, up, down = name.replace(".mlp.", ".block_sparse_moe."), "w1", "w3", "w2"
    place, _, leaf = name.partition("experts.")
    if family == "granitemoehybrid" and "block_sparse_moe" in name:  # one for all experts, too, by other names
        ours = {"gate_up_proj": "input_linear.weight", "down_proj": "output_linear.weight", "": "router.layer.weight"}
        return {place.removesuffix("router.weight") + ours[leaf]: shape}
    if not leaf or len(shape) != 3:
        return {name: shape}
    count, rows, columns = shape
    leaves = {"gate_up_proj": ((gate, up), rows // 2), "down_proj": ((down,), rows)}
    names, rows = leaves[leaf]
    return {f"{place}experts.{i}.{each}.weight": (rows, columns) for i in range(count) for each in names}


# Families whose published names are others than those that transformers' module has.
RENAMED = ("deepseek_v4", "glm5_next_text", "minimax_m3_vl_text", "qwen4_exp_text")


def few_layers(source: str) -> dict:
    """Its config with six layers and 16 experts."""
    config = published_config(source)
    # Each is some modules of transformers 4; sizes are below.
    few = {name: 16 for name in ("num_experts", "n_routed_experts", "num_local_experts") if name in config}
    return first_layers(config, 6) | few if few or "layer_types" in config else config


@pytest.mark.parametrize("source", [each for each, config in CONFIGS.items() if config["model_type"] in RENAMED])
def test_as_many_weights_as_transformers_has(source: str) -> None:
    """Of models whose checkpoints have other names than its modules."""
    config = few_layers(source)
    fields = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(config["model_type"], **fields))
    biases = [bias for name, bias in model.named_buffers() if name.endswith(("correction_bias", "tid2eid"))]
    theirs = sum(each.numel() for each in (*model.parameters(), *biases)) + config["vocab_size"] * config["hidden_size"]
    assert sum(map(math.prod, RandomCheckpoint(source, config).shapes().values())) == theirs


@pytest.mark.parametrize("source", [each for each, config in CONFIGS.items() if config["model_type"] not in RENAMED])
def test_shapes_are_those_of_transformers(source: str) -> None:
    """One wrong size, or a tensor left out, and the table of a pair would be another pair's."""
    config = few_layers(source)
    fields = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **fields))
    theirs = {}
    stored_ones = ("correction_bias", "layer_scalar")
    biases = [(name, bias) for name, bias in model.named_buffers() if any(one in name for one in stored_ones)]
    for name, parameter in [*model.named_parameters(), *biases]:
        theirs |= stored(name, tuple(parameter.shape), config["model_type"])
    if model.config.tie_word_embeddings:
        theirs.pop("lm_head.weight", None)
    assert RandomCheckpoint(source, config).shapes() == theirs


@pytest.mark.parametrize("source", PARAMETERS)
def test_sizes_are_the_published_ones(source: str) -> None:
    """transformers would build a wrong config as readily as a right one."""
    checkpoint = RandomCheckpoint(source, published_config(source))
    assert checkpoint.num_parameters == PARAMETERS[source]
    assert checkpoint.parameter_bytes == 2 * PARAMETERS[source]


def test_every_pair_has_shapes_and_one_vocabulary() -> None:
    """A pair whose vocabularies differ would be refused with real weights."""
    for pair in PAIRS.values():
        assistant = pair.target if pair.assistant == SELF else pair.assistant
        target, assistant = published_config(pair.target), published_config(assistant)
        assert target["vocab_size"] == assistant["vocab_size"], pair


def test_names_that_are_not_known() -> None:
    """The error must say what there is."""
    with pytest.raises(UsageError, match=r"opt-7b.*opt-6\.7b, opt-13b"):
        find_pair("opt-7b")
    with pytest.raises(UsageError, match=r"shapes of gpt2 are not known.*facebook/opt-125m"):
        published_config("gpt2")


TINY = ["opt-350m", "bigcode", "llama", "mixture"]


@pytest.mark.parametrize("config", [TINY_OPT, TINY_BIGCODE, TINY_LLAMA, TINY_MIXTURE], ids=TINY)
def test_a_model_loads_it_and_computes(executor: str, config: dict) -> None:
    """Names and shapes are what the loader asks for, and the numbers are neither all alike nor too large."""
    model = load_model(LoadRequest(RandomCheckpoint("tiny", config), "bf16", executor))
    logits = model.extend(model.new_sequence(16), [1, 2, 3, 4], last=4).float()
    assert logits.shape == (4, 160)
    assert logits.isfinite().all()
    assert logits.std() > 1e-3


def test_tensors_repeat_and_differ() -> None:
    """A run that is repeated must find the same model; two layers alike would be read from the cache."""
    checkpoint = RandomCheckpoint("tiny", TINY_LLAMA)
    tensors = dict(checkpoint.tensors())
    assert list(tensors) == checkpoint.names()
    again = dict(RandomCheckpoint("tiny", TINY_LLAMA).tensors(["model.layers.1.mlp.up_proj.weight"]))
    name, other = "model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(tensors[name], again[name])
    assert not torch.equal(tensors[name], tensors[other])
    different = dict(RandomCheckpoint("another", TINY_LLAMA).tensors([name]))
    assert not torch.equal(tensors[name], different[name])


def test_values_are_like_weights() -> None:
    """Mean 0 and a deviation like a trained model's; norms of ones, or deep models would compute nothing but zeros."""
    checkpoint = RandomCheckpoint("tiny", TINY_LLAMA)
    tensors = dict(checkpoint.tensors())
    norms = [tensor for name, tensor in tensors.items() if "norm" in name]
    assert len(norms) == 5
    assert all((norm == 1).all() for norm in norms)
    weight = tensors["lm_head.weight"].float()
    assert weight.numel() == math.prod(weight.shape)
    assert abs(float(weight.mean())) < 1e-3
    assert 0.01 < float(weight.std()) < 0.03
    assert weight.unique().numel() > 200  # 128 mantissas of both signs


def test_a_tensor_that_is_not_there() -> None:
    """It is an error of ours, as with any checkpoint."""
    with pytest.raises(IpexAssistError, match="no tensor nothing"):
        next(RandomCheckpoint("tiny", TINY_LLAMA).tensors(["nothing"]))
