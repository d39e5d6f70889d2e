"""Which tokens of a GGUF file end a generation: by its metadata and, as in llama.cpp, by their names.

Source: llama.cpp's vocabulary code (llama-vocab.cpp), whose rules files are tried with.
"""

from __future__ import annotations

from ipex_assist.checkpoints.gguf_file import GgufHeader, StringArray

# Whatever the file says of their type. Those in the last line are of code models: padding between the parts of a file,
# and where another file or repository begins.
_ENDS = (
    "<|im_end|> <|eot_id|> <|eom_id|> <|end|> <|endoftext|> <|end_of_text|> <end_of_turn> </s> <|return|> <|call|> "
    "<|flush|> <|calls|> <EOT> _<EOT> [EOT] [EOS] <end_of_utterance> <eos> <turn|> <|tool_response> "
    "<｜end▁of▁sentence｜> [e~[ "
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>"
)
_NAMES = frozenset(_ENDS.split())
_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# gpt-oss and Solar Open end their thoughts, and not their turn, at <|end|>: where all of one of these sets are there.
_THOUGHTS_END = [{first, second} for first in ("<|return|>", "<|flush|>") for second in ("<|call|>", "<|calls|>")]
_NORMAL = 1  # tokenizer.ggml.token_type


def end_token_ids(header: GgufHeader) -> set[int]:
    """The ids of all tokens that end a generation."""
    named = {header.get(f"tokenizer.ggml.{key}_token_id") for key in _KEYS} - {None}
    kinds = header.get("tokenizer.ggml.token_type") or []
    tokens = header.get("tokenizer.ggml.tokens")
    found = tokens.find(_NAMES) if isinstance(tokens, StringArray) else {}
    if (index := found.get("</s>")) is not None and index < len(kinds) and kinds[index] == _NORMAL:
        del found["</s>"]  # what Qwen's and Gemma's vocabularies have of HTML
    if any(others <= found.keys() for others in _THOUGHTS_END) and "<|end|>" in found:
        named.discard(found.pop("<|end|>"))
    return named | {*found.values()}
