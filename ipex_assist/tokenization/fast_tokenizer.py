"""A tokenizer on the tokenizers library alone; transformers, slow to import, is loaded only if needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from ipex_assist.tokenization.chat_template import is_plain, render


class FastTokenizer:
    """The part of transformers' PreTrainedTokenizerFast that generation uses, with the same results.

    Every other attribute is delegated to the tokenizer of transformers, which is created on first use.
    """

    def __init__(
        self,
        backend: Tokenizer,
        special: dict[str, str],
        chat_template: Any,
        make_full: Callable[[], Any],
    ) -> None:
        """special: strings of "eos_token" etc. make_full: creates transformers' tokenizer from the same files."""
        self.backend_tokenizer, self.chat_template = backend, chat_template
        self.special_tokens_map = special
        self._make_full = make_full

    @functools.cached_property
    def _full(self) -> Any:
        full = self._make_full()
        full.chat_template = self.chat_template
        self.backend_tokenizer = full.backend_tokenizer  # shared, so that add_tokens() on one affects both
        return full

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # probed by copy and pickle
            raise AttributeError(name)
        return getattr(self._full, name)

    def __call__(self, text: Any, add_special_tokens: bool = True, **options: Any) -> Any:
        """Encode a string to {"input_ids": […]}; other inputs and options go to transformers."""
        if not isinstance(text, str) or options:
            return self._full(text, add_special_tokens=add_special_tokens, **options)
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Decode token ids."""
        if not isinstance(token_ids, list) or options:
            return self._full.decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        """Ids by token, including added tokens."""
        return dict(self.backend_tokenizer.get_vocab(with_added_tokens=True))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, or of the unknown token."""
        found = self.backend_tokenizer.token_to_id(tokens) if isinstance(tokens, str) else None
        return self._full.convert_tokens_to_ids(tokens) if found is None else found

    def convert_ids_to_tokens(self, ids: Any, **options: Any) -> Any:
        """The token of an id."""
        if not isinstance(ids, int) or options:
            return self._full.convert_ids_to_tokens(ids, **options)
        return self.backend_tokenizer.id_to_token(ids)

    @property
    def eos_token_id(self) -> int | None:
        """The end-of-text token's id."""
        name = self.special_tokens_map.get("eos_token")
        return None if name is None else self.backend_tokenizer.token_to_id(name)

    def apply_chat_template(
        self, conversation: Any, tools: Any = None, add_generation_prompt: bool = False, tokenize: bool = True
    ) -> Any:
        """Render a conversation to a string or to ids."""
        plain = not tokenize and tools is None and is_plain(conversation) and isinstance(self.chat_template, str)
        if plain:
            facts = {**self.special_tokens_map, "add_generation_prompt": add_generation_prompt}
            text = render(self.chat_template, conversation, facts)
            if text is not None:
                return text
        self._full.chat_template = self.chat_template
        return self._full.apply_chat_template(
            conversation, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=tokenize
        )
