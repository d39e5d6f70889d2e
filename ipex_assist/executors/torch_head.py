"""Draft heads in PyTorch: the readable reference of how hidden states of a target enter a few layers, and drafting."""

from __future__ import annotations

from collections import abc

import torch

from ipex_assist.executors.interface import DraftInput, HiddenRows, LogitsError, Rows, Sequence, Tokens
from ipex_assist.executors.kv_cache import KVCache
from ipex_assist.executors.recurrent import RecurrentStates
from ipex_assist.executors.torch_model import AttentionMetadata, TorchModel
from ipex_assist.models.draft_head import HeadSpec, Taps

Draft = tuple[list[int], list[float]]


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
    ) -> torch.Tensor:
        """A layer; the first of EAGLE-3 reads an embedding and a hidden state side by side."""
        if self.head_spec.kind != "eagle3" or index > 0:
            return super().layer(x, index, cache, metadata, states)
        e, g = x.chunk(2, 1)
        assert self.weights.head is not None
        normed = self._norm(g.contiguous(), self.weights.head.hidden_norm)
        rows = torch.cat((e, normed), 1)
        before = normed if self.head_spec.norm_before_residual else g
        return self.after_mixer(before, rows, index, self._mixed(rows, index, cache, metadata, states))

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

    def draft_many(self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None) -> list[Draft]:
        """Greedy drafts, one after the other; see executors/interface.py. Tokens are the target's."""
        return [self._draft(each, vocabulary) for each in requests]

    def _draft(self, request: DraftInput, vocabulary: int | None) -> Draft:
        """Rows of the target's hidden states, then rows of its own, each with the token drafted before it."""
        tokens, hidden = request.tokens, request.hidden
        drafted: list[int] = []
        probabilities: list[float] = []
        while True:
            own = HiddenRows(Taps((self.spec.num_hidden_layers,), self.head_spec.fed_back_normed))
            logits = self.forward([Rows(request.sequence, tokens, 1, hidden)], vocabulary, own)
            token, probability = self.choose(logits[0])
            drafted.append(token)
            probabilities.append(probability)
            if token < 0 or len(drafted) == request.count or probability < request.min_confidence:
                return drafted, probabilities
            assert own.rows is not None
            tokens, hidden = [token], own.rows[-1:]

    def choose(self, logits: torch.Tensor) -> tuple[int, float]:
        """The likeliest token of the target by logits (vocab,), and its probability; -1 and NaN where any is NaN."""
        if not bool(torch.isfinite(logits).all()):
            return -1, float("nan")
        row = int(logits.argmax())
        probability = float(torch.softmax(logits.float(), 0)[row])
        return (row if self.target_tokens is None else int(self.target_tokens[row])), probability
