"""The transformer itself, over an executor's kernels: rows in, logits out."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn import functional

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.attention import alibi_mask, attend_prompt, attend_rows, causal_mask
from ipex_assist.executors.experts import ExpertLayer, run_experts
from ipex_assist.executors.interface import Model, Rows, Sequence, Tokens, check_length, check_rows
from ipex_assist.executors.kernels import Kernels, Linear, norm_heads
from ipex_assist.executors.key_factors import key_factors
from ipex_assist.executors.kv_cache import KVCache
from ipex_assist.executors.pass_lock import pass_lock
from ipex_assist.executors.recurrent import RecurrentStates, run_recurrent, with_gates
from ipex_assist.executors.recurrent_states import RecurrentState
from ipex_assist.executors.row_plan import RowPlan
from ipex_assist.executors.torch_rope import TorchRotary, rotate
from ipex_assist.executors.weights import LatentLayer, Layer, Norm, Weights
from ipex_assist.models.spec import (
    CLAMP,
    SIGMOID_GAIN,
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MlpSpec,
    NormPlace,
    RecurrentSpec,
)

PROMPT_CHUNK = 512  # rows of a prompt that pass at once: bounds the activations, and is many enough for full speed

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True)
class AttentionMetadata:
    """The rows of one pass: their first position, their rotation, what they may see, and whether a decode step's."""

    start: int
    rotary: tuple[torch.Tensor, torch.Tensor] | None
    mask: torch.Tensor | None
    step: bool
    count: int  # rows that are the sequence's; those after them are padding
    growth: torch.Tensor | None = None  # (rows, 1, 1), that queries are multiplied with


class TorchSequence:
    """A Sequence (see executors/interface.py) in tensors, with room for the padding rows after its tokens."""

    def __init__(self, model: TorchModel, capacity: int, prompt_length: int | None = None) -> None:
        self.model, self.capacity, self.length = model, capacity, 0
        self.prompt_length = prompt_length
        # The length by which by-length rope (dynamic, longrope) rotates the rows of the prompt; 0 where it is unknown.
        self.rope_prompt_length = prompt_length or 0
        self.cache = model.new_cache(model.rows_of(capacity))
        self.states = RecurrentStates(model.spec)

    @property
    def settled(self) -> int:
        """The fewest tokens that it can be truncated to, but for 0; 0 without recurrent layers."""
        return self.states.settled

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        check_length(self, length)
        self.states.truncate(length)
        self.length = length
        if length == 0:
            self.cache.clear()

    def fork(self, length: int | None = None) -> TorchSequence:
        """A copy of the first `length` tokens, all where None, in a sequence of the same capacity."""
        length = self.length if length is None else length
        check_length(self, length)
        made = self.model.new_sequence(self.capacity, self.prompt_length)
        made.cache.copy_from(self.cache)
        made.states.copy_from(self.states)
        made.states.truncate(length)
        made.length, made.rope_prompt_length = length, self.rope_prompt_length
        return made


class TorchModel(Model):
    """A Model (see executors/interface.py) of PyTorch operators; sequences run one after the other.

    Two paths lead through the same layers. A prompt passes in chunks. A decode step of up to 16 rows is padded to a
    row count of the plan, and attends to a whole number of the plan's key blocks, so that each of its rows meets the
    same sums whatever rows are beside it (row_plan.py).
    """

    def __init__(
        self, spec: DecoderSpec, weights: Weights, kernels: Kernels, plan: RowPlan, kv_precision: str | None = None
    ) -> None:
        """kv_precision: of keys and values; None is that of the kernels."""
        self.spec, self.weights, self.kernels, self.plan = spec, weights, kernels, plan
        self.kv_precision = kv_precision or ("fp32" if kernels.dtype == torch.float32 else "bf16")
        self.key_factors = key_factors(spec, weights, kernels) if self.kv_precision == "int8" else []
        self.rotary = TorchRotary(spec, kernels.dtype) if spec.rotary_tables else None

    @property
    def exact_rows(self) -> int:
        """Rows of the longest single pass of a decode step."""
        return self.plan.sizes[-1]

    def new_sequence(
        self,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
        state: RecurrentState | None = None,
    ) -> TorchSequence:
        """Return an empty sequence with room for `capacity` tokens. Raises IpexAssistError where memory lacks it."""
        assert not blocks, "this executor has no blocks"
        assert state is None, "and no slots"
        if self.rotary is not None:
            self.rotary.reach(self.rows_of(capacity))
        try:
            return TorchSequence(self, capacity, prompt_length)
        except RuntimeError as error:
            raise IpexAssistError(f"no memory for a sequence of {capacity} tokens: {error}") from error

    def new_cache(self, rows: int, layers: int | None = None) -> KVCache:
        """Keys and values of `rows` rows, of the first `layers` layers, all where None."""
        return KVCache(self.spec, rows, self.kernels.dtype, self.kv_precision, self.key_factors, layers)

    def rows_of(self, capacity: int) -> int:
        """Rows of keys and values that a sequence of `capacity` tokens takes, with the padding after them."""
        return self.plan.key_length(capacity + self.plan.sizes[-1])

    @torch.inference_mode()
    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        """Append each one's tokens to its sequence; logits (sum of `last`, vocab) in the order of `rows`."""
        assert len({id(each.sequence) for each in rows}) == len(rows), "a sequence twice in one call"
        logits = [part for each in rows for part in self._append(each.sequence, each.tokens, each.last)]
        if not logits:
            return torch.empty(0, min(vocabulary or self.spec.vocab_size, self.spec.vocab_size))
        return (logits[0] if len(logits) == 1 else torch.cat(logits))[:, :vocabulary]

    def _append(self, sequence: Sequence, tokens: Tokens, last: int) -> Iterator[torch.Tensor]:
        """Append one sequence's tokens in passes; yields the logits of the last `last` rows in parts."""
        assert isinstance(sequence, TorchSequence), f"a sequence of {type(sequence).__name__}"
        assert sequence.model is self, "a sequence of another model"
        start, count = sequence.length, len(tokens)
        check_rows(sequence, count, last)
        if start == 0 and sequence.prompt_length is None:
            sequence.rope_prompt_length = count
        prompt = start == 0 and count > self.exact_rows
        steps = self._chunks(count) if prompt else self.plan.split(count)
        done = 0
        for rows, padded in steps:
            chunk = list(tokens[done : done + rows])
            wanted = min(rows, max(0, last - (count - done - rows)))
            with pass_lock:
                hidden = self._pass(sequence, chunk, padded, sequence.rope_prompt_length)
                # Of a decode step all rows pass through the head together: which are wanted must not change its sums.
                logits = self.head(hidden if padded else hidden[rows - wanted : rows]) if wanted else None
            sequence.length += rows
            done += rows
            if logits is not None:
                yield logits[rows - wanted : rows] if padded else logits

    @staticmethod
    def _chunks(count: int) -> list[tuple[int, int]]:
        return [(min(PROMPT_CHUNK, count - done), 0) for done in range(0, count, PROMPT_CHUNK)]

    def _pass(self, sequence: TorchSequence, tokens: list[int], padded: int, prompt_length: int | None) -> torch.Tensor:
        """Run all layers over consecutive rows; `padded` is the row count of a decode step, 0 in a prompt."""
        start, count = sequence.length, len(tokens)
        tokens = tokens + tokens[-1:] * (padded - len(tokens))
        x = self.embed(torch.tensor(tokens), start)
        metadata: dict[AttentionSpec | RecurrentSpec, AttentionMetadata] = {}
        before = x
        for index, layer in enumerate(self.spec.layers):
            if layer.mixer not in metadata:
                metadata[layer.mixer] = self.metadata(start, count, len(tokens), layer.mixer, padded > 0, prompt_length)
            read = before if layer.beside else x
            before, x = x, self.layer(x, index, sequence.cache, metadata[layer.mixer], sequence.states, read)
        return x

    def metadata(
        self,
        start: int,
        count: int,
        rows: int,
        mixer: AttentionSpec | RecurrentSpec,
        step: bool,
        prompt_length: int | None = None,
    ) -> AttentionMetadata:
        """What layers with such a mixer need to know of `rows` rows from `start` on, `count` of them the sequence's."""
        if isinstance(mixer, AttentionSpec):
            return replace(self.attention_metadata(start, rows, mixer, step, prompt_length), count=count)
        return AttentionMetadata(start, None, None, step, count)

    def attention_metadata(
        self, start: int, rows: int, attention: AttentionSpec, step: bool, prompt_length: int | None = None
    ) -> AttentionMetadata:
        """Return what layers with such attention need to know about `rows` rows from position `start` on."""
        angles, columns = None, self.spec.rotary_columns(attention)
        if self.rotary is not None and columns is not None:
            cos, sin = self.rotary.rows(start, rows, prompt_length)
            angles = cos[..., columns], sin[..., columns]
        return AttentionMetadata(
            start, angles, self._mask(start, rows, attention, step), step, rows, _query_growth(attention, start, rows)
        )

    def embed(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Rows (rows, hidden) of `tokens` (rows,) at positions from `start` on."""
        weights = self.weights
        x = functional.embedding(tokens, weights.embed_tokens)
        if weights.project_in is not None:
            x = weights.project_in(x)
        if self.spec.embedding_multiplier != 1:
            x = x * self.spec.embedding_multiplier
        if weights.embed_positions is not None:
            # Padding rows may lie beyond the table; which row they read does not matter.
            table = weights.embed_positions
            positions = torch.arange(start, start + len(tokens)) + self.spec.position_offset
            x = x + functional.embedding(positions.clamp_(max=table.shape[0] - 1), table)
        return self._norm(x, weights.embedding_norm) if self.spec.embedding_norm else x

    def _mask(self, start: int, rows: int, attention: AttentionSpec, step: bool) -> torch.Tensor | None:
        slopes, seen = attention.alibi_slopes, min(attention.window or rows, attention.chunk or rows)
        plain = not slopes and attention.cap is None and not attention.sinks
        if plain and not step and start == 0 and rows <= seen:
            return None  # causal from the first position on: the operator masks by itself
        length = self.plan.key_length(start + rows) if step else start + rows
        mask = causal_mask(start, rows, length, attention.window, self.kernels.dtype, attention.chunk)
        if slopes:
            return alibi_mask(mask, torch.tensor(slopes), start, attention.kv_heads, stacked=step)
        if step:
            mask = mask.repeat_interleave(attention.group, 0)[None, None]
        return mask

    def layer(
        self,
        x: torch.Tensor,
        index: int,
        cache: KVCache,
        metadata: AttentionMetadata,
        states: RecurrentStates | None = None,
        read: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one layer over rows x (rows, hidden) at the positions of `metadata`.

        read: the rows that its mixer reads, x where None. It writes their keys and values, or, of a recurrent layer,
        the state after them.
        """
        read = x if read is None else read
        rows = self._norm_at("pre", self.spec.layers[index], read, self.weights.layers[index].attention_norm)
        return self.after_mixer(x, rows, index, self._mixed(rows, index, cache, metadata, states))

    def after_mixer(self, x: torch.Tensor, rows: torch.Tensor, index: int, mixed: torch.Tensor) -> torch.Tensor:
        """The rest of a layer, whose mixer has made `mixed` of the rows that its norm made of x."""
        spec, layer = self.spec.layers[index], self.weights.layers[index]
        attended = self._delta(spec, mixed, layer.attention_out_norm)
        if spec.parallel:
            rows = rows if spec.shared_norm else self._norm_at("pre", spec, x, layer.mlp_norm)
            return x + attended + self._delta(spec, _mlp(spec, layer, rows), layer.mlp_out_norm)
        x = self._norm_at("post_residual", spec, x + attended, layer.attention_norm)
        if spec.mlp is None:
            return x
        made = _mlp(spec, layer, self._norm_at("pre", spec, x, layer.mlp_norm))
        return self._norm_at("post_residual", spec, x + self._delta(spec, made, layer.mlp_out_norm), layer.mlp_norm)

    def _norm_at(self, place: NormPlace, layer: LayerSpec, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """The norm that a layer has at this place, if it has one there."""
        here = layer.norm_place == place or (layer.norm_place == "sandwich" and place != "post_residual")
        return self._norm(x, norm) if here else x

    def _delta(self, layer: LayerSpec, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """What is added to the residual stream for the output x of attention or MLP."""
        x = self._norm_at("post", layer, x, norm)
        return x if layer.residual_multiplier == 1 else x * layer.residual_multiplier

    def _mixed(
        self,
        x: torch.Tensor,
        index: int,
        cache: KVCache,
        metadata: AttentionMetadata,
        states: RecurrentStates | None,
    ) -> torch.Tensor:
        """Rows x (rows, hidden) through a layer's mixer."""
        spec, layer = self.spec.layers[index].recurrent, self.weights.layers[index]
        if spec is None:
            return self._attention(x, index, cache, metadata)
        assert states is not None, "a recurrent layer without states"
        state, place = states.layers[index], (metadata.start, metadata.count)
        rows = with_gates(spec, layer.qkv(x), layer.gates)
        mixed = run_recurrent(spec, layer.recurrence, self.spec.norm_eps, rows, state, *place)
        return layer.o_proj(mixed)

    def _attention(self, x: torch.Tensor, index: int, cache: KVCache, metadata: AttentionMetadata) -> torch.Tensor:
        spec, layer = self.spec.layers[index].attention, self.weights.layers[index]
        heads, kv_heads = spec.heads, spec.kv_heads
        if layer.latent is not None:
            return layer.o_proj(self._latent_attention(x, index, layer.latent, cache, metadata))
        parts = layer.qkv(x).view(x.shape[0], -1, spec.head_dim)
        query_key, value, gate = parts.tensor_split((heads + kv_heads, heads + 2 * kv_heads), 1)
        if not spec.norm_after_rope:
            query_key = self._norm_of_heads(spec, layer, query_key)
        if metadata.rotary is not None:
            query_key = rotate(query_key, *metadata.rotary)
        if spec.norm_after_rope:
            query_key = self._norm_of_heads(spec, layer, query_key)
        query, key = query_key.split((heads, kv_heads), 1)
        if metadata.growth is not None:
            query = query * metadata.growth.to(query.dtype)
        attended = self._attend(index, query, key, value, cache, metadata)
        if spec.output_gate:
            attended = attended * torch.sigmoid(gate.flatten(1))
        return layer.o_proj(attended)

    def _norm_of_heads(self, spec: AttentionSpec, layer: Layer, query_key: torch.Tensor) -> torch.Tensor:
        """Queries and keys (rows, heads, head_dim) through the norms that they have, if any."""
        if spec.qk_norm is None:
            return query_key
        query, key = query_key.split((spec.heads, spec.kv_heads), 1)
        query = norm_heads(self.kernels, spec.qk_norm, query, layer.q_norm, self.spec.norm_eps)
        return torch.cat((query, norm_heads(self.kernels, spec.qk_norm, key, layer.k_norm, self.spec.norm_eps)), 1)

    def _attend(
        self,
        index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: KVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Keep keys and values (rows, kv_heads, …), and attend with queries (rows, heads, head_dim)."""
        spec, layer = self.spec.layers[index].attention, self.weights.layers[index]
        cache.write(index, metadata.start, key, value)
        length = metadata.start + query.shape[0] if metadata.mask is None else metadata.mask.shape[-1]
        attend = attend_rows if metadata.step else attend_prompt
        keys, values = cache.read(index, length)
        return attend(query, keys, values, metadata.mask, spec.score_scale, spec.cap, layer.sinks)

    def _latent_attention(
        self, x: torch.Tensor, index: int, layer: LatentLayer, cache: KVCache, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Rows x (rows, hidden) → (rows, heads · value_dim), over latents: see LatentSpec."""
        attention, norm = self.spec.layers[index].attention, self.kernels.rms_norm
        spec, heads = attention.latent, attention.heads
        assert spec is not None
        inputs = self.weights.layers[index].qkv(x)
        row, key, latent = inputs.split((spec.query_rank or 0, spec.rope_dim, spec.rank), 1)
        latent = norm(latent, layer.norm, spec.norm_eps)
        if layer.query_norm is not None:
            x = norm(row, layer.query_norm, spec.norm_eps)
        plain, rotated = layer.query(x).split((heads * spec.nope_dim, heads * spec.rope_dim), 1)
        absorbed = [run(part.contiguous()) for run, part in zip(layer.keys, plain.chunk(heads, 1), strict=True)]
        query = torch.cat((rotated.reshape(-1, heads, spec.rope_dim), torch.stack(absorbed, 1)), -1)
        query_key = torch.cat((query, torch.cat((key, latent), 1)[:, None]), 1)
        if metadata.rotary is not None:
            query_key = rotate(query_key, *metadata.rotary)
        query, key = query_key.split((heads, 1), 1)
        attended = self._attend(index, query, key, latent[:, None], cache, metadata).chunk(heads, 1)
        return torch.cat([run(part.contiguous()) for run, part in zip(layer.values, attended, strict=True)], 1)

    def _norm(self, x: torch.Tensor, parts: Norm) -> torch.Tensor:
        weight, bias = parts
        if self.spec.norm == "rms":
            assert weight is not None
            return self.kernels.rms_norm(x, weight, self.spec.norm_eps)
        return self.kernels.layer_norm(x, weight, bias, self.spec.norm_eps)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) of the last layer's rows."""
        weights = self.weights
        if self.spec.final_norm:
            x = self._norm(x, weights.final_norm)
        if weights.project_out is not None:
            x = weights.project_out(x)
        logits, cap = weights.lm_head(x), self.spec.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def _query_growth(attention: AttentionSpec, start: int, rows: int) -> torch.Tensor | None:
    """What the queries of `rows` rows from position `start` on are multiplied with (AttentionSpec.growth)."""
    first = start + attention.growth_shift
    if attention.growth == 0 or attention.growth_step is None or first + rows <= attention.growth_step:
        return None
    steps = torch.arange(first, first + rows) // attention.growth_step
    return (1 + attention.growth * torch.log1p(steps.double())).float()[:, None, None]


def _mlp(spec: LayerSpec, layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Rows x (rows, hidden) through a layer's MLP, or its experts."""
    run = partial(_up_down, spec.each_mlp)
    assert layer.mlp is not None, "a layer without an MLP"
    if isinstance(layer.mlp, ExpertLayer):
        assert spec.experts is not None
        return run_experts(spec.experts, layer.mlp, x, run)
    if spec.each_mlp.activation == "xielu":
        up, down = layer.mlp
        return down(_xielu(up(x), *layer.xielu))
    return run(x, *layer.mlp)


def _xielu(
    x: torch.Tensor, alpha_p: torch.Tensor, alpha_n: torch.Tensor, beta: torch.Tensor, eps: torch.Tensor
) -> torch.Tensor:
    """XIELU (Huang and Schlag 2024, arXiv:2411.13010) of x, in fp32."""
    wide = x.float()
    above = functional.softplus(alpha_p) * wide.square()
    below = (beta + functional.softplus(alpha_n)) * (torch.expm1(torch.minimum(wide, eps)) - wide)
    return (torch.where(wide > 0, above, below) + beta * wide).to(x.dtype)


def _up_down(spec: MlpSpec, x: torch.Tensor, up: Linear, down: Linear) -> torch.Tensor:
    h = up(x)
    if spec.gated:
        gate, h = h.chunk(2, -1)
        return down(activate_gated(spec, gate, h))
    return down(_ACTIVATIONS[spec.activation](h))


def activate_gated(spec: MlpSpec, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What a gated MLP makes of its gate and up."""
    if spec.activation == "clamped_swiglu":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return gate * torch.sigmoid(SIGMOID_GAIN * gate) * (up + 1)
    return _ACTIVATIONS[spec.activation](gate) * up
