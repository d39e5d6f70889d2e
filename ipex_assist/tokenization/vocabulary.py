"""Compares the vocabularies of target and assistant: which ids both know, and with what meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipex_assist.env.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ADVICE = (
    "Choose a smaller model of the target's family with --assistant-model, or go without by --no-assisted; "
    "--universal uses such an assistant all the same, by way of its text."
)


@dataclass(frozen=True)
class SharedVocabulary:
    """The differences of two vocabularies in which every id that both models know is the same token.

    limit: the assistant drafts only ids below this; None if it has no token that the target lacks.
    masked: ids below the limit that only the assistant has; never drafted.
    unknown: ids that only the target has; the assistant never reads them.
    """

    limit: int | None = None
    masked: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()

    def limited(self, draft_vocabulary: int | None) -> int | None:
        """Return the smaller of the limit and `draft_vocabulary`; None is no limit."""
        return min((number for number in (self.limit, draft_vocabulary) if number is not None), default=None)


def share_vocabulary(
    target_tokenizer: PreTrainedTokenizerBase,
    assistant_tokenizer: PreTrainedTokenizerBase,
    target_vocab_size: int,
    assistant_vocab_size: int,
    names: tuple[str, str] = ("target", "assistant"),
    advice: str = ADVICE,
) -> SharedVocabulary:
    """Compare token strings id by id; the sizes are rows of the embeddings, which may be padded.

    A token without a row in its own model can be neither read nor written by it, and counts as absent.
    names, advice: for the error message.

    Raises:
        UsageError: an id that stands for two different tokens, or no id that both models know.
    """
    target = _tokens_by_id(target_tokenizer, target_vocab_size)
    assistant = _tokens_by_id(assistant_tokenizer, assistant_vocab_size)
    if target == assistant:
        return SharedVocabulary()
    common = target.keys() & assistant.keys()
    different = min((index for index in common if target[index] != assistant[index]), default=None)
    if different is not None or not common:
        raise UsageError(
            f"The {names[1]} does not share the {names[0]}'s vocabulary. {names[0].capitalize()}: "
            f"{len(target_tokenizer.get_vocab()):,} tokens in {target_vocab_size:,} rows; {names[1]}: "
            f"{len(assistant_tokenizer.get_vocab()):,} tokens in {assistant_vocab_size:,} rows. "
            + (
                "No id stands for a token in both. "
                if different is None
                else f"The first difference is id {different}: {target[different]!r} for the {names[0]}, "
                f"{assistant[different]!r} for the {names[1]}. "
            )
            + advice
        )
    alone = assistant.keys() - target.keys()
    limit = max(common) + 1 if alone else None
    return SharedVocabulary(
        limit,
        frozenset(index for index in alone if limit is not None and index < limit),
        frozenset(target.keys() - assistant.keys()),
    )


def _tokens_by_id(tokenizer: PreTrainedTokenizerBase, rows: int) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items() if index < rows}
