"""Tries a grammar: compiles it and generates a few random outputs. Run as a process, for grammars of strangers.

llguidance limits most costs of a grammar, but a single call cannot be interrupted.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.speculative.choosing.grammar import GrammarSpec

if TYPE_CHECKING:
    from ipex_assist.speculative.choosing.llguidance_grammar import LlguidanceGrammar

MEMORY = 4 << 30  # bytes of address space of the process
WALKS, STEPS = 4, 48  # random outputs, and choices in each: a grammar may become expensive later on
LONGEST = 1000  # bytes of such an output, including forced ones
# Lark tokens that may contain < >: strings, comments, regular expressions, and special tokens themselves.
_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<special><[^<>\s]+>)')
_ANY_SPECIAL = "<[255]>"  # replaces each special token: a byte that never occurs in UTF-8


class _Bytes:
    """A vocabulary of single bytes in llguidance's interface; a grammar's cost shows with it, too."""

    is_tokenizer_wrapper = True
    eos_token_id, bos_token_id = 256, None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")

    def __call__(self, text: str | bytes) -> list[int]:
        """The bytes."""
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> Any:
    """llguidance's tokenizer in which every byte is a token, and 256 the end of the text."""
    from llguidance import LLTokenizer

    vocabulary: Any = _Bytes()
    return LLTokenizer(vocabulary, n_vocab=257, eos_token=[256])


def reason_against(spec: GrammarSpec, tokenizer: Any) -> str | None:
    """Return why a grammar cannot be used, or None. May take for ever.

    Compiles it and generates a few random outputs. Whether the model has its special tokens is not known here.
    """
    from ipex_assist.speculative.choosing.llguidance_grammar import LlguidanceGrammar, initial_matcher

    chance = random.Random(0)
    if spec.kind == "lark":  # the byte vocabulary has no special tokens
        spec = GrammarSpec(
            spec.kind, _LARK.sub(lambda found: _ANY_SPECIAL if found["special"] else found[0], spec.value)
        )
    try:
        start = LlguidanceGrammar(initial_matcher(spec, tokenizer), 257, frozenset([256]))
        for _ in range(WALKS):
            _walk(start.copy(), chance)
    except IpexAssistError as error:
        return str(error)
    return None


def _walk(state: LlguidanceGrammar, chance: random.Random) -> None:
    """Generate a random output until it ends or is long enough."""
    for _ in range(STEPS):
        for token in state.forced()[: LONGEST - len(state.tokens)]:
            state.advance(token)
        allowed = state.mask().nonzero()[0]
        state.advance(int(allowed[chance.randrange(len(allowed))]))
        if state.ended or len(state.tokens) >= LONGEST:
            return


def main() -> None:
    """Read JSON lines {"kind", "value"} from stdin and answer each with {"reason"} on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tokenizer = byte_tokenizer()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps({"reason": reason_against(GrammarSpec(**json.loads(line)), tokenizer)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
