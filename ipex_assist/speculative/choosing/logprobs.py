"""Log-probabilities of a row's likeliest tokens and of the chosen one, by the model's own distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.speculative.choosing.sampling import Row

IMPOSSIBLE = -9999.0  # of a token that has no logit, as other servers write the logarithm of 0


def log_probabilities(row: Row, token: int, top: int) -> TokenLogprob:
    """Log-probabilities by a row of logits, (vocab,), before biases, penalties, temperature and filters (OpenAI's API).

    Lists the `top` most likely tokens, lower ids first among equals, whether or not `token` is one of them; fewer if
    the others have probability 0. A token of a prompt may have no logit, where a head has not all of the vocabulary.
    """
    largest = float(row.max())
    offset = largest + float(np.log(np.exp(row - np.float32(largest)).sum(dtype=np.float64)))
    first: list[int] = []
    if top:
        least = np.partition(row, len(row) - top)[len(row) - top] if top < len(row) else -np.inf
        ids = np.flatnonzero(row >= least)
        ids = ids[np.isfinite(row[ids])]
        first = ids[np.argsort(-row[ids], kind="stable")][:top].tolist()
    own = float(row[token]) - offset if token < len(row) else IMPOSSIBLE
    return TokenLogprob(token, own, [(each, float(row[each]) - offset) for each in first])


def of_rows(logits: Sequence[Row | None], tokens: Sequence[int], top: int | None) -> list[TokenLogprob] | None:
    """`log_probabilities` of the first rows of logits, one for each token; None if top is None."""
    if top is None:
        return None
    found = []
    for row, token in zip(logits, tokens, strict=False):
        assert row is not None, "logits that nobody asked for"
        found.append(log_probabilities(row, token, top))
    assert len(found) == len(tokens), f"{len(found)} rows of logits for {len(tokens)} tokens"
    return found
