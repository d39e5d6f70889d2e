"""A tiny tokenizer, trained in a moment; without torch."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TOKENS = 300  # of the tokenizer; the rest is padding, as most models have it
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "def add(a, b):\n    return a + b\n",
    "for i in range(10): print(i)",
    "naïve café, 12345 and 3.14159",
]


def tiny_tokenizer(special: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")) -> PreTrainedTokenizerFast:
    """A byte-level BPE of TOKENS tokens, the special ones first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=special[-1],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
