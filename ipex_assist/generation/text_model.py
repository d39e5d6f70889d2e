"""What every loaded model offers, whoever runs it: `generate` and `stream`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.traffic import Traffic
from ipex_assist.generation.result import Identity, Result
from ipex_assist.generation.stream import Generation
from ipex_assist.speculative.decode import Round
from ipex_assist.speculative.sampling import Sampling
from ipex_assist.speculative.schedule import DraftOptions
from ipex_assist.tokenization.tokenizer import checked_ids, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextModel(ABC):
    """A loaded target with its tokenizer and, where there is one, its assistant."""

    tokenizer: PreTrainedTokenizerBase
    eos: frozenset[int]
    identity: Identity

    @property
    @abstractmethod
    def context_length(self) -> int | None:
        """Tokens a sequence can hold; None where the model sets no limit."""

    @property
    def vocab_size(self) -> int | None:
        """Token ids the model has an embedding for; None where that is not known."""
        return None

    @property
    def traffic(self) -> Traffic | None:
        """The bytes that a pass of the target reads from memory; None where that is not known."""
        return None

    @abstractmethod
    def _rounds(
        self, tokens: list[int], limit: int, sampling: Sampling, options: DraftOptions
    ) -> tuple[Iterator[Round], bool]:
        """The rounds of one generation of at most `limit` tokens, and whether a draft takes part."""

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Result:
        """`stream` to its end; the same options."""
        generation = self.stream(prompt, **options)
        for _ in generation:
            pass
        return generation.result()

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        chat: bool = False,
        max_new_tokens: int = 128,
        stop: Sequence[str] = (),
        num_assistant_tokens: int | None = None,
        num_assistant_tokens_schedule: str | None = None,
        assisted: bool = True,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
    ) -> Generation:
        """Generate from a text or from token ids; yields `Chunk`s as tokens are accepted.

        chat: put a text into the tokenizer's chat template, as a user's message. stop: the text ends before the first
        of these strings. num_assistant_tokens: drafted tokens a round; num_assistant_tokens_schedule: "constant", or
        "heuristic" (transformers' rule, which starts from that number), or "adaptive" (by measured cost and acceptance,
        at most that number), which is the default where no number is given. The sampling options are transformers'.
        Raises UsageError for an empty prompt, for token ids that the model does not have, and for a prompt that leaves
        no room in the model's context. Its iteration raises LogitsError where the model computes no numbers.
        """
        encoded = encode_prompt(self.tokenizer, prompt, chat) if isinstance(prompt, str) else prompt
        tokens = checked_ids(encoded, self.vocab_size, self.tokenizer, self.identity.target)
        if not tokens:
            raise UsageError("the prompt is empty: give -p TEXT, --prompt-file FILE, or text on standard input")
        room = max_new_tokens if self.context_length is None else self.context_length - len(tokens)
        if room <= 0:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens and the context of {self.identity.target} holds "
                f"{self.context_length}: shorten the prompt by at least {1 - room}"
            )
        limit = min(max_new_tokens, room)
        sampling = Sampling(do_sample, temperature, top_k, top_p, repetition_penalty, seed)
        rounds, drafting = self._rounds(
            tokens, limit, sampling, DraftOptions(assisted, num_assistant_tokens, num_assistant_tokens_schedule)
        )
        return Generation(
            rounds,
            self.tokenizer,
            self.identity,
            prompt_tokens=len(tokens),
            max_new_tokens=limit,
            eos=self.eos,
            stop=stop,
            assisted=drafting,
            limit_is_context=room < max_new_tokens,
            traffic=self.traffic,
        )
