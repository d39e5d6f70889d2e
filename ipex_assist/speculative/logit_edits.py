"""Which logits of a request change before a token is chosen: by biases, and by penalties for tokens that were seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipex_assist.executors.row_choice import LOGIT_EDIT, LogitEdits
from ipex_assist.speculative.sampling import Sampling


class SeenTokens:
    """The tokens of a text that biases and penalties are for, kept from pass to pass as the text grows."""

    def __init__(self, sampling: Sampling, width: int) -> None:
        """width: logits of a row; tokens from there on have none."""
        self._sampling, self._width = sampling, width
        biases = sorted((token, bias) for token, bias in sampling.logit_bias.items() if token < width)
        self._biases: LogitEdits = np.zeros(len(biases), LOGIT_EDIT)
        self._biases["token"] = [token for token, _ in biases]
        self._biases["bias"] = [bias for _, bias in biases]
        self._edits, self._length = self._biases, 0

    def edits(self, tokens: Sequence[int], following: Sequence[int] = ()) -> list[LogitEdits]:
        """The edits after `tokens`, and after each of the `following` ones, which are output."""
        if not self._sampling.has_penalties:
            return [self._biases] * (len(following) + 1)
        self._follow(tokens)
        rows = [self._edits]
        for token in following:
            rows.append(self._with(rows[-1], token, generated=True))
        return rows

    def _follow(self, tokens: Sequence[int]) -> None:
        if len(tokens) < self._length:
            self._edits, self._length = self._biases, 0
        prompt = self._sampling.prompt_length
        if len(tokens) - self._length > 16:
            self._edits, self._length = self._of(tokens), len(tokens)
        for place in range(self._length, len(tokens)):
            self._edits = self._with(self._edits, tokens[place], generated=place >= prompt)
        self._length = len(tokens)

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

    def _with(self, edits: LogitEdits, token: int, *, generated: bool) -> LogitEdits:
        """A copy with one more token: the core may still refer to what was passed before."""
        if token >= self._width:
            return edits
        place = int(np.searchsorted(edits["token"], token))
        if place == len(edits) or edits["token"][place] != token:
            new = np.array([(token, 0.0, 1, int(generated))], LOGIT_EDIT)
            return np.concatenate((edits[:place], new, edits[place:]))
        edits = edits.copy()
        edits["seen"][place] = 1
        edits["generated"][place] += generated
        return edits
