"""The weights that an EAGLE-3 head begins with: its output is what least squares say of the next hidden state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ipex_assist.distill import linear_start
from ipex_assist.distill.linear_start import NormalEquations, fastest, fit, normed

pytestmark = pytest.mark.one_stack

HIDDEN, HEADS, HEAD_DIM, TAPS, VOCABULARY = 48, 6, 16, 2, 64


def texts(count: int, length: int) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    """An embedding, and texts as batches have them, whose next state is linear in token and last state.

    One value of the embedding is always large, as in real ones; taps are two other views of the state.
    """
    torch.manual_seed(0)
    embedding = torch.randn(VOCABULARY, HIDDEN)
    embedding[:, 0] = 4.0
    of_token, of_last = torch.randn(HIDDEN, HIDDEN) / 9, torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0]
    views = [torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0] * size for size in (3.0, 50.0)]
    batches = []
    for _ in range(count):
        tokens, state = torch.randint(VOCABULARY, (length,)), normed(torch.randn(HIDDEN))
        read, last = [], []
        for token in tokens:
            read.append(torch.cat([view @ state for view in views]))
            state = normed(of_token @ normed(embedding[token]) + of_last @ state)
            last.append(state)
        batches.append(
            {
                "input_ids": tokens[None],
                "hidden_states": torch.stack(read)[None],
                "verifier_last_hidden_states": torch.stack(last)[None] * 7,
                "document_ids": torch.zeros(1, length, dtype=torch.long),
            }
        )
    return embedding, batches


def head_of(embedding: torch.Tensor, kv_heads: int) -> Any:
    """What of an Eagle3DraftModel is given weights, which are random before."""

    def linear(inputs: int, outputs: int) -> torch.nn.Linear:
        return torch.nn.Linear(inputs, outputs, bias=False)

    def norm() -> Any:
        return SimpleNamespace(weight=torch.ones(HIDDEN))

    attention = SimpleNamespace(
        q_proj=linear(2 * HIDDEN, HEADS * HEAD_DIM),
        k_proj=linear(2 * HIDDEN, kv_heads * HEAD_DIM),
        v_proj=linear(2 * HIDDEN, kv_heads * HEAD_DIM),
        o_proj=linear(HEADS * HEAD_DIM, HIDDEN),
    )
    shape = SimpleNamespace(head_dim=HEAD_DIM, num_attention_heads=HEADS, num_key_value_heads=kv_heads)
    return SimpleNamespace(
        hidden_size=HIDDEN,
        embed_tokens=SimpleNamespace(weight=embedding),
        fc=linear(TAPS * HIDDEN, HIDDEN),
        fc_norm=[norm() for _ in range(TAPS)],
        layers=[SimpleNamespace(self_attn=attention, hidden_norm=norm(), mlp=SimpleNamespace(down_proj=linear(8, 8)))],
        norm=norm(),
        verifier_norm=SimpleNamespace(weight=torch.full((HIDDEN,), 3.0)),
        rotary_emb=SimpleNamespace(inv_freq=1 / 10000 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)),
        config=SimpleNamespace(transformer_layer_config=shape),
    )


def rotated(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rows (positions, heads, head_dim), as Llama rotates them."""
    first, second = rows.chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def layer(head: Any, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x + attention(e, x) of all positions of a text."""
    first = head.layers[0]
    attention, positions = first.self_attn, torch.arange(len(tokens))
    both = torch.cat([normed(head.embed_tokens.weight[tokens]), normed(x) * first.hidden_norm.weight], 1)
    angles = positions[:, None] * head.rotary_emb.inv_freq
    q, k, v = (
        each(both).unflatten(1, (-1, HEAD_DIM)) for each in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    shared = q.shape[1] // k.shape[1]
    q, k, v = rotated(q, angles), rotated(k, angles).repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5
    scores = scores.masked_fill(positions[:, None] < positions, float("-inf"))
    found = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
    return x + attention.o_proj(found)


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [HEADS, HEADS // 2])
def test_a_new_head_gives_the_next_state(kv_heads: int) -> None:
    """Of texts that it has not seen: for the first token by what it reads, and for the second by its own output.

    Wrong rows of a projection, a forgotten scale, or attention that looks elsewhere give anything but that.
    """
    embedding, batches = texts(40, 60)
    head = head_of(embedding, kv_heads)
    linear_start.begin(head, batches[:36])
    assert torch.equal(head.norm.weight, head.verifier_norm.weight)
    assert not head.layers[0].mlp.down_proj.weight.any()
    for batch in batches[36:]:
        tokens, expected = batch["input_ids"][0], normed(batch["verifier_last_hidden_states"][0])
        read = batch["hidden_states"][0].chunk(TAPS, -1)
        x = head.fc(torch.cat([normed(each) * norm.weight for each, norm in zip(read, head.fc_norm, strict=True)], 1))
        first = layer(head, tokens, x)
        second = layer(head, tokens[1:], first[:-1])
        assert float(torch.cosine_similarity(first, expected).mean()) > (0.85 if kv_heads == HEADS else 0.6)
        assert float(torch.cosine_similarity(second, expected[1:]).mean()) > (0.75 if kv_heads == HEADS else 0.5)


def test_what_is_fitted() -> None:
    """Maps that made the rows are found again, and rows of two texts are not taken for neighbours."""
    embedding, batches = texts(30, 50)
    head = head_of(embedding, HEADS)
    packed = {name: torch.cat([batch[name] for batch in batches[:2]], 1) for name in batches[0]}
    packed["document_ids"] = torch.tensor([[0] * 50 + [1] * 50])
    assert linear_start.gather(head, [packed]).count == 98
    sums: NormalEquations = linear_start.gather(head, batches)
    of_token, of_last, of_read = fit(sums, HIDDEN)
    last = normed(batches[0]["verifier_last_hidden_states"][0])
    embedded = normed(embedding[batches[0]["input_ids"][0]])
    read = torch.cat([normed(each) for each in batches[0]["hidden_states"][0].chunk(TAPS, -1)], 1)
    for found in (
        embedded[1:] @ of_token.T + last[:-1] @ of_last.T,
        embedded[1:] @ of_token.T + read[1:] @ of_read.T,
    ):
        assert float(torch.cosine_similarity(found, last[1:]).mean()) > 0.97


def test_rotary_embeddings_prefer_a_positions_own() -> None:
    """Of usual bases a position sees itself more than all others of 1,024 together."""
    for base, head_dim in ((1e4, 64), (5e5, 128), (1e6, 128)):
        frequencies = 1 / base ** (torch.arange(0, head_dim, 2) / head_dim)
        scores = torch.cos(torch.arange(1024)[:, None] * frequencies[: fastest(frequencies)]).mean(1)
        assert float(torch.softmax(linear_start.SCORE * scores, 0)[0]) > 0.5
