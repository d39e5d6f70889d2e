"""Which type each tensor of a GGUF file gets: the mixtures that llama.cpp's file types stand for.

Facts from llama.cpp (src/llama-quant.cpp), for the file types that are written here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

F16 = 1
Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS = 6, 7, 8, 12, 13, 14, 20, 23  # GGMLQuantizationType
# File types: their number in the metadata (general.file_type), and the type that most matrices get.
FILE_TYPES = {"Q4_K_M": (15, Q4_K), "Q6_K": (18, Q6_K), "Q8_0": (7, Q8_0), "IQ4_XS": (30, IQ4_XS)}
# Where a width is no multiple of 256.
_NARROW = {Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0, IQ4_XS: IQ4_NL}
# Matrices that stay as they are: routers, convolutions, positions, small ones of recurrent layers.
_KEPT = re.compile(
    r"(_norm|ffn_gate_inp(_shexp)?|position_embd|token_types|ssm_conv1d|shortconv\.conv|attn_rel_b|ssm_a|ssm_x|ssm_dt"
    r"|per_layer_model_proj|altup.*|laurel.*|attn_(k|v)_b)\.weight$"
)


@dataclass(frozen=True)
class MixFacts:
    """What of a model the mixtures depend on. tied: the embedding is the head, too."""

    layers: int
    heads_per_key: int
    experts: int
    tied: bool


def type_of(name: str, shape: tuple[int, ...], file_type: str, facts: MixFacts, weighted: bool) -> int | None:
    """The type of a tensor by its name, None for one that stays as it is. weighted: inputs were recorded."""
    if len(shape) < 2 or not name.endswith(".weight") or _KEPT.search(name):
        return None
    kind = _wide_type(name, file_type, facts, weighted)
    if shape[-1] % 256 and kind in _NARROW:
        kind = _NARROW[kind]
    return F16 if shape[-1] % 32 else kind


def _wide_type(name: str, file_type: str, facts: MixFacts, weighted: bool) -> int:
    usual = FILE_TYPES[file_type][1]
    if usual in (Q6_K, Q8_0):
        return usual
    if name == "output.weight" or (name == "token_embd.weight" and facts.tied):
        return Q6_K
    place = re.match(r"blk\.(\d+)\.(\w+)\.", name)
    if place is None:
        return usual
    layer, leaf = int(place[1]), place[2]
    if leaf == "attn_v":
        return _of_values(layer, usual, facts)
    if leaf == "attn_qkv":
        return Q5_K if usual == Q4_K else usual
    if leaf == "attn_k" and facts.experts == 8:
        return Q8_0
    if leaf == "attn_output" and facts.experts == 8:
        return Q5_K
    if leaf.startswith("ffn_down"):
        if usual == Q4_K:
            return Q6_K if _needs_more(layer, facts.layers) else usual
        return Q5_K if layer < facts.layers // 8 and not weighted else usual
    return usual


def _of_values(layer: int, usual: int, facts: MixFacts) -> int:
    if facts.experts == 8:
        return Q8_0
    if usual == Q4_K:
        return Q6_K if _needs_more(layer, facts.layers) else usual
    return Q5_K if facts.heads_per_key >= 4 else usual


def _needs_more(layer: int, layers: int) -> bool:
    """The first and last eighth of the layers, and every third of the others."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
