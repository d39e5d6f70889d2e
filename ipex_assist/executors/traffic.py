"""What a pass of a model reads from memory, and how fast this machine reads: decoding costs one by the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.native.rows import BLOCK
from ipex_assist.quantization.precision import LINEAR_BYTES, kv_sizes

if TYPE_CHECKING:
    from ipex_assist.executors.interface import Model
    from ipex_assist.models.recurrent_spec import RecurrentSpec
    from ipex_assist.models.spec import DecoderSpec, LayerSpec

BANDWIDTH_BYTES = 1 << 30  # more than the caches of any socket hold


@dataclass(frozen=True)
class Traffic:
    """Bytes that every pass of a model reads: its weights once, and keys and values of each token before it.

    Of experts, those of one row: a pass of several reads up to as many times as many. state_bytes: of each sequence's
    states, which a pass reads, and writes where it moves them: of recurrent layers, or DeepSeek-V4's windows.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    state_bytes: int = 0


def traffic_of(model: Model, precision: str) -> Traffic:
    """Return what a loaded model reads. It is exact for the native core; else linears count as stored at `precision`.

    Embedding tables do not count: a pass reads a row of them.
    """
    kv = model.spec.kv_bytes_per_token(*kv_sizes(model.kv_precision))
    states = sum(4 * each.heads * each.key_dim * each.value_dim for each in _recurrents(model.spec) if each.scans)
    packed = getattr(model, "packed", None)  # the native core's
    if packed is None:
        return Traffic(linear_bytes(model.spec, precision) - idle_bytes(model.spec, precision), kv, states)
    if any(each.keeps_state for each in model.spec.attentions):  # its blocks hold less than what torch caches
        kv, states = packed.block_bytes(model.kv_precision) // BLOCK, states or packed.state_bytes(model.kv_precision)
    experts = expert_bytes(model.spec, precision) if packed.reads_experts else 0  # which are no part of the image
    weights = packed.nbytes + experts - table_bytes(model.spec, precision) - idle_bytes(model.spec, precision)
    return Traffic(weights, kv, states)


def _recurrents(spec: DecoderSpec) -> list[RecurrentSpec]:
    """The recurrent mixer of each layer that has one."""
    return [layer.recurrent for layer in spec.layers if layer.recurrent is not None]


def table_bytes(spec: DecoderSpec, precision: str) -> int:
    """Tables in the native core's image: of positions in fp32, of tokens where the head's matrix does not serve, and
    of per-layer embeddings.
    """
    learned = spec.max_position_embeddings + spec.position_offset if spec.learned_positions else 0
    positions = learned * spec.hidden_size
    wide = 4 if precision == "fp32" else 2
    shared = spec.tied_head and precision in ("fp32", "bf16", "stored")
    tokens = 0 if shared else spec.vocab_size * (spec.embedding_size or spec.hidden_size)
    mixers = (layer.recurrent for layer in spec.layers)
    tables = sum(each.hashes.table_size for each in mixers if each is not None and each.hashes is not None)
    return positions * 4 + (tokens + tables) * wide + per_layer_table_bytes(spec, precision)


def per_layer_table_bytes(spec: DecoderSpec, precision: str) -> int:
    """Of the table of per-layer embeddings; 0 in most models."""
    return spec.per_layer_tokens * spec.num_hidden_layers * spec.per_layer_size * (4 if precision == "fp32" else 2)


def linear_bytes(spec: DecoderSpec, precision: str) -> int:
    """Return the packed bytes of all matrices of a model but its embedding tables."""
    hidden, embedding = spec.hidden_size, spec.embedding_size or spec.hidden_size
    layers = sum(layer.mixer_weights(hidden, spec.norm_width) + hidden * _mlp_columns(layer) for layer in spec.layers)
    outside = spec.lm_head_rows * embedding + (2 * hidden * embedding if spec.projected_embedding else 0)
    if spec.altup is not None:
        outside += 2 * (spec.altup.count - 1) * hidden * hidden
    if spec.streams is not None:
        outside += 2 * spec.norm_width * spec.streams.gate_rank
    per_layer = 3 * spec.num_hidden_layers * spec.per_layer_size * hidden
    return round((layers + outside + per_layer) * LINEAR_BYTES[precision])


def idle_bytes(spec: DecoderSpec, precision: str) -> int:
    """Packed bytes of the experts that a row does not pass through."""
    return _bytes_of_experts(spec, precision, lambda each: each.count - each.per_token)


def expert_bytes(spec: DecoderSpec, precision: str) -> int:
    """Packed bytes of all experts."""
    return _bytes_of_experts(spec, precision, lambda each: each.count)


def _bytes_of_experts(spec: DecoderSpec, precision: str, number: Callable[[Experts], int]) -> int:
    columns = sum(number(each) * each.intermediate_size for each in spec.expert_layers)
    parts = 3 if spec.experts is None or spec.experts.gated else 2
    return round(columns * parts * spec.hidden_size * LINEAR_BYTES[precision])


def _mlp_columns(layer: LayerSpec) -> int:
    """Elements of a layer's matrices for each of hidden_size: of an MLP, or of a router and all experts."""
    if layer.mlp is None:
        return 0
    parts = 3 if layer.mlp.gated else 2
    if isinstance(layer.mlp, MlpSpec):
        return layer.mlp.intermediate_size * parts
    sizes = layer.mlp.count * layer.mlp.intermediate_size + layer.mlp.shared_size
    return parts * sizes + layer.mlp.routed


def machine_gb_per_s(model: Any) -> float | None:
    """GB/s at which the threads of a loaded model read memory; None where it is not on the native core.

    Takes half a second and 1 GiB, so that it is measured only where somebody wants to know.
    """
    from ipex_assist.env.errors import IpexAssistError
    from ipex_assist.env.memory import read_memory

    packed = getattr(getattr(model, "target", None), "packed", None)
    if packed is None or (read_memory().available or 0) < 2 * BANDWIDTH_BYTES:
        return None
    from ipex_assist.native.library import read_bandwidth

    try:
        return read_bandwidth(packed.pool, BANDWIDTH_BYTES)
    except IpexAssistError:
        return None
