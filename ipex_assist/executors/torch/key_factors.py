"""Per-channel factors of keys, estimated from the weights: keys are divided by them before they are stored as int8."""

from __future__ import annotations

import torch

from ipex_assist.executors.torch.kernels import Kernels, norm_heads
from ipex_assist.executors.torch.weights import Norm, Weights
from ipex_assist.models.compressed_spec import CompressedSpec
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec

_ROWS = 16
_LAST_32 = (1 << 32) - 1


@torch.inference_mode()
def key_factors(spec: DecoderSpec, weights: Weights, kernels: Kernels) -> list[torch.Tensor]:
    """Powers of two (kv_heads, 1, head_dim) for each layer, near the square root of the size of its key channels.

    The channels of a key can differ a hundredfold in size, and always the same ones are large (large biases): with one
    scale for all of them the small ones would be nothing but rounding error. Dividing by the factors takes the square
    root of that ratio, as in SmoothQuant (Xiao et al. 2022, arXiv:2211.10438). Two channels that rotary embedding
    mixes share a factor. Sizes are estimated from rows of +1 and -1, multiplied by the weight of the norm before the
    projection, so they depend on the weights alone. The native core does the same (key_factors.cpp).
    """
    return [_layer_factors(spec, weights, kernels, index) for index in range(spec.num_hidden_layers)]


def _layer_factors(spec: DecoderSpec, weights: Weights, kernels: Kernels, index: int) -> torch.Tensor:
    mixer = spec.layers[index].mixer
    if isinstance(mixer, RecurrentSpec) or mixer.shares_kv:
        return torch.ones(())
    layer, attention = weights.layers[index], spec.layers[index].attention
    if isinstance(attention.latent, CompressedSpec):
        return torch.ones((1, 1, attention.head_dim))
    weight, bias = _norm_before(spec, weights, index)
    rows = signs(_ROWS, spec.hidden_size if weight is None else len(weight))
    rows = rows if weight is None else rows * weight.float()
    rows = rows if bias is None else rows + bias.float()
    latent, made = attention.latent, layer.qkv(rows.to(kernels.dtype))
    first = attention.query_size if latent is None else latent.query_rank or 0
    keys = made[:, first : first + attention.key_size]
    if latent is not None and layer.latent is not None and layer.latent.norm is not None:
        normalised = kernels.rms_norm(keys[:, latent.rope_dim :], layer.latent.norm, latent.norm_eps)
        keys = torch.cat((keys[:, : latent.rope_dim], normalised), 1)
    keys = keys.reshape(_ROWS, attention.kv_heads, attention.head_dim)
    if attention.qk_norm is not None:
        keys = norm_heads(kernels, attention.qk_norm, keys, layer.k_norm, spec.norm_eps)
    squares = keys.double().square().mean(0)
    if spec.ropes:
        rotated = attention.rotary_size
        pairs = squares[:, :rotated]
        squares = torch.cat(((pairs + pairs.roll(rotated // 2, -1)) / 2, squares[:, rotated:]), -1)
    exponents = (squares.log2() / 4).round().clamp(-30, 30)
    known = torch.isfinite(squares) & (squares > 0)
    return torch.where(known, exponents, 0).exp2().float()[:, None]


def _norm_before(spec: DecoderSpec, weights: Weights, index: int) -> Norm:
    """The norm whose output a layer's keys are projected from; (None, None) where that is the embedding's output."""
    if spec.head is not None and spec.head.kind == "eagle3" and index == 0 and weights.head is not None:
        of_token, of_hidden = weights.head.embed_norm[0], weights.head.hidden_norm[0]
        assert of_token is not None, "a draft head without norms"
        assert of_hidden is not None, "a draft head without norms"
        return torch.cat((of_token, of_hidden)), None
    if spec.gates_streams and (norm := weights.layers[index].attention_norm[0]) is not None:
        return norm[: spec.hidden_size], None  # of the first stream
    if spec.layers[index].has_pre_norms:
        return weights.layers[index].attention_norm
    last = spec.layers[index - 1] if index else None
    if last is None or last.norm_place != "post_residual":
        return None, None
    return weights.layers[index - 1].attention_norm if last.mlp is None else weights.layers[index - 1].mlp_norm


def signs(rows: int, width: int) -> torch.Tensor:
    """A fixed pseudo-random matrix of +1 and -1, (rows, width): the last bit of a hash of the element's index."""
    number = torch.arange(rows * width)
    number = (number * 0x9E3779B1) & _LAST_32
    number = ((number ^ (number >> 15)) * 0x85EBCA77) & _LAST_32
    return ((number ^ (number >> 13)) & 1).float().view(rows, width) * 2 - 1
