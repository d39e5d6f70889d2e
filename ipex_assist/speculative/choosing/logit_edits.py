"""Which logits of a request change before a token is chosen: by biases, and by penalties for tokens that were seen."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from ipex_assist.executors.row_choice import LOGIT_EDIT, LogitEdits
from ipex_assist.speculative.choosing.sampling import Sampling


class SeenTokens:
    """The tokens of a text that biases and penalties are for, kept from pass to pass as the text grows."""

    def __init__(self, sampling: Sampling, width: int) -> None:
        """width: logits of a row; tokens from there on have none."""
        self._sampling, self._width = sampling, width
        biases = sorted((token, bias) for token, bias in sampling.logit_bias.items() if token < width)
        self._biases: LogitEdits = np.zeros(len(biases), LOGIT_EDIT)
        self._biases["token"] = [token for token, _ in biases]
        self._biases["bias"] = [bias for _, bias in biases]
        self._take(self._biases, 0)

    def edits(self, tokens: Sequence[int]) -> LogitEdits:
        """The edits after `tokens`; valid until the next call."""
        if not self._sampling.has_penalties:
            return self._biases
        self._follow(tokens)
        return self._memory[: len(self._tokens)]

    def _take(self, edits: LogitEdits, length: int) -> None:
        """Go on from the edits after `length` tokens."""
        self._length, self._tokens = length, edits["token"].tolist()  # the tokens as a list: it is searched faster
        self._memory: LogitEdits = np.concatenate((edits, np.zeros(len(edits) + 64, LOGIT_EDIT)))
        self._words = self._memory.view(np.int32).data  # four of an edit, in the order of its fields

    def _follow(self, tokens: Sequence[int]) -> None:
        if len(tokens) < self._length:
            self._take(self._biases, 0)
        if len(tokens) - self._length > 16:
            self._take(self._of(tokens), len(tokens))
        for place in range(self._length, len(tokens)):
            self._add(tokens[place], generated=place >= self._sampling.prompt_length)
        self._length = len(tokens)

    def _add(self, token: int, *, generated: bool) -> None:
        """Count one more token, in place."""
        if token >= self._width:
            return
        place, count = bisect_left(self._tokens, token), len(self._tokens)
        word = 4 * place
        if place == count or self._tokens[place] != token:
            if count == len(self._memory):
                self._take(self._memory, self._length)
            self._words[word + 4 : 4 * count + 4] = self._words[word : 4 * count]
            self._words[word], self._words[word + 1], self._words[word + 3] = token, 0, 0
            self._tokens.insert(place, token)
        self._words[word + 2] = 1
        self._words[word + 3] += generated

    def _of(self, tokens: Sequence[int]) -> LogitEdits:
        """The edits after a whole text."""
        ids = np.array(tokens, np.int64)
        seen = np.unique(ids[ids < self._width])
        output = ids[self._sampling.prompt_length :]
        output_ids, counts = np.unique(output[output < self._width], return_counts=True)
        edits: LogitEdits = np.zeros(len(np.union1d(seen, self._biases["token"])), LOGIT_EDIT)
        edits["token"] = np.union1d(seen, self._biases["token"])
        edits["bias"][np.searchsorted(edits["token"], self._biases["token"])] = self._biases["bias"]
        edits["seen"][np.searchsorted(edits["token"], seen)] = 1
        edits["generated"][np.searchsorted(edits["token"], output_ids)] = counts
        return edits
