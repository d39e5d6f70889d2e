"""The tokenizer inside a GGUF file, built for the `tokenizers` library from the file's metadata.

Byte-level BPE ("gpt2" models) takes its splitting rule from tokenizer.ggml.pre; SentencePiece ("llama" models) is BPE
whose merges follow from the token scores. Only what the metadata say is added: no second BOS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # tokenizer.ggml.token_type; 1 is normal, 6 a byte

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"
# Splitting rules as the models' tokenizer.json have them.
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}|{_TAIL}"
_TEKKEN = (
    rf"{_WORD_START}{_UPPER}*{_LOWER}+|{_WORD_START}{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    rf"{_WORD_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT, _THREE = r"\p{N}", "[0-9][0-9][0-9]"
_PUNCTUATION = r"\p{P}$+<=>^~|"
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"

# tokenizer.ggml.pre -> rules, each of which splits what those before it left (LLAMA_VOCAB_PRE_TYPE_… of llama.cpp).
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = (
    dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "mellum"), (_GPT2,))
    | dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (_DIGIT, _GPT2)
    )
    | dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), (_QWEN2,))
    | dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), (_LLAMA3,)
    )
    | dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (_WORDS,))
    | {
        "default": (f"[{_PUNCTUATION}]+", _GPT2, r"\p{N}+", _THREE),
        "falcon": (f"[{_PUNCTUATION}`]+", _GPT2, _THREE),
        "viking": (_WORDS, _DIGIT),
        "tekken": (_TEKKEN,),
        "gpt-4o": (_GPT4O,),
        "llama4": (_GPT4O,),
    }
)
# These look up whole words in the vocabulary before merging ("ignore_merges" in their tokenizer.json).
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken", "glm4")

# These add BOS if the file does not say.
_BEGINS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")


def tokenizer_from(header: GgufHeader) -> PreTrainedTokenizerFast:
    """The file's tokenizer with its special tokens and chat template.

    Raises:
        IpexAssistError: the file holds no tokenizer, a damaged one, or one of an unknown kind.
    """
    try:
        return _build(header)
    except IpexAssistError:
        raise
    except Exception as error:  # the tokenizers library raises nothing more specific
        raise IpexAssistError(
            f"{header.path}: its tokenizer is corrupt ({error}). Download it again, or pass the model's Hugging Face "
            "id or folder."
        ) from error


def _build(header: GgufHeader) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    tokens = header.strings("tokenizer.ggml.tokens")
    model = header.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if not tokens or model not in builders:
        raise IpexAssistError(
            f"{header.path}: tokenizer {model!r} with {len(tokens):,} tokens; supported are {', '.join(builders)}. "
            "Pass the model's Hugging Face id or folder instead of the GGUF file."
        )
    kinds = header.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    # Unused tokens only pad the embedding.
    vocabulary = {token: index for index, token in enumerate(tokens) if kinds[index] != _UNUSED}
    tokenizer = builders[model](header, tokens, vocabulary)
    _add_special_tokens(tokenizer, tokens, kinds)
    special = _special_tokens(header, tokens)
    default_bos = model == "llama" or header.get("tokenizer.ggml.pre") in _BEGINS
    if header.get("tokenizer.ggml.add_bos_token", default_bos) and "bos_token" in special:
        _prepend(tokenizer, special["bos_token"], vocabulary)
    template = header.get("tokenizer.chat_template")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, chat_template=template, **special
    )


def _byte_level(header: GgufHeader, tokens: list[str], vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    name = header.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise IpexAssistError(
            f"{header.path}: pre-tokenizer {name!r} is not supported; supported are {', '.join(PRE_TOKENIZERS)}. "
            "Pass the model's Hugging Face id or folder instead of the GGUF file."
        )
    merges: Any = [tuple(merge.split(" ", 1)) for merge in header.strings("tokenizer.ggml.merges")]
    for pair in merges:  # the tokenizers library aborts its thread on a merge that gives no token
        if len(pair) != 2 or "".join(pair) not in vocabulary:
            raise ValueError(f"merge {' '.join(pair)!r} gives no token")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in _WHOLE_WORDS))
    tokenizer.pre_tokenizer = pre_tokenizer_of(name)
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pre_tokenizer_of(name: str) -> pre_tokenizers.Sequence:
    """Return the pre-tokenizer, which splits a text before merging, for a key of PRE_TOKENIZERS."""
    from tokenizers import Regex, pre_tokenizers

    rules = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in PRE_TOKENIZERS[name]]
    return pre_tokenizers.Sequence([*rules, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(header: GgufHeader, tokens: list[str], vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = header.get("tokenizer.ggml.scores") or [-float(index) for index in range(len(tokens))]
    kinds = header.get("tokenizer.ggml.token_type") or [1] * len(tokens)
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
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(content=" ", left=1)] if prefix else []),
        ]
    )
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


def _add_special_tokens(tokenizer: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    from tokenizers import AddedToken

    control = [
        AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL
    ]
    tokenizer.add_special_tokens(control)
    users = [AddedToken(t, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_tokens(users)


def _special_tokens(header: GgufHeader, tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: header.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: tokens[index] for name, index in ids.items() if index is not None and index < len(tokens)}


def _prepend(tokenizer: tokenizers.Tokenizer, token: str, vocabulary: dict[str, int]) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", token, "$B"], special_tokens=[(token, vocabulary[token])]
    )
