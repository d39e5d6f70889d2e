"""The transformer itself, over an executor's kernels: rows in, logits out."""

from __future__ import annotations

import contextlib
from collections import abc
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.adapters import AdapterChoice, AdapterMatrices
from ipex_assist.executors.image_rows import PromptImages, check_images
from ipex_assist.executors.interface import HiddenRows, Model, Rows, check_length, check_rows
from ipex_assist.executors.pass_lock import pass_lock
from ipex_assist.executors.recurrent_states import RecurrentState
from ipex_assist.executors.torch.adapters import adapted_layers
from ipex_assist.executors.torch.altup import corrected, enter_streams, leave_streams, predicted
from ipex_assist.executors.torch.images import with_images
from ipex_assist.executors.torch.kernels import Kernels
from ipex_assist.executors.torch.key_factors import key_factors
from ipex_assist.executors.torch.kv_cache import KVCache
from ipex_assist.executors.torch.mixers.attention import attention_mask, query_growth
from ipex_assist.executors.torch.mixers.layer_rows import AttentionMetadata, LayerRows, unseen
from ipex_assist.executors.torch.mixers.run import run_mixer
from ipex_assist.executors.torch.mixers.states import RecurrentStates
from ipex_assist.executors.torch.mlp import ACTIVATION_FUNCTIONS, gated, run_aside, run_mlp
from ipex_assist.executors.torch.rope import TorchRotary, entry_angles
from ipex_assist.executors.torch.row_plan import RowPlan
from ipex_assist.executors.torch.streams import check_hidden, read_streams, write_streams
from ipex_assist.executors.torch.tapped import Tapped, rows_with_logits
from ipex_assist.executors.torch.weights import Norm, Weights
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec

PROMPT_CHUNK = 512  # rows of a prompt that pass at once: bounds the activations, and is many enough for full speed


class TorchSequence:
    """A Sequence (see executors/interface.py) in tensors, with room for the padding rows after its tokens."""

    def __init__(self, model: TorchModel, capacity: int, prompt_length: int | None = None) -> None:
        self.model, self.capacity, self.length = model, capacity, 0
        self.prompt_length = prompt_length
        # The length by which by-length rope (dynamic, longrope) rotates the rows of the prompt; 0 where it is unknown.
        self.rope_prompt_length = prompt_length or 0
        self.adapter: AdapterChoice | None = None
        self.images: PromptImages | None = None
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
        made.adapter, made.images = self.adapter, self.images
        return made


def _chunks(count: int) -> list[tuple[int, int]]:
    """The passes of a prompt, as RowPlan.split gives those of a decode step."""
    return [(min(PROMPT_CHUNK, count - done), 0) for done in range(0, count, PROMPT_CHUNK)]


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
        self.see: abc.Callable[..., None] = unseen  # as See, with the layer's index before the operation
        self.deferred: list[torch.Tensor] = []  # what experts of a layer gave, until the next layer adds it
        self.tokens: torch.Tensor | None = None  # of the rows of a pass
        self.adapters: dict[str, list[AdapterMatrices]] = {}
        self.weight_names: abc.Collection[str] = ()  # all that it has, for adapters
        self._adapted: dict[AdapterChoice, Weights] = {}

    @property
    def exact_rows(self) -> int:
        """Rows of the longest single pass of a decode step."""
        return self.plan.sizes[-1]

    def add_adapter(self, name: str, matrices: abc.Iterable[AdapterMatrices]) -> None:
        """Have an adapter by this name, for `new_sequence`."""
        self.adapters[name] = list(matrices)
        self._adapted.clear()

    @contextlib.contextmanager
    def _with_adapter(self, choice: AdapterChoice | None) -> Iterator[None]:
        """The model's weights with an adapter, for one pass."""
        if choice is None:
            yield
            return
        if choice not in self._adapted:
            layers, matrices = self.weights.layers, self.adapters[choice.name]
            made = adapted_layers(self.spec, self.weight_names, layers, matrices, choice.scale)
            self._adapted[choice] = replace(self.weights, layers=made)
        plain = self.weights
        self.weights = self._adapted[choice]
        try:
            yield
        finally:
            self.weights = plain

    def new_sequence(
        self,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
        state: RecurrentState | None = None,
        adapter: AdapterChoice | None = None,
        images: PromptImages | None = None,
    ) -> TorchSequence:
        """Return an empty sequence with room for `capacity` tokens. Raises IpexAssistError where memory lacks it."""
        assert not blocks, "this executor has no blocks"
        assert state is None, "and no slots"
        if images is not None:
            check_images(self.spec, images)
        if self.rotary is not None:
            self.rotary.reach(self.rows_of(capacity))
        try:
            made = TorchSequence(self, capacity, prompt_length)
            made.adapter, made.images = adapter, images
            return made
        except RuntimeError as error:
            raise IpexAssistError(f"no memory for a sequence of {capacity} tokens: {error}") from error

    def new_cache(self, rows: int, layers: int | None = None) -> KVCache:
        """Keys and values of `rows` rows, of the first `layers` layers, all where None."""
        return KVCache(self.spec, rows, self.kernels.dtype, self.kv_precision, self.key_factors, layers)

    def rows_of(self, capacity: int) -> int:
        """Rows of keys and values that a sequence of `capacity` tokens takes, with the padding after them."""
        return self.plan.key_length(capacity + self.plan.sizes[-1])

    @torch.inference_mode()
    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        """Append each one's tokens to its sequence; logits (sum of `last`, vocab) in the order of `rows`."""
        assert len({id(each.sequence) for each in rows}) == len(rows), "a sequence twice in one call"
        check_hidden(self.spec, hidden)
        tapped = None if hidden is None else Tapped(hidden.taps, self.spec)
        logits = [part for each in rows for part in self._append(each, tapped)]
        if hidden is not None and tapped is not None:
            hidden.rows = tapped.rows()
            if hidden.of_logit_rows:
                hidden.rows = hidden.rows[rows_with_logits(rows)]
        columns = self.columns(vocabulary)
        if not logits:
            return torch.empty(0, columns)
        return (logits[0] if len(logits) == 1 else torch.cat(logits))[:, :columns]

    def columns(self, vocabulary: int | None) -> int:
        """How many columns of logits are of the first `vocabulary` token ids; all where None."""
        return min(vocabulary or self.spec.lm_head_rows, self.spec.lm_head_rows)

    def _append(self, appended: Rows, tapped: Tapped | None) -> Iterator[torch.Tensor]:
        """Append one sequence's tokens in passes; yields the logits of the last `last` rows in parts."""
        sequence, tokens, last, read = appended
        assert isinstance(sequence, TorchSequence), f"a sequence of {type(sequence).__name__}"
        assert sequence.model is self, "a sequence of another model"
        start, count = sequence.length, len(tokens)
        check_rows(sequence, count, last)
        if start == 0 and sequence.prompt_length is None:
            sequence.rope_prompt_length = count
        prompt = start == 0 and count > self.exact_rows
        steps = _chunks(count) if prompt else self.plan.split(count)
        done = 0
        for rows, padded in steps:
            chunk = list(tokens[done : done + rows])
            given = None if read is None else torch.from_numpy(read[done : done + rows])
            wanted = min(rows, max(0, last - (count - done - rows)))
            with pass_lock, self._with_adapter(sequence.adapter):
                hidden = self._pass(sequence, chunk, padded, given, tapped)
                # Of a decode step all rows pass through the head together: which are wanted must not change its sums.
                logits = self.head(hidden if padded else hidden[rows - wanted : rows]) if wanted else None
            sequence.length += rows
            done += rows
            if logits is not None:
                yield logits[rows - wanted : rows] if padded else logits

    def _pass(
        self,
        sequence: TorchSequence,
        tokens: list[int],
        padded: int,
        given: torch.Tensor | None,
        tapped: Tapped | None,
    ) -> torch.Tensor:
        """Run all layers over consecutive rows; `padded` is the row count of a decode step, 0 in a prompt.

        given: hidden states that a draft head reads, a row for each token.
        """
        start, count = sequence.length, len(tokens)
        tokens = tokens + tokens[-1:] * (padded - len(tokens))
        if given is not None and padded:
            given = torch.cat((given, given[-1:].expand(padded - count, -1)))
        self.tokens, images = torch.tensor(tokens), sequence.images
        x = with_images(self.enter(self.tokens, start, given), images, start, count, 0)
        self.see(-1, "embed", "residual stream", x if self.spec.altup is None else x[:, : self.spec.hidden_size])
        inputs = self.per_layer_inputs(self.tokens, x)
        metadata: dict[AttentionSpec | RecurrentSpec, AttentionMetadata] = {}
        prompt_length = sequence.rope_prompt_length
        before, embedded, aside = x, x, None
        for index, layer in enumerate(self.spec.layers):
            x = with_images(x, images, start, count, index) if index else x
            if tapped is not None:
                tapped.take(index, x[:count])
            if layer.mixer not in metadata:
                place = start, count, len(tokens)
                metadata[layer.mixer] = self.metadata(*place, layer.mixer, padded > 0, prompt_length, images)
            read = before if layer.beside else x if aside is None else x + aside
            read, before = torch.cat((x, embedded), 1) if layer.aside else read, x
            made = self.layer(x, index, sequence.cache, metadata[layer.mixer], sequence.states, inputs, read)
            x, aside = (x, made) if layer.aside else (made, None)
        if tapped is not None:
            last = self.normed(x) if tapped.taps.normed else x
            tapped.take(self.spec.num_hidden_layers, last[:count])
        return x

    def enter(self, tokens: torch.Tensor, start: int, given: torch.Tensor | None) -> torch.Tensor:
        """The rows that enter the first layer. given: as in `_pass`, None but for a draft head."""
        assert given is None, "hidden states for a model that reads none"
        return self.embed(tokens, start)

    def per_layer_inputs(self, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """Each layer's own embeddings of tokens (rows,) whose usual ones are x (rows, hidden): (rows, layers, size).

        A row of the second table and a projection of x, each of the size that the other has; None where the model has
        no such table.
        """
        weights, size = self.weights, self.spec.per_layer_size
        if weights.per_layer_embed is None or weights.per_layer_in is None or weights.per_layer_norm is None:
            return None
        x = x[:, : self.spec.hidden_size]  # of several streams the first
        projected = weights.per_layer_in(x.contiguous()) * self.spec.hidden_size**-0.5
        projected = self.kernels.rms_norm(
            projected.unflatten(-1, (-1, size)).contiguous(), weights.per_layer_norm, self.spec.norm_eps
        )
        tokens = torch.where(tokens < self.spec.per_layer_tokens, tokens, 0)
        own = functional.embedding(tokens, weights.per_layer_embed).unflatten(-1, (-1, size)) * size**0.5
        return (projected + own) * 2**-0.5

    def metadata(
        self,
        start: int,
        count: int,
        rows: int,
        mixer: AttentionSpec | RecurrentSpec,
        step: bool,
        prompt_length: int | None = None,
        images: PromptImages | None = None,
    ) -> AttentionMetadata:
        """What layers with such a mixer need to know of `rows` rows from `start` on, `count` of them the sequence's."""
        if isinstance(mixer, AttentionSpec):
            return replace(self.attention_metadata(start, rows, mixer, step, prompt_length, images), count=count)
        return AttentionMetadata(start, None, None, step, count)

    def attention_metadata(
        self,
        start: int,
        rows: int,
        attention: AttentionSpec,
        step: bool,
        prompt_length: int | None = None,
        images: PromptImages | None = None,
    ) -> AttentionMetadata:
        """Return what layers with such attention need to know about `rows` rows from position `start` on."""
        angles, columns = None, self.spec.rotary_columns(attention)
        if self.rotary is not None and columns is not None:
            cos, sin = self.rotary.rows(start, rows, prompt_length, images)
            angles = cos[..., columns], sin[..., columns]
        length = self.plan.key_length(start + rows) if step else start + rows
        mask = attention_mask(attention, start, rows, length, self.kernels.dtype, step)
        entries = entry_angles(self.rotary, attention, columns, length)
        return AttentionMetadata(start, angles, mask, step, rows, query_growth(attention, start, rows), entries)

    def embed(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """What enters the first layer of `tokens` (rows,) at positions from `start` on: (rows, hidden), or streams."""
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
        x = self._norm(x, weights.embedding_norm) if self.spec.embedding_norm else x
        if self.spec.altup is not None:
            return enter_streams(x, weights.altup_in)
        return x if self.spec.streams is None else x.repeat(1, self.spec.streams.count)

    def layer(
        self,
        x: torch.Tensor,
        index: int,
        cache: KVCache,
        metadata: AttentionMetadata,
        states: RecurrentStates | None = None,
        per_layer: torch.Tensor | None = None,
        read: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one layer over rows x (rows, hidden) at the positions of `metadata`.

        It writes their keys and values, unless it reads another layer's, or, of a recurrent layer, the state after
        them. per_layer: `per_layer_inputs` of the rows; read: the rows that its mixer reads, x where None.
        """
        layer, streams = self.weights.layers[index], None
        if self.spec.altup is not None and layer.altup is not None:
            streams = predicted(self.spec.altup, layer.altup, x, self.spec.norm_eps)
            x = read = streams[:, self.spec.altup.active].to(x.dtype)
        read = read_streams(self.spec, x if read is None else read, layer.streams.get("attention_hc"))
        rows = gated(self._norm_if(self.spec.norms_reads(index), read, layer.attention_norm), layer.mixer_gate)
        self.see(index, "prepare_attention", "residual stream", x)
        self.see(index, "prepare_attention", "mixer inputs", rows)
        mixed = self._mixed(rows, index, cache, metadata, states)
        return self.after_mixer(x, rows, index, mixed, per_layer, streams)

    def after_mixer(
        self,
        x: torch.Tensor,
        rows: torch.Tensor,
        index: int,
        mixed: torch.Tensor,
        per_layer: torch.Tensor | None = None,
        streams: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rest of a layer, whose mixer has made `mixed` of the rows that its norm made of x.

        streams: of AltUp, of which x is the active one, (rows, count, hidden).
        """
        spec, layer = self.spec.layers[index], self.weights.layers[index]
        x = self._after_mlp(x, rows, index, mixed)
        if streams is not None and self.spec.altup is not None and layer.altup is not None:
            streams, x = corrected(self.spec.altup, layer.altup, streams, x, self.spec.norm_eps)
        if layer.per_layer is not None:
            assert per_layer is not None, "a layer without its embeddings"
            own = ACTIVATION_FUNCTIONS[spec.each_mlp.activation](layer.per_layer.gate(x)) * per_layer[:, index]
            added = self._norm(layer.per_layer.out(own), layer.per_layer.norm)
            if streams is not None:
                return torch.cat((streams[:, :1], streams[:, 1:] + added.float()[:, None]), 1).flatten(1).to(x.dtype)
            x = x + added
        return x if layer.scalar is None else x * layer.scalar

    def _after_mlp(self, x: torch.Tensor, rows: torch.Tensor, index: int, mixed: torch.Tensor) -> torch.Tensor:
        """The residual stream after a layer's MLP, or after its mixer where it has none."""
        spec, layer = self.spec.layers[index], self.weights.layers[index]
        see, after = partial(self.see, index), spec.norm_place == "post_residual"
        if layer.aside is not None:
            return run_aside(spec, layer, x, self._norm(mixed, layer.mlp_norm), see)
        attended = self._delta(spec, self._norm_if(spec.has_mixer_out_norm, mixed, layer.attention_out_norm))
        if layer.laurel is not None:
            x = x + rows + self._norm(layer.laurel.right(layer.laurel.left(rows)), layer.laurel.norm)
        if spec.parallel:
            rows = rows if spec.shared_norm else self._norm_if(spec.has_pre_norms, x, layer.mlp_norm)
            return x + attended + self._delta(spec, run_mlp(spec, layer, rows, see))
        x = self._norm_if(
            after, write_streams(self.spec, x, attended, layer.streams.get("attention_hc")), layer.attention_norm
        )
        if spec.mlp is None:
            return x
        x = x if layer.laurel is None else x * 2**-0.5
        see("prepare_mlp", "residual stream", x)
        if spec.experts is not None and spec.experts.own_norms:
            norms = layer.mlp_norms
            made = run_mlp(spec, layer, x, see, lambda rows, name: self._norm(rows, norms[name]))
        else:
            read = read_streams(self.spec, x, layer.streams.get("mlp_hc"))
            rows = gated(self._norm_if(self.spec.norms_reads(index), read, layer.mlp_norm), layer.mlp_gate)
            see("prepare_mlp", "mlp inputs", rows)
            made = run_mlp(spec, layer, rows, see, None, self.deferred.append if spec.defers else None, self.tokens)
        made = self._delta(spec, self._norm_if(spec.has_mlp_out_norm, made, layer.mlp_out_norm))
        if index and self.spec.layers[index - 1].defers:
            made = made + self.deferred.pop()
        return self._norm_if(after, write_streams(self.spec, x, made, layer.streams.get("mlp_hc")), layer.mlp_norm)

    def _norm_if(self, here: bool, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Rows x through the norm that a layer has here, if it has one."""
        return self._norm(x, norm) if here else x

    def _delta(self, layer: LayerSpec, x: torch.Tensor) -> torch.Tensor:
        """What is added to the residual stream for the output x of attention or MLP."""
        return x if layer.residual_multiplier == 1 else x * layer.residual_multiplier

    def _mixed(
        self, x: torch.Tensor, index: int, cache: KVCache, metadata: AttentionMetadata, states: RecurrentStates | None
    ) -> torch.Tensor:
        """Rows x (rows, hidden) through a layer's mixer."""
        parts = self.kernels, self.spec, index, self.weights.layers[index], cache, metadata, states
        return run_mixer(x, LayerRows(*parts, partial(self.see, index), self.tokens))

    def _norm(self, x: torch.Tensor, parts: Norm) -> torch.Tensor:
        weight, bias = parts
        if self.spec.norm == "rms":
            scale = torch.ones(x.shape[-1], dtype=self.kernels.dtype) if weight is None else weight
            return self.kernels.rms_norm(x, scale, self.spec.norm_eps)
        return self.kernels.layer_norm(x, weight, bias, self.spec.norm_eps)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of the last layer after the final norm, if there is one."""
        x = read_streams(self.spec, x, self.weights.streams)
        x = x if self.spec.altup is None else leave_streams(x, self.weights.altup_out)
        return self._norm_if(self.spec.final_norm and not self.spec.gates_streams, x, self.weights.final_norm)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) of the last layer's rows."""
        weights, x = self.weights, self.normed(x)
        if weights.project_out is not None:
            x = weights.project_out(x)
        logits, cap = weights.lm_head(x), self.spec.logit_cap
        logits = logits if cap is None else torch.tanh(logits / cap) * cap
        self.see(self.spec.num_hidden_layers, "head", "logits", logits)
        return logits
