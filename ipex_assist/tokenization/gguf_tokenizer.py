"""The tokenizer inside a GGUF file, built for the `tokenizers` library from the file's metadata.

BPE ("gpt2" models, byte-level but for a few) takes its splitting rule from tokenizer.ggml.pre; SentencePiece ("llama"
models) is BPE whose merges follow from the token scores. Only what the metadata say is added: no second BOS.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.gguf_ends import end_token_ids
from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.tokenization.fast_tokenizer import FastTokenizer
from ipex_assist.tokenization.gguf_pre_tokenizers import BEGINS, COMPOSED, RULES, WHOLE_WORDS

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import decoders, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

# Phi-3's tokens that leave the spaces to their right.
_TAKE_NO_SPACES = ("<unk>", "<s>", "<|endoftext|>")
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # tokenizer.ggml.token_type; 1 is normal, 6 a byte

# Their tokens are written in UTF-8, with ▁ for a space, and merged over whole lines.
_RAW = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
_LINES = r"[^\n]+|\n+"


def tokenizer_from(header: GgufHeader) -> FastTokenizer:
    """The file's tokenizer with its special tokens and chat template; transformers is imported when it is needed.

    Raises:
        IpexAssistError: the file holds no tokenizer, a damaged one, or one of an unknown kind.
    """
    try:
        return _build(header)
    except IpexAssistError:
        raise
    except OSError as error:  # nothing of the file, which is read: a folder that is gone, no more open files, …
        raise IpexAssistError(f"{header.path}: its tokenizer cannot be built: {error}") from error
    except Exception as error:  # the tokenizers library raises nothing more specific
        raise IpexAssistError(
            f"{header.path}: its tokenizer is corrupt ({error}). Download it again, or pass the model's Hugging Face "
            "id or folder."
        ) from error


def _build(header: GgufHeader) -> FastTokenizer:
    tokens = header.strings("tokenizer.ggml.tokens")
    model = header.get("tokenizer.ggml.model")
    builders = {"gpt2": _bpe, "llama": _sentencepiece, "gemma4": _bpe}
    if not tokens or model not in builders:
        raise IpexAssistError(
            f"{header.path}: tokenizer {model!r} with {len(tokens):,} tokens; supported are {', '.join(builders)}. "
            "Pass the model's Hugging Face id or folder instead of the GGUF file."
        )
    kinds = _kinds(header, tokens)
    # Unused tokens only pad the embedding.
    vocabulary = {token: index for index, token in enumerate(tokens) if kinds[index] != _UNUSED}
    tokenizer = builders[model](header, tokens, vocabulary)
    special = _special_tokens(header, tokens)
    _add_special_tokens(tokenizer, tokens, kinds, _strips_right(header), special.values())
    rule = _rule(header)
    begins = header.get("tokenizer.ggml.add_bos_token", model == "llama" or rule in BEGINS) or rule == "gemma4"
    # Of a vector the end is a part; a prompt must not have one, whatever the file says.
    ends = header.get("tokenizer.ggml.add_eos_token", False) and header.get("{arch}.pooling_type") is not None
    first, last = special.get("bos_token") if begins else None, special.get("eos_token") if ends else None
    if first or last:
        _surround(tokenizer, first, last, vocabulary)
    return FastTokenizer(tokenizer, special, _templates(header), lambda: _full(tokenizer, special))


def _full(tokenizer: tokenizers.Tokenizer, special: dict[str, str]) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def _templates(header: GgufHeader) -> str | dict[str, str] | None:
    """The chat template, or several by name."""
    default = header.get("tokenizer.chat_template")
    named = {name: header.get(f"tokenizer.chat_template.{name}") for name in header.strings("tokenizer.chat_templates")}
    found = {name: template for name, template in named.items() if template}
    return {**({"default": default} if default else {}), **found} if found else default


def _kinds(header: GgufHeader, tokens: list[str]) -> list[int]:
    """Each token's type; ends of a generation are control tokens, whatever the file says."""
    kinds = [*(header.get("tokenizer.ggml.token_type") or [1] * len(tokens))]
    for index in end_token_ids(header):
        if index < len(kinds):
            kinds[index] = _CONTROL
    return kinds


def _strips_right(header: GgufHeader) -> bool:
    """Whether added tokens take the spaces to their right, as Phi-3's do; nothing else in the file says so."""
    name = str(header.get("general.name", "")).lower()
    phi3 = header.get("general.architecture") == "phi3" and header.get("tokenizer.ggml.model") == "llama"
    return phi3 or "phi-3" in name or "phi3" in name


def _rule(header: GgufHeader) -> str:
    gemma = header.get("tokenizer.ggml.model") == "gemma4"
    return "gemma4" if gemma else str(header.get("tokenizer.ggml.pre") or "default")


def _bpe(header: GgufHeader, tokens: list[str], vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    name = _rule(header)
    if name not in RULES and name not in _RAW:
        raise IpexAssistError(
            f"{header.path}: pre-tokenizer {name!r} is not supported; supported are {', '.join((*RULES, *_RAW))}. "
            "Pass the model's Hugging Face id or folder instead of the GGUF file."
        )
    merges: Any = [_halves(merge) for merge in header.strings("tokenizer.ggml.merges")]
    for pair in merges:  # the tokenizers library aborts its thread on a merge that gives no token
        if "".join(pair) not in vocabulary:
            raise ValueError(f"merge {' '.join(pair)!r} gives no token")
    raw = name in _RAW
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=raw, ignore_merges=name in WHOLE_WORDS))
    tokenizer.pre_tokenizer = pre_tokenizer_of(name)
    if raw:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = _pieces_decoder()
        return tokenizer
    if name in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _halves(merge: str) -> tuple[str, ...]:
    """Its two tokens, of which the first may begin with a space. Raises ValueError where there are not two."""
    at = merge.find(" ", 1)
    if at < 0:
        raise ValueError(f"merge {merge!r} gives no token")
    return merge[:at], merge[at + 1 :]


def pre_tokenizer_of(name: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer, which splits a text before merging, for a name in tokenizer.ggml.pre."""
    from tokenizers import Regex, pre_tokenizers

    if name in _RAW:
        return pre_tokenizers.Split(Regex(_LINES), "isolated")
    rules = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in RULES[name]]
    return pre_tokenizers.Sequence([*rules, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _pieces_decoder(prefix: bool = False) -> decoders.Decoder:
    """The decoder of tokens with ▁ for a space, and bytes. prefix: the first space was put there by the normalizer."""
    from tokenizers import decoders

    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def _sentencepiece(header: GgufHeader, tokens: list[str], vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, models, normalizers

    scores = header.get("tokenizer.ggml.scores") or [-float(index) for index in range(len(tokens))]
    kinds = _kinds(header, tokens)
    mergeable = {
        token: index for token, index in vocabulary.items() if kinds[index] not in (_CONTROL, _UNKNOWN, _USER_DEFINED)
    }
    unknown = tokens[header.get("tokenizer.ggml.unknown_token_id", 0)]
    merges: Any = _merges(mergeable, scores)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    # Text between special tokens starts with a space, as for llama.cpp and the original Llama tokenizer.
    prefix = header.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if prefix else []), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = _pieces_decoder(prefix)
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return the merges equivalent to SentencePiece, which joins the neighbours whose union has the highest score.

    Ranked, best first. A token can be split in several ways; all of them are merges with the token's score.
    """
    ranked: list[tuple[float, int, str, str]] = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], index, left, right))
    ranked.sort(key=lambda merge: (merge[0], merge[1], vocabulary[merge[2]], vocabulary[merge[3]]))
    return [(left, right) for _, _, left, right in ranked]


def _add_special_tokens(
    tokenizer: tokenizers.Tokenizer, tokens: list[str], kinds: list[int], rstrip: bool, named: Iterable[str]
) -> None:
    """Add control tokens, and what a user has defined; `named`, the ends of texts and the like, are special as well."""
    from tokenizers import AddedToken

    def added(wanted: int, special: bool) -> list[AddedToken]:
        return [
            AddedToken(token, special=special, normalized=False, rstrip=rstrip and token not in _TAKE_NO_SPACES)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == wanted
        ]

    tokenizer.add_special_tokens(added(_CONTROL, special=True))
    tokenizer.add_tokens(added(_USER_DEFINED, special=False))
    there = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in named if token not in there])


def _special_tokens(header: GgufHeader, tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: header.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: tokens[index] for name, index in ids.items() if index is not None and index < len(tokens)}


def _surround(tokenizer: tokenizers.Tokenizer, first: str | None, last: str | None, vocabulary: dict[str, int]) -> None:
    """Put these tokens before and after each text."""
    from tokenizers import processors

    before, after = ([] if token is None else [token] for token in (first, last))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B", *after],
        special_tokens=[(token, vocabulary[token]) for token in {*before, *after}],
    )
