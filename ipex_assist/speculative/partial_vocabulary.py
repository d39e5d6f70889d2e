"""An assistant that lacks some of the target's tokens: it reads the text without them."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.assistant_model import AssistantModel
from ipex_assist.speculative.batched_proposals import Steps, propose_alone
from ipex_assist.speculative.draft_source import Proposal


class PartialVocabularyAssistant:
    """Leaves out of the text what the assistant has no token for, and pauses right behind it.

    Such tokens are mostly marks of a chat template or of infilling, around text that both models know. Without them the
    assistant keeps all of that text; a token in their place that stands for something else would mislead it. What
    follows a mark at once it cannot guess, so that the target decodes one token alone there.
    """

    def __init__(self, model: AssistantModel, unknown: frozenset[int]) -> None:
        """unknown: ids that the assistant must not read; so are all that its embedding has no row for."""
        self._model, self._unknown = model, unknown
        self._rows = model.model.spec.vocab_size
        self._known: list[int] = []  # the text without them …
        self._left_out = [0, 0]  # … how many of them prompt and generated text have …
        self._followed = 0  # … up to this token

    def unread(self, tokens: Sequence[int]) -> int:
        """Of the tokens that the assistant knows; never 0, which would mean that reading costs nothing."""
        self._follow(tokens)
        return max(1, self._model.unread(self._known))

    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """What the assistant says up to a token it does not know, and nothing right behind one."""
        return propose_alone(self.steps(tokens, k, min_confidence=min_confidence, context=context))

    def steps(self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None) -> Steps:
        """`propose` by calls of the model (see batched_proposals.py)."""
        self._follow(tokens)
        if not self._reads(tokens[-1]):
            return Proposal([])
        left_out = (self._left_out[0], self._left_out[1])
        steps = self._model.steps(self._known, k, min_confidence=min_confidence, context=context, left_out=left_out)
        proposal = yield from steps
        # An id that is the target's alone may have a row, and so a logit: what is left out of the text must not be in
        # the assistant's sequence either.
        known = next((i for i, token in enumerate(proposal.tokens) if not self._reads(token)), len(proposal.tokens))
        if known == len(proposal.tokens):
            return proposal
        self._model.accept(known)
        return Proposal(proposal.tokens[:known], proposal.confidence[:known], proposal.read)

    def accept(self, count: int) -> None:
        """Tell the assistant, which has read as many of its own tokens."""
        self._model.accept(count)

    def _follow(self, tokens: Sequence[int]) -> None:
        for place in range(self._followed, len(tokens)):
            if self._reads(tokens[place]):
                self._known.append(tokens[place])
            else:
                self._left_out[place >= self._model.sampling.prompt_length] += 1
        self._followed = len(tokens)

    def _reads(self, token: int) -> bool:
        return token < self._rows and token not in self._unknown
