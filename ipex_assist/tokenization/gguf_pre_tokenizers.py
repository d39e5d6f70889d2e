"""The splitting rules that GGUF files name in tokenizer.ggml.pre: regular expressions of the families' tokenizer.json.

Each rule splits what those before it left; a file's whole name for a family is a key here. Where tokenizer.json has a
form that llama.cpp's own expressions cannot say, it is that of tokenizer.json.
"""

from __future__ import annotations

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_NO_HAN = r"&&[^\p{Han}]"


def _cased(contractions: str, numbers: str, tail: str, but: str = "") -> str:
    """Words that a capital begins, as in camelCase. but: letters that are none of theirs."""
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    return f"{_WORD_START}{upper}*{lower}+{contractions}|{_WORD_START}{upper}+{lower}*{contractions}|{numbers}|{tail}"


_SLASHES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = rf"{_CONTRACTIONS}|{_WORD_START}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
_TEKKEN = _cased("", r"\p{N}", _SLASHES)
_GPT4O = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}", _SLASHES)
_KIMI = r"\p{Han}+|" + _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}", _TAIL, but=_NO_HAN)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT, _THREE = r"\p{N}", "[0-9][0-9][0-9]"
_PUNCTUATION = r"\p{P}$+<=>^~|"
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SIGN_AND_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_HAN_KANA = "[一-龥぀-ゟ゠-ヿ]+"


def _deepseek3(end: str) -> str:
    return rf"{_SIGN_AND_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+{end}|\s+(?!\S)|\s+"


_DEEPSEEK3 = _deepseek3(r"[\r\n]*|\s*[\r\n]+")
# Cased letters, as its tokenizer.json lists them.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK = ("[一-龥ࠀ-一가-퟿]+", _DIGIT)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
# Runs of spaces in pieces of these sizes, each before another space.
_HALVING = "|".join(rf"\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))

# Rules of Llama 3, with its words that no merge reaches, and BOS.
_LLAMA3_NAMES = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
_GPT2_NAMES = (
    "gpt-2 phi-2 mpt olmo jais exaone4 gigachat mellum trillion granite-docling a.x-4.0 jina-es jina-de jina-v1-en "
    "jina-v2-es jina-v2-de jina-v2-code modern-bert roberta-bpe"
)


def _named(names: str, *rules: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names.split(), rules)


RULES: dict[str, tuple[str, ...]] = {
    **_named(_GPT2_NAMES, _GPT2),
    **_named("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", _DIGIT, _GPT2),
    **_named("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", _QWEN2),
    **_named(f"{_LLAMA3_NAMES} smaug-bpe dbrx glm4 glm5 chatglm-bpe", _LLAMA3),
    **_named("bloom poro-chat gpt3-finnish", _WORDS),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m", _GPT4O),
    **_named("deepseek-v3 hunyuan-dense joyai-llm hy_v4", r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3),
    **_named("bailingmoe bailingmoe2 llada-moe", _BAILING),
    **_named("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O),
    "default": (f"[{_PUNCTUATION}]+", _GPT2, r"\p{N}+", _THREE),
    "falcon": (f"[{_PUNCTUATION}`]+", _GPT2, _THREE),
    "viking": (_WORDS, _DIGIT),
    "tekken": (_TEKKEN,),
    "qwen35": (_QWEN35,),
    "kimi-k2": (_KIMI,),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        *_DEEPSEEK,
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", *_DEEPSEEK),
    "spark2_5": (r"\p{N}{1,3}", _HAN_KANA, _deepseek3(r"|[\r\n]"), _DIGIT),
    "seed-coder": (rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",),
    "exaone-moe": (
        rf"{_CONTRACTIONS}|{_WORD_START}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "minicpm5": (r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}+|{_TAIL}"),
    "ufakzeka": (rf"{_WORD_START}\p{{L}}+|\p{{N}}|{_TAIL}",),
    "laguna": (r"[^\n]+|\n+", _QWEN2),
    "jais-2": (
        rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
        rf"|{_HALVING}|\s",
    ),
    "youtu": (
        f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_HAN_KANA}",
        _cased(f"{_CONTRACTIONS}?", r"\p{N}", _SLASHES),
    ),
    # Digits in threes, counted from the last one.
    "afmoe": (
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
        _DEEPSEEK3,
    ),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "chameleon": (
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        _DIGIT,
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
    ),
}
# These look up whole words in the vocabulary before merging ("ignore_merges" in their tokenizer.json).
WHOLE_WORDS = frozenset(f"{_LLAMA3_NAMES} tekken glm4 glm5 youtu minicpm5 granite-embed-multi-97m".split())
# These add BOS if the file does not say.
BEGINS = frozenset(f"{_LLAMA3_NAMES} tekken chameleon".split())
# These compose Unicode (NFC in tokenizer.json), which neither the file says nor llama.cpp does.
COMPOSED = ("qwen2", "qwen35")
