"""Draft heads in PyTorch: the readable reference of how hidden states of a target enter a few layers, and drafting."""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from functools import partial

import torch

from ipex_assist.executors.interface import DraftInput, HiddenRows, LogitsError, Rows, Sequence, Tokens
from ipex_assist.executors.torch.attention import causal_mask
from ipex_assist.executors.torch.kernels import norm_heads
from ipex_assist.executors.torch.kv_cache import KVCache
from ipex_assist.executors.torch.mixers.attention import normed_values
from ipex_assist.executors.torch.mixers.compressed import append_keys
from ipex_assist.executors.torch.mixers.layer_rows import AttentionMetadata, LayerRows
from ipex_assist.executors.torch.mixers.states import RecurrentStates
from ipex_assist.executors.torch.mlp import run_mlp
from ipex_assist.executors.torch.model import TorchModel, TorchSequence
from ipex_assist.executors.torch.rope import rotate
from ipex_assist.executors.torch.streams import read_streams
from ipex_assist.executors.torch.tapped import Tapped
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.compressed_spec import CompressedSpec
from ipex_assist.models.draft_head import HeadSpec

Draft = tuple[list[int], list[float]]


class SharedCache(KVCache):
    """A target's keys and values, which a head reads in its own type."""

    def __init__(self, cache: KVCache, dtype: torch.dtype) -> None:
        self._cache, self._dtype = cache, dtype

    def read(self, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of a layer of the target, of its first `length` positions."""
        keys, values = self._cache.read(layer, length)
        return keys.to(self._dtype), values.to(self._dtype)


class TorchHead(TorchModel):
    """A TorchModel whose spec has a `head` (models/draft_head.py), whose kinds' arithmetic it follows."""

    @property
    def head_spec(self) -> HeadSpec:
        """What it reads, and how."""
        assert self.spec.head is not None
        return self.spec.head

    def columns(self, vocabulary: int | None) -> int:
        """How many rows of its lm_head are of the first `vocabulary` token ids of the target; all where None."""
        if self.target_tokens is None:
            return super().columns(vocabulary)
        size = len(self.target_tokens)
        return size if vocabulary is None else int(self.target_tokens.searchsorted(vocabulary))

    def enter(self, tokens: torch.Tensor, start: int, given: torch.Tensor | None) -> torch.Tensor:
        """The rows that enter the first layer: those of EAGLE-3 are [norm(e), g], (rows, 2 · hidden)."""
        assert given is not None, "a draft head without hidden states"
        head, weights = self.head_spec, self.weights.head
        assert weights is not None
        e, h = self.embed(tokens, start).to(self.kernels.dtype), given.to(self.kernels.dtype)
        assert head.kind in ("mtp", "eagle3"), "a head that reads no texts"
        if weights.fc_token is not None:
            of_token = weights.fc_token(self._norm(e[:, : self.spec.hidden_size].contiguous(), weights.embed_norm))
            normed = torch.cat([self._norm(each, weights.hidden_norm) for each in h.split(self.spec.norm_width, 1)], 1)
            streams = normed.split(self.spec.hidden_size, 1)
            return torch.cat([of_token + weights.fc(each.contiguous()) for each in streams], 1)
        if head.kind == "mtp":
            return weights.fc(torch.cat((self._norm(e, weights.embed_norm), self._norm(h, weights.hidden_norm)), 1))
        g = self.combined(h) if h.shape[1] == head.input_size else h
        return torch.cat((self._norm(e, weights.embed_norm), g), 1)

    def combined(self, h: torch.Tensor) -> torch.Tensor:
        """What fc makes of the hidden states of several taps: (rows, taps · target_hidden_size) → (rows, hidden)."""
        weights = self.weights.head
        assert weights is not None
        if weights.input_norms:
            parts = zip(h.chunk(len(weights.input_norms), 1), weights.input_norms, strict=True)
            h = torch.cat([self._norm(part.contiguous(), norm) for part, norm in parts], 1)
        return weights.fc(h)

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
        """A layer; the first of EAGLE-3 reads an embedding and a hidden state side by side."""
        if self.weights.layers[index].convs:
            return self._convolved_layer(x, index, cache, metadata)
        if self.head_spec.kind != "eagle3" or index > 0:
            return super().layer(x, index, cache, metadata, states, per_layer, read)
        e, g = x.chunk(2, 1)
        assert self.weights.head is not None
        normed = self._norm(g.contiguous(), self.weights.head.hidden_norm)
        rows = torch.cat((e, normed), 1)
        before = normed if self.head_spec.norm_before_residual else g
        return self.after_mixer(before, rows, index, self._mixed(rows, index, cache, metadata, states))

    def _convolved_layer(
        self, x: torch.Tensor, index: int, cache: KVCache, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """A layer of DFlash 2, over the rows of one block."""
        spec, layer = self.spec.layers[index], self.weights.layers[index]
        around_attention, around_mlp = layer.convs
        rows, scales = around_attention.enter(self._norm(x, layer.attention_norm))
        x = x + around_attention.leave(self._mixed(rows, index, cache, metadata, None), scales)
        rows, scales = around_mlp.enter(self._norm(x, layer.mlp_norm))
        return x + around_mlp.leave(run_mlp(spec, layer, rows, partial(self.see, index)), scales)

    def rows_of(self, capacity: int) -> int:
        """Rows of keys and values of a sequence: with a block after its tokens."""
        return super().rows_of(capacity + self.head_spec.block_size)

    def _pass(
        self,
        sequence: TorchSequence,
        tokens: list[int],
        padded: int,
        given: torch.Tensor | None,
        tapped: Tapped | None,
    ) -> torch.Tensor:
        """A pass; of a head that drafts blocks, hidden states become keys and values of every layer."""
        if self.head_spec.kind != "dflash":
            return super()._pass(sequence, tokens, padded, given, tapped)
        assert given is not None, "a draft head without hidden states"
        assert self.weights.head is not None
        g = self._norm(self.combined(given.to(self.kernels.dtype)), self.weights.head.hidden_norm)
        for index, (layer, weights) in enumerate(zip(self.spec.layers, self.weights.layers, strict=True)):
            attention, metadata = layer.attention, self._block_metadata(sequence.length, len(g), layer.attention)
            if isinstance(attention.latent, CompressedSpec):
                see = partial(self.see, index)
                append_keys(g, LayerRows(self.kernels, self.spec, index, weights, sequence.cache, metadata, None, see))
                continue
            assert attention.value_width == attention.head_dim, "values narrower than keys"
            parts = weights.qkv(g).view(len(g), -1, attention.head_dim)
            kv = attention.heads, attention.heads + attention.kv_heads
            _, key, value = parts.tensor_split(kv, 1)
            value = normed_values(key if attention.values_are_keys else value, attention, self.kernels, self.spec)
            if weights.k_norm is not None:
                key = norm_heads(self.kernels, attention.qk_norm, key, weights.k_norm, self.spec.norm_eps)
            if metadata.rotary is not None:
                key = rotate(key, *metadata.rotary)
            sequence.cache.write(index, sequence.length, key, value)
        return g

    def _block_metadata(self, start: int, rows: int, attention: AttentionSpec) -> AttentionMetadata:
        """Rows of a block, which see all before them within their window, and all of each other."""
        causal = replace(self.attention_metadata(start, rows, attention, step=False), block=True)
        near = causal_mask(start, rows, start + rows, attention.window, self.kernels.dtype)
        near[:, start:] = 0
        return replace(causal, mask=near)

    def _draft_block(self, request: DraftInput, vocabulary: int | None) -> Draft:
        """Keep the rows of hidden states, and draft in one pass of the last token and a block of masks after it."""
        sequence, head = request.sequence, self.head_spec
        assert isinstance(sequence, TorchSequence), f"a sequence of {type(sequence).__name__}"
        if request.hidden is not None and len(request.hidden):
            self.forward([Rows(sequence, [head.mask_token] * len(request.hidden), 0, request.hidden)])
        start = sequence.length
        x = self.embed(torch.tensor([request.tokens[-1]] + [head.mask_token] * (head.block_rows - 1)), start)
        x = x.to(self.kernels.dtype)
        for index, layer in enumerate(self.spec.layers):
            metadata = self._block_metadata(start, head.block_rows, layer.attention)
            x = self.layer(x, index, sequence.cache, metadata)
        drafted: list[int] = []
        probabilities: list[float] = []
        x = x[0 if head.from_anchor else 1 :]
        hidden = self.normed(x) if self.spec.streams is None else read_streams(self.spec, x, self.weights.streams)
        for row, logits in enumerate(self.head(x)[:, : self.columns(vocabulary)]):
            last = drafted[-1] if drafted else request.tokens[-1]
            token, probability = self.choose_after(last, logits, hidden[row : row + 1])
            drafted.append(token)
            probabilities.append(probability)
            if token < 0 or len(drafted) == request.count or probability < request.min_confidence:
                break
        return drafted, probabilities

    def draft(
        self,
        sequence: Sequence,
        tokens: Tokens,
        count: int,
        vocabulary: int | None = None,
        min_confidence: float = 0.0,
        **read: object,
    ) -> Draft:
        """`draft_many` of one sequence. read: `hidden` and `shared_kv` of DraftInput. Raises LogitsError."""
        before = sequence.length
        request = DraftInput(sequence, tokens, count, min_confidence, **read)  # type: ignore[arg-type]
        [(drafted, probabilities)] = self.draft_many([request], vocabulary)
        if drafted[-1] < 0:
            sequence.truncate(before)
            raise LogitsError("the draft head", before + len(tokens) + len(drafted) - 1)
        return drafted, probabilities

    @torch.inference_mode()
    def draft_many(self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None) -> list[Draft]:
        """Greedy drafts, one after the other; see executors/interface.py. Tokens are the target's."""
        draft = {"dflash": self._draft_block, "shared_kv": self._draft_from_one_place}.get(self.head_spec.kind)
        return [(draft or self._draft)(each, vocabulary) for each in requests]

    def _draft_from_one_place(self, request: DraftInput, vocabulary: int | None) -> Draft:
        """Every token from the position of the last one that is known, over the target's keys and values before it."""
        target, weights = request.shared_kv, self.weights.head
        assert isinstance(target, TorchSequence), f"keys and values of {type(target).__name__}"
        assert weights is not None
        assert weights.fc_out is not None
        assert request.hidden is not None, "a draft head without hidden states"
        start, cache, dtype = target.length, SharedCache(target.cache, self.kernels.dtype), self.kernels.dtype
        if self.rotary is not None:
            self.rotary.reach(start + 1)
        token, h = request.tokens[-1], torch.from_numpy(request.hidden[-1:]).to(dtype)
        drafted: list[int] = []
        probabilities: list[float] = []
        while True:
            x = weights.fc(torch.cat((self.embed(torch.tensor([token]), start).to(dtype), h), 1))
            for index, layer in enumerate(self.spec.layers):
                mask = causal_mask(start, 1, start, layer.attention.window, dtype)
                metadata = replace(self.attention_metadata(start, 1, layer.attention, step=False), mask=mask)
                x = self.layer(x, index, cache, metadata)
            token, probability = self.choose(self._clustered(x, self.head(x))[0, : self.columns(vocabulary)])
            drafted.append(token)
            probabilities.append(probability)
            if token < 0 or len(drafted) == request.count or probability < request.min_confidence:
                return drafted, probabilities
            h = weights.fc_out(self.normed(x))

    def _clustered(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Logits (1, vocab) of the row x (1, hidden), where tokens of clusters that it does not read are below all."""
        assert self.weights.head is not None
        if self.weights.head.clusters is None:
            return logits
        assert self.token_order is not None
        scores = self.weights.head.clusters(self.normed(x))[0]
        tokens = torch.from_numpy(self.token_order).long().view(self.head_spec.clusters, -1)
        read = tokens[scores.topk(self.head_spec.clusters_read).indices].flatten()
        made = torch.full_like(logits, float(logits[0, read].min()) - 1)
        made[0, read] = logits[0, read]
        return made

    def _draft(self, request: DraftInput, vocabulary: int | None) -> Draft:
        """Rows of the target's hidden states, then rows of its own, each with the token drafted before it."""
        tokens, hidden = request.tokens, request.hidden
        drafted: list[int] = []
        probabilities: list[float] = []
        while True:
            own = HiddenRows(self.head_spec.fed_back(self.spec.num_hidden_layers))
            logits = self.forward([Rows(request.sequence, tokens, 1, hidden)], vocabulary, own)
            token, probability = self.choose(logits[0])
            drafted.append(token)
            probabilities.append(probability)
            if token < 0 or len(drafted) == request.count or probability < request.min_confidence:
                return drafted, probabilities
            assert own.rows is not None
            tokens, hidden = [token], own.rows[-1:]

    def choose_after(self, last: int, logits: torch.Tensor, hidden: torch.Tensor) -> tuple[int, float]:
        """`choose` in a block, where it may depend on the token before. hidden: (1, hidden), of which logits are."""
        weights = self.weights.head
        assert weights is not None
        if not bool(torch.isfinite(logits).all()):
            return self.choose(logits)
        if weights.selector is None:
            token, probability = self.choose(logits)
        else:
            row, probability = weights.selector.choose(logits, hidden, last)
            token = self._token_of(row)
        if weights.confidence is None:
            return token, probability
        before = None if weights.selector is None else weights.selector.before[last]
        return token, weights.confidence.of(hidden, before)

    def choose(self, logits: torch.Tensor) -> tuple[int, float]:
        """The likeliest token of the target by logits (vocab,), and its probability; -1 and NaN where any is NaN."""
        if not bool(torch.isfinite(logits).all()):
            return -1, float("nan")
        row = int(logits.argmax())
        return self._token_of(row), float(torch.softmax(logits.float(), 0)[row])

    def _token_of(self, row: int) -> int:
        """The target's token that a row of the lm_head is of."""
        return row if self.target_tokens is None else int(self.target_tokens[row])
