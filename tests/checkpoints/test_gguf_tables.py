"""GGUF of recurrent and latent models, and of mixtures: written as llama.cpp's converter does, read back the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_converter
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from test_gguf_families import flat

from ipex_assist.checkpoints import gguf_file
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.rope import RotaryTable
from ipex_assist.models import find
from ipex_assist.models.weights import head_dim_of, part_of, resolve, stored_form
from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.one_stack

# Multipliers of Falcon-H1's file are in its weights; the converter takes no biases of its linears.
_UNSCALED: dict[str, Any] = {
    **dict.fromkeys(("lm_head_multiplier", "embedding_multiplier", "key_multiplier", "attention_in_multiplier"), 1.0),
    **dict.fromkeys(("ssm_in_multiplier", "ssm_out_multiplier", "attention_out_multiplier"), 1.0),
    **{"mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5, "head_dim": 16},
    **dict.fromkeys(("mamba_proj_bias", "projectors_bias"), False),
}
# What files of Llama 4 do not say.
_LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
# general.architecture of each variant, what its config has else than usual, and what the file says beside the config.
FILES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen3-next": ("qwen3next", {}, {}),
    "qwen3-next-dense-second": ("qwen3next", {"norm_topk_prob": True, "mlp_only_layers": []}, {}),
    "qwen3.5": ("qwen35", {}, {}),
    "qwen3.5-moe": ("qwen35moe", {}, {}),
    "lfm2": ("lfm2", {}, {}),
    "lfm2-biases": ("lfm2", {"head_dim": 16}, {}),
    "lfm2-moe": ("lfm2moe", {}, {}),
    "granite-hybrid": ("granitehybrid", {}, {}),
    "granite-hybrid-moe": ("granitehybrid", {}, {}),
    "nemotron-h": ("nemotron_h", {"time_step_min": 0.001}, {}),
    "nemotron-h-moe": ("nemotron_h_moe", {"time_step_min": 0.001, "hybrid_override_pattern": "MEM*E*ME"}, {}),
    "mamba2": ("mamba2", {}, {}),
    "mamba2-biases": ("mamba2", {}, {}),
    "mamba": ("mamba", {}, {}),
    "mamba-biases": ("mamba", {"expand": 2}, {}),
    "falcon-mamba": ("mamba", {"mixer_rms_eps": 1e-6}, {}),
    "falcon-mamba-biases": ("mamba", {"expand": 2}, {}),
    "deepseek-v2": ("deepseek2", {}, {}),
    "deepseek-v2-direct": ("deepseek2", {"n_group": 1, "topk_group": 1}, {}),
    "deepseek-v3": ("deepseek2", {}, {"expert_gating_func": 2}),
    "deepseek-v3-direct": (
        "deepseek2",
        {"rope_scaling": tiny_models._YARN_MSCALE["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707}},
        {},
    ),
    "glm4-moe-lite": ("deepseek2", {}, {"tokenizer.ggml.pre": "glm4", "leading_dense_block_count": 1}),
    "glm4-moe": ("glm4moe", {}, {}),
    "glm4-moe-plain": ("glm4moe", {}, {}),
    "dots1": ("dots1", {"sliding_window": None}, {}),
    "minimax-m2": ("minimax-m2", {}, {}),
    "ernie4-5-moe": ("ernie4_5-moe", {}, {}),
    "ernie4-5-moe-unshared": ("ernie4_5-moe", {}, {}),
    "exaone-moe": ("exaone-moe", {}, {}),
    "exaone-moe-sparse-first": ("exaone-moe", {}, {}),
    "hunyuan-moe": ("hunyuan-moe", {}, {}),
    "afmoe": ("afmoe", {"global_attn_every_n_layers": 4, "num_hidden_layers": 5}, {}),
    "hunyuan-moe-biases": ("hunyuan-moe", {}, {}),
    "mimo-v2-flash": ("mimo2", {"routed_scaling_factor": 1.0}, {}),
    "mimo-v2-flash-biases": ("mimo2", {"routed_scaling_factor": 1.0}, {}),
    "step3p7": ("step35", {}, {}),
    "deepseek-v32": ("deepseek32", {}, {}),
    "glm-moe-dsa": ("glm-dsa", {}, {}),
    "hy-v4": ("hy_v4", {}, {}),
    "hy-v4-other": ("hy_v4", {}, {}),
    "deepseek-v4": (
        "deepseek4",
        {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}},
        {},
    ),
    "bailing-hybrid": (
        "bailingmoe3",
        {f"{name}_swiglu_limit_list": [0.0, 0.0, 0.3, 0.5] for name in ("expert", "share_expert")},
        {},
    ),
    "minimax-m3": ("minimax-m3", {}, {}),
    "glm5-next": ("glm5-next", {}, {}),
    "mistral4": ("mistral4", {"norm_topk_prob": True}, {"attention.temperature_scale": 0.3}),
    "sarvam-moe": ("bailingmoe2", {}, {}),
    "laguna": ("laguna", {}, {}),
    "laguna-values": ("laguna", {"num_attention_heads_per_layer": [4, 2, 6]}, {}),
    "hy-v3": ("hy_v3", {}, {}),
    "gemma3n": (
        "gemma3n",
        {"altup_num_inputs": 4, "intermediate_size": 96, "vocab_size_per_layer_input": tiny_models.VOCAB}
        | {"hidden_size_per_layer_input": 32, "laurel_rank": 32},
        {},
    ),
    "qwen4-exp-many": (
        "qwen4exp",
        {"norm_topk_prob": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {},
    ),
    "granitemoeshared": ("granitemoe", {}, {}),
    "granite-swa": (
        "granite_swa",
        {"layer_rope_theta": [0, 1e4, 1e4, 1e4]},
        {"attention.rope_pattern": [False, True, True, True]},
    ),
    "granite-swa-biases": ("granite_swa", {"layer_types": ["full_attention", "sliding_attention"]}, {}),
    "granitemoe-swa": ("granite_swa", {"layer_rope_theta": None}, {}),
    "falcon-h1": (
        "falcon-h1",
        _UNSCALED | dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False),
        {},
    ),
    "falcon-h1-norm": ("falcon-h1", _UNSCALED, {}),
    "cohere2-moe": ("cohere2moe", {}, {}),
    "cohere2-moe-sigmoid": (
        "cohere2moe",
        {"attention_bias": False, "prefix_dense_sliding_window_pattern": 1}
        | {"shared_expert_combination_strategy": "average"},
        {},
    ),
    "llama4": ("llama4", _LLAMA4, {}),
    "llama4-plain": (
        "llama4",
        {**_LLAMA4, "attn_temperature_tuning": True, "use_qk_norm": True, "no_rope_layers": None}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_scaling": None},
        {},
    ),
    "jamba": ("jamba", {}, {}),
    "jamba-biases": ("jamba", {}, {}),
    "jamba-dense": ("jamba", {}, {}),
    "kimi-linear": ("kimi-linear", {}, {}),
    "kimi-linear-all-experts": ("kimi-linear", {}, {}),
}
KNOWN = tiny_models.known(*FILES)
# What no file says: it has no meaning for what is computed here, or the converter writes another number.
UNSAID = ("model_type", "max_position_embeddings", "jitter")


def written(folder: Path, variant: str, **more: Any) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint, and the file that is made of it."""
    arch, changes, metadata = FILES[variant]
    tiny_models.save(folder, variant, **changes)
    path = gguf_converter.convert(folder, arch, **{**metadata, **more})
    return open_checkpoint(str(folder)), open_checkpoint(str(path))


def ours(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Its weights by our names."""
    spec, architecture = checkpoint.decoder_spec(), find(checkpoint.architecture)
    assert architecture is not None
    sources = stored_form(architecture.weights(spec), checkpoint.shapes())
    wanted = resolve(sources, checkpoint.shapes())
    return {
        name: part_of(tensor, sources[name], head_dim_of(spec, name))
        for stored, tensor in checkpoint.tensors(wanted)
        for name in wanted[stored]
    }


@pytest.mark.parametrize("variant", KNOWN)
def test_a_file_is_the_checkpoint_it_was_made_of(variant: str, tmp_path: Path) -> None:
    """Every field of the spec, the angles, every weight, and every shape that is promised before one is read."""
    original, read = written(tmp_path, variant)
    spec, expected = read.decoder_spec(), original.decoder_spec()
    found, wanted = flat(spec), flat(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if not name.startswith("spec.ropes") and not name.endswith(UNSAID):
            assert found[name] == pytest.approx(value), name
    tables = (RotaryTable(each) for each in (spec, expected) if expected.ropes)
    for got, right in zip(*(each.rows(0, 40, 30) for each in tables), strict=True):
        torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-5)
    read.check_weights()
    weights = ours(read)
    for name, right in ours(original).items():
        torch.testing.assert_close(weights.pop(name).float(), right.float(), atol=2e-6, rtol=0, msg=name)
    assert not weights
    assert {name: tuple(tensor.shape) for name, tensor in read.tensors()} == read.shapes()


@pytest.mark.parametrize("variant", tiny_models.known("step3p7"))
def test_step_has_its_own_numbers_of_llama3s_positions(variant: str, tmp_path: Path) -> None:
    """They are not those of Llama, and are divisors in the file: of half of a head, with ones behind them."""
    text = tiny_models.VARIANTS[variant]["text_config"]
    rope = {"rope_type": "llama3", "rope_theta": 5e6, "factor": 2.0, "partial_rotary_factor": 0.5}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 32.0, "original_max_position_embeddings": 131072}
    ropes = text["rope_parameters"] | {"full_attention": rope}
    tiny_models.save(tmp_path, variant, text_config=text | {"rope_parameters": ropes})
    specs = [
        open_checkpoint(str(each)).decoder_spec() for each in (tmp_path, gguf_converter.convert(tmp_path, "step35"))
    ]
    assert specs[0].ropes[0].kind == "llama3"
    assert specs[0].ropes == specs[1].ropes


@pytest.mark.parametrize(
    "variant",
    tiny_models.known(
        "qwen3.5",
        "nemotron-h-moe",
        "deepseek-v3",
        "falcon-mamba",
        "step3p7",
        "mimo-v2-flash",
        "kimi-linear",
        "gemma3n",
        "llama4",
    ),
)
def test_it_says_the_same(variant: str, executor: str, tmp_path: Path) -> None:
    """Of the file as of the checkpoint, in fp32: through streaming and packing."""
    logits = []
    for checkpoint in written(tmp_path, variant):
        model = load_model(LoadRequest(checkpoint, "fp32", executor, exact=False))
        logits.append(model.extend(model.new_sequence(40), list(range(3, 33)), last=30).float())
    torch.testing.assert_close(*logits, atol=1e-4, rtol=0)
    assert logits[0].std() > 0.1


# Mixtures among them whose routers choose the same experts of rows in int8 (with so small ones, most do not).
BLOCKS = ("qwen3.5", "deepseek-v3", "glm4-moe", "lfm2", "granite-hybrid-moe", "step3p7", "mistral4", "gemma3n")


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
@pytest.mark.parametrize("variant", [each for each in KNOWN if each in BLOCKS])
def test_blocks_say_the_same(variant: str, tmp_path: Path) -> None:
    """Of weights that stay in Q8_0 as of the same numbers in fp32, within what rows in int8 explain in models so small,
    and in the same bits in a prompt and in steps: would catch experts, parts and heads made of the wrong rows."""
    _, read = written(tmp_path, variant, q8=True)
    text = list(range(3, 33))
    logits = []
    for precision in ("fp32", "stored"):
        model = load_model(LoadRequest(read, precision, "native"))
        logits.append(model.extend(model.new_sequence(40), text, last=30).float())
    assert float((logits[1] - logits[0]).norm() / logits[0].norm()) < 0.1
    sequence = model.new_sequence(40)
    assert torch.equal(torch.cat([model.extend(sequence, [token]) for token in text]), logits[1])


@pytest.mark.parametrize("variant", tiny_models.known("falcon-h1", "falcon-h1-norm"))
def test_multipliers_that_are_in_the_weights(variant: str, tmp_path: Path) -> None:
    """Would catch one that is applied twice, or not at all."""
    names = ("head_dim", "mamba_proj_bias", "projectors_bias")
    plain = dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False)
    tiny_models.save(tmp_path, variant, **plain, **{name: _UNSCALED[name] for name in names})
    path, logits = gguf_converter.convert(tmp_path, "falcon-h1"), []
    for source in (tmp_path, path):
        model = load_model(LoadRequest(open_checkpoint(str(source)), "fp32", "torch", exact=False))
        logits.append(model.extend(model.new_sequence(40), list(range(3, 33)), last=30).float())
    torch.testing.assert_close(*logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", tiny_models.known("qwen3.5-moe", "granite-hybrid-moe"))
def test_gate_and_up_in_one_tensor(variant: str, tmp_path: Path) -> None:
    """Would catch experts cut at wrong rows."""
    original, read = written(tmp_path, variant, fused=True)
    weights = ours(read)
    for name, right in ours(original).items():
        torch.testing.assert_close(weights[name].float(), right.float(), atol=2e-6, rtol=0, msg=name)


@pytest.mark.parametrize("variant", tiny_models.known("glm4-moe"))
def test_layers_that_predict_further_tokens_are_not_read(variant: str, tmp_path: Path) -> None:
    """They follow the others in the file, and count as blocks there."""
    original, read = written(tmp_path, variant, block_count=4, nextn_predict_layers=1)
    assert read.decoder_spec().num_hidden_layers == original.decoder_spec().num_hidden_layers == 3
    assert ours(read).keys() == ours(original).keys()


def test_activations_of_numbers_in_metadata(tmp_path: Path) -> None:
    """Apertus: the file has no tensors of them."""
    if not tiny_models.known("apertus"):
        pytest.skip("this transformers has no Apertus")
    rope = {"rope_type": "default", "rope_theta": 1e5}
    tiny_models.save(tmp_path, "apertus", rope_parameters=rope)
    read = open_checkpoint(str(gguf_converter.convert(tmp_path, "apertus")))
    assert flat(read.decoder_spec()) == flat(open_checkpoint(str(tmp_path)).decoder_spec())
    weights = ours(read)
    for name, right in ours(open_checkpoint(str(tmp_path))).items():
        torch.testing.assert_close(weights.pop(name).float(), right.float(), atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("variant", tiny_models.known("qwen3.5-moe", "exaone-moe-sparse-first"))
def test_experts_alone(variant: str, tmp_path: Path) -> None:
    """A file whose layers all have experts need not say how wide a dense one would be; one that says neither, must."""
    original, read = written(tmp_path, variant, feed_forward_length=None)
    expected = {layer.experts.each for layer in original.decoder_spec().layers if layer.experts is not None}
    assert {layer.experts.each for layer in read.decoder_spec().layers if layer.experts is not None} == expected
    arch = FILES[variant][0]
    path = gguf_converter.convert(tmp_path, arch, feed_forward_length=None, expert_feed_forward_length=None)
    with pytest.raises(IpexAssistError, match="feed_forward_length"):
        open_checkpoint(str(path))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Scores of another kind, heads of different numbers, parts that do not fit, and a tensor of no use."""
    tiny_models.save(tmp_path, "qwen3.5")
    path = gguf_converter.convert(tmp_path, "qwen35", **{"attention.head_count_kv": [2, 0, 4, 2]})
    with pytest.raises(IpexAssistError, match="head_count_kv differs by layer, from 2 to 4"):
        open_checkpoint(str(path))
    path = gguf_converter.convert(tmp_path, "qwen35", **{"ssm.time_step_rank": 6})
    with pytest.raises(IpexAssistError, match="do not fit together, or not to the metadata"):
        open_checkpoint(str(path)).check_weights()
    path = gguf_converter.convert(tmp_path, "qwen35", block_count=3)
    with pytest.raises(IpexAssistError, match=r"do not belong to a qwen35 model, the first is blk\.3\."):
        open_checkpoint(str(path)).check_weights()
    if tiny_models.known("glm4-moe"):
        tiny_models.save(tmp_path, "glm4-moe")
        path = gguf_converter.convert(tmp_path, "glm4moe", expert_gating_func=1)
        with pytest.raises(IpexAssistError, match="expert_gating_func is 1, a routing of experts"):
            open_checkpoint(str(path))


ODD = (0, -1, 1, 3, 2**31, 2**63, "x", "", [], [1, 2], ["a"], 3.5, float("nan"), float("inf"), True, None)


@pytest.mark.parametrize(
    "variant",
    tiny_models.known(
        *("qwen3.5-moe", "nemotron-h-moe", "deepseek-v3", "exaone-moe", "mamba"),
        *("granite-swa", "granitemoe-swa", "falcon-h1", "cohere2-moe", "llama4", "qwen4-exp-many"),
    ),
)
def test_metadata_of_any_value(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry in turn: an error of ours or a model, no other error, and no list of a billion layers."""
    arch, changes, metadata = FILES[variant]
    tiny_models.save(tmp_path, variant, **changes)
    path = gguf_converter.convert(tmp_path, arch, **metadata)
    whole, refused = gguf_file.read_header(path), 0
    for key in [key for key in whole.metadata if key != "general.architecture"]:
        for value in ODD:
            changed = {**whole.metadata, key: value}
            if value is None:
                del changed[key]
            header = gguf_file.GgufHeader(path, changed, dict(whole.tensors))
            monkeypatch.setattr(gguf_file, "read_header", lambda path, found=header: found)
            try:
                checkpoint = GgufCheckpoint(str(path), path)
                if checkpoint.why_not_ours() is None:
                    checkpoint.check_weights()
            except IpexAssistError:
                refused += 1
    assert refused > 50
