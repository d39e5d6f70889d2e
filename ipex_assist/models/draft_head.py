"""Draft heads: small models that read their target's hidden states; what they read, and how it enters them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HeadKind = Literal["mtp", "eagle3", "dflash", "shared_kv"]
InputNorm = Literal["all", "each"]
StreamTaps = Literal["mean", "all"]


@dataclass(frozen=True)
class Taps:
    """Which hidden states a pass of a target gives besides its logits, side by side in this order.

    layers: i is the residual stream that enters layer i, num_hidden_layers the one after the last layer. normed: that
    one after the final norm, which of several residual streams gives one. streams: of a model with several, their mean,
    or all of a row side by side; None of the others, and where it is normed.
    """

    layers: tuple[int, ...]
    normed: bool = False
    streams: StreamTaps | None = None

    def __post_init__(self) -> None:
        assert self.layers, "taps of no layer"


@dataclass(frozen=True)
class HeadSpec:
    """What makes a DecoderSpec a draft head's.

    With e the embedding of token t[p+1], and h the target's hidden state at p, row p of a head predicts token t[p+2].
    Own hidden states take the place of h for tokens that it drafted itself.

    - "mtp" (DeepSeek-V3, arXiv:2412.19437, section 2.2): x = fc([norm(e), norm(h)]) enters the layers; h is of one tap.
      Of several residual streams (DeepSeek-V4) h has all, and stream s is fc_token(norm(e)) + fc(norm(h_s)); of gated
      ones (Qwen4) fc_token(norm(e)) + fc(norm(h)_s), by one norm of all of them.
    - "eagle3" (arXiv:2503.01840): g = fc(h) of several taps, or its own hidden state; x = g, and the first layer's
      queries, keys and values are made of [norm(e), norm(g)]. norm_before_residual: x is that norm(g).
    - "dflash" (arXiv:2602.06036): g = norm(fc(h)) of several taps becomes keys and values of every layer, as they are
      (no layer changes g); a block of the last token and `mask_token` block_rows - 1 times passes through the layers at
      once, each row seeing all of the block; row i of it predicts the i-th token after the last one, from row 1 on, or
      with `from_anchor` from row 0 on the one after that.
    - "shared_kv" (Gemma 4's assistant): x = fc([e, h]) with the target's e; its layers have queries alone and attend to
      keys and values of the target's last layer of their kind, from one position on; the head's own hidden states pass
      through a projection (`fc_out`).

    input_norm: of h before fc: of all of it together, or of each tap's part. fed_back_normed: a head's own hidden state
    is that after its final norm. draft_vocab_size: rows of its lm_head, where they are fewer than the target's tokens;
    the model's `target_tokens` then says which those are. shared_embedding, shared_head: the target's. clusters: the
    vocabulary is in so many parts of equal size, of which a row scores the `clusters_read` best, by a linear of
    its own; `token_order` of the model has their tokens, part after part. All others have the least of these, - 1.
    conv_kernel, conv_group, candidates, selector_rank: of a "dflash" of the second kind (torch/dynamic_conv.py and
    selector.py of executors/): rows of its convolutions, columns that are scaled together; tokens that each is
    chosen among, columns of their tables. DSpark (arXiv:2607.05147) is a "dflash" with a selector_rank, its Markov
    head's, and no number of candidates: all tokens are. confidence_size: columns that its confidence head reads, a
    row's hidden_size and, where it reads the token before, the rank; 0: it has none.
    block_size: one more than the tokens that are drafted at the price of one draft, however few are asked: of a
    "dflash", or of an "mtp" whose tokens have a layer each (executors/layer_chain.py); 0: each token has its own.
    """

    kind: HeadKind
    taps: Taps
    target_hidden_size: int
    input_norm: InputNorm | None = None
    norm_before_residual: bool = False
    fed_back_normed: bool = False
    draft_vocab_size: int | None = None
    shared_embedding: bool = True
    shared_head: bool = True
    block_size: int = 0
    mask_token: int = 0
    clusters: int = 0
    clusters_read: int = 0
    conv_kernel: int = 0
    conv_group: int = 0
    candidates: int = 0
    selector_rank: int = 0
    confidence_size: int = 0
    from_anchor: bool = False

    @property
    def input_size(self) -> int:
        """Columns of a row of the target's hidden states; `target_hidden_size` are those of a tap."""
        return len(self.taps.layers) * self.target_hidden_size

    def fed_back(self, layers: int) -> Taps:
        """The hidden state of a head of so many layers that takes the place of its target's, of drafted tokens."""
        return Taps((layers,), self.fed_back_normed, self.taps.streams)

    @property
    def block_rows(self) -> int:
        """Rows of a block of a "dflash"."""
        return self.block_size - 1 if self.from_anchor else self.block_size
