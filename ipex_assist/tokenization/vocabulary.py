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

    A token that only one tokenizer has is allowed where it falls into the other model's padding: the other model has a
    row for it, so it can be drafted and verified. Without a row it could be neither.

    Raises:
        UsageError: an id that stands for two different tokens, or has no row in one of the models.
    """
    target, assistant = target_tokenizer.get_vocab(), assistant_tokenizer.get_vocab()
    rows = min(target_vocab_size, assistant_vocab_size)
    if target == assistant and max(target.values(), default=-1) < rows:
        return
    target_tokens = {index: token for token, index in target.items()}
    assistant_tokens = {index: token for token, index in assistant.items()}
    for index in sorted(target_tokens.keys() | assistant_tokens.keys()):
        ours, theirs = target_tokens.get(index), assistant_tokens.get(index)
        if index < rows and (ours == theirs or ours is None or theirs is None):
            continue
        raise UsageError(
            "The assistant does not share the target's vocabulary. Target: "
            f"{len(target):,} tokens in {target_vocab_size:,} rows; assistant: {len(assistant):,} tokens in "
            f"{assistant_vocab_size:,} rows. The first difference is id {index}: "
            f"{_shown(ours, index, target_vocab_size)} for the target, "
            f"{_shown(theirs, index, assistant_vocab_size)} for the assistant. "
            "Choose a smaller model of the target's family with --assistant-model, or go without by --no-assisted; "
            "--universal uses such an assistant all the same, by way of its text."
        )


def _shown(token: str | None, index: int, rows: int) -> str:
    if index >= rows:
        return "no row"
    return "padding" if token is None else repr(token)
