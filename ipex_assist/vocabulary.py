"""Whether two models share a vocabulary: the same token string behind every id either of them may produce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipex_assist.env.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_vocabulary(
    target_tokenizer: PreTrainedTokenizerBase,
    assistant_tokenizer: PreTrainedTokenizerBase,
    target_vocab_size: int,
    assistant_vocab_size: int,
) -> None:
    """Compare token strings id by id; the sizes are rows of the embeddings, which may be padded.

    A token that only one tokenizer has is a padded row of the other model, if the other model has that row: drafting
    or verifying it is possible, and merely never accepted.

    Raises:
        UsageError: an id that stands for two different tokens, or has no row in one of the models.
    """
    target, assistant = target_tokenizer.get_vocab(), assistant_tokenizer.get_vocab()
    if target == assistant and max(target.values(), default=0) < min(target_vocab_size, assistant_vocab_size):
        return
    target_tokens = {index: token for token, index in target.items()}
    assistant_tokens = {index: token for token, index in assistant.items()}
    for index in sorted(target_tokens.keys() | assistant_tokens.keys()):
        ours, theirs = target_tokens.get(index), assistant_tokens.get(index)
        if ours == theirs and index < min(target_vocab_size, assistant_vocab_size):
            continue
        if (ours is None and index < target_vocab_size) or (theirs is None and index < assistant_vocab_size):
            continue
        raise UsageError(
            "The assistant does not share the target's vocabulary: the target has "
            f"{len(target):,} tokens in {target_vocab_size:,} rows, the assistant {len(assistant):,} in "
            f"{assistant_vocab_size:,}. The first difference is id {index}: {_shown(ours, index, target_vocab_size)} for "
            f"the target, {_shown(theirs, index, assistant_vocab_size)} for the assistant. Choose an assistant of the "
            "same family with --assistant-model, or go without by --no-assisted."
        )


def _shown(token: str | None, index: int, rows: int) -> str:
    return ("nothing" if token is None else repr(token)) + ("" if index < rows else " without a row")
