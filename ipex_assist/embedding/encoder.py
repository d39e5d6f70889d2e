"""Embeddings and scores by models that transformers runs: encoders such as BERT, and what our decoder does not have.

Texts of like lengths share a pass, and shorter ones are padded. What is beside a text may change its last bits here:
PyTorch's matrix products depend on the number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.embedding.facts import EmbeddingFacts
from ipex_assist.embedding.jobs import EmbeddingJob
from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.embedding.pooling import Pooler
from ipex_assist.embedding.steps import Finisher
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.phases import phase
from ipex_assist.generation.result import Identity

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PASS_TOKENS, PASS_TEXTS = 2048, 64  # of a pass, padding among them, unless one text is longer
PADDED = 1.25  # tokens of a pass ÷ those of its texts, at most


class EncoderEmbedder(EmbeddingModel):
    """A transformers model. poolings: None for one with a head of labels, whose logits take the place of a vector."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        identity: Identity,
        facts: EmbeddingFacts,
        poolings: Sequence[str] | None,
        finish: Finisher,
    ) -> None:
        super().__init__(finish)
        self._model, self.tokenizer, self.identity, self.facts = model, tokenizer, identity, facts
        self._poolings = poolings
        self._typed = "token_type_ids" in tokenizer.model_input_names

    @property
    def vocab_size(self) -> int:
        table: Any = self._model.get_input_embeddings()
        return int(table.weight.shape[0])

    def _release(self, job: EmbeddingJob) -> None:
        return

    def _pass(self, jobs: Sequence[EmbeddingJob]) -> None:
        chosen = self._chosen(jobs)
        started = time.perf_counter()
        tokens = [job.texts[index].tokens for job, index in chosen]
        for (job, index), pooled in zip(chosen, self._run(chosen), strict=True):
            job.rows_read += len(job.texts[index].tokens)
            self._put(job, index, pooled)
        count = sum(map(len, tokens))
        self.engine_stats.count_pass(count, time.perf_counter() - started)
        self.engine_stats.prompt_tokens += count

    def _chosen(self, jobs: Sequence[EmbeddingJob]) -> list[tuple[EmbeddingJob, int]]:
        """The texts of the next pass: the next one of the job of which the least was read, and others about as long.

        Jobs take turns, so that a job of one text does not wait for one of many.
        """
        waiting = {job: [i for i, vector in enumerate(job.vectors) if vector is None] for job in jobs}
        ordered = sorted(jobs, key=lambda job: (job.rows_read, job.number))
        candidates = [
            (job, waiting[job][turn])
            for turn in range(max(map(len, waiting.values())))
            for job in ordered
            if turn < len(waiting[job])
        ]

        def length(each: tuple[EmbeddingJob, int]) -> int:
            return len(each[0].texts[each[1]].tokens)

        chosen = candidates[:1]
        longest = total = length(chosen[0])
        for each in candidates[1:]:
            longest_then, total_then = max(longest, length(each)), total + length(each)
            padded = longest_then * (len(chosen) + 1)
            if len(chosen) >= PASS_TEXTS or padded > PASS_TOKENS or padded > PADDED * total_then:
                continue
            chosen.append(each)
            longest, total = longest_then, total_then
        return chosen

    def _run(self, chosen: Sequence[tuple[EmbeddingJob, int]]) -> list[NDArray[np.float32]]:
        """What each text's vector or score is made of."""
        texts = [job.texts[index] for job, index in chosen]
        longest = max(len(text.tokens) for text in texts)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.full((len(texts), longest), pad)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, text in enumerate(texts):
            count = len(text.tokens)
            ids[row, :count] = torch.tensor(text.tokens)
            mask[row, :count] = 1
            if text.types:
                types[row, :count] = torch.tensor(text.types)
        inputs = {"input_ids": ids, "attention_mask": mask, **({"token_type_ids": types} if self._typed else {})}
        with torch.inference_mode():
            output = self._model(**inputs)
        if self._poolings is None:
            return [logits.float().numpy() for logits in output.logits]
        hidden = output.last_hidden_state.float().numpy()
        pooled = []
        for row, text in enumerate(texts):
            pooler = Pooler(self._poolings, hidden.shape[-1], text.skip)
            pooler.take(hidden[row, : len(text.tokens)])
            pooled.append(pooler.vector())
        return pooled


def load_encoder(checkpoint: Checkpoint, dtype: torch.dtype, *, scores: bool) -> PreTrainedModel:
    """The transformers model of a folder. scores: with its head of labels.

    Raises IpexAssistError where transformers cannot load it, or weights are missing.
    """
    import transformers
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    kind: Any = transformers.AutoModelForSequenceClassification if scores else transformers.AutoModel
    try:
        with phase(f"loading {short_name(checkpoint.source)} by transformers"):
            model, said = kind.from_pretrained(
                checkpoint.path, torch_dtype=dtype, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # a config can break a transformers model in any way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise IpexAssistError(
            f"{checkpoint.source}: transformers cannot load {checkpoint.architecture or 'this model'} ({reason})"
        ) from error
    # A pooler is of no use to sentences, and published checkpoints often lack it.
    missing = sorted(name for name in said["missing_keys"] if scores or not name.startswith("pooler."))
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise IpexAssistError(f"{checkpoint.source} lacks {len(missing)} weights of its model ({shown})")
    if model.config.is_encoder_decoder:
        raise IpexAssistError(
            f"{checkpoint.source}: {checkpoint.architecture} has an encoder and a decoder, of which none here makes a "
            "vector: choose an embedding model"
        )
    return model.eval()


def sees_ahead(model: PreTrainedModel) -> bool:
    """Whether a token's state depends on the token after it."""
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([[5, 6], [5, 7]]), output_hidden_states=True).hidden_states[-1]
    return not torch.equal(states[0, 0], states[1, 0])
