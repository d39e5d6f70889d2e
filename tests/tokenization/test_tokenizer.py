"""Tokenizers of folders and GGUF files, prompts, and end tokens; a second BOS or a wrong split changes the output."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.tokenization.chat_template import apply_template
from ipex_assist.tokenization.tokenizer import (
    _plain_tokenizer,
    encode_messages,
    encode_prompt,
    eos_token_ids,
    load_tokenizer,
    special_names,
)

TEXTS = [
    "Hello, world",
    "  two leading, two trailing  ",
    "def f(x):\n\treturn x**2  # squared\r\n\r\n\n",
    "1234567890, 3.14159 and 1,000,000",
    "don't I'll WE'VE",
    "naïve café 日本語 한국어 🙂👩‍👩‍👧 Привет ½Ⅷ٣",
    "<|im_start|>user\nhi<|im_end|>",
    "   \n  \n\n",
    "",
]


# --- folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("model"))


def test_folder_tokenizer(folder):
    tokenizer, expected = load_tokenizer(open_checkpoint(str(folder))), checkpoint_files.tiny_tokenizer()
    for text in TEXTS:
        assert encode_prompt(tokenizer, text, chat=False) == expected(text)["input_ids"]
        assert tokenizer.decode(encode_prompt(tokenizer, text, chat=False)) == text


def test_chat(folder):
    tokenizer = load_tokenizer(open_checkpoint(str(folder)))
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(encode_prompt(tokenizer, "Hello", chat=True)) == text


def test_no_chat_template(folder):
    tokenizer = load_tokenizer(open_checkpoint(str(folder)))
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match=r"no chat template .*give it a prompt"):
        encode_prompt(tokenizer, "Hello", chat=True)
    tokenizer.chat_template = "{{ raise_exception('only system messages') }}"
    with pytest.raises(UsageError, match="chat template refuses this prompt: only system messages"):
        encode_prompt(tokenizer, "Hello", chat=True)


def test_opt_tokenizer_puts_its_bos(tmp_path):
    """facebook/opt-* ships vocab.json and merges.txt with add_bos_token; without </s> OPT's output degrades."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("opt"), tmp_path / "opt", tokenizer=False)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trained = checkpoint_files.tiny_tokenizer(special=special)
    model = json.loads(trained.backend_tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "GPT2Tokenizer",
                "add_bos_token": True,
                "add_prefix_space": False,
                "errors": "replace",
                **{f"{name}_token": "</s>" for name in ("bos", "eos", "unk")},
                "pad_token": "<pad>",
            }
        )
    )
    tokenizer = load_tokenizer(open_checkpoint(str(folder)))
    expected = trained("Hello, world", add_special_tokens=False)["input_ids"]
    assert encode_prompt(tokenizer, "Hello, world", chat=False) == [2, *expected]


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt"])
def test_a_folder_without_tokenizer(family, tmp_path):
    """Catches the empty tokenizer that transformers makes for some, and "the prompt is empty" after packing."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model(family), tmp_path / "m", tokenizer=False)
    with pytest.raises(IpexAssistError, match=rf"{folder} has no tokenizer \(tokenizer\.json, .*\): copy it"):
        load_tokenizer(open_checkpoint(str(folder)))


def test_a_tokenizer_file_that_cannot_be_read(tmp_path):
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m", tokenizer=False)
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BP')
    with pytest.raises(IpexAssistError, match=r"the tokenizer cannot be loaded .*there: tokenizer\.json"):
        load_tokenizer(open_checkpoint(str(folder)))


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|endoftext|>", "<|im_start|>"]},
        {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": ["<|endoftext|>", "<|im_start|>"]},
        {"tokenizer_class": "TheirsTokenizer", "auto_map": {"AutoTokenizer": ["theirs.TheirsTokenizer", None]}},
        {"tokenizer_class": "TheirsTokenizer", "eos_token": {"content": "<|im_end|>", "special": True}},
    ],
)
def test_classes_this_transformers_does_not_know(tmp_path, changes):
    """transformers 4.55 cannot read back what transformers 5 writes; tokenizer.json says it all."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text()) | changes
    if (folder / "chat_template.jinja").exists():  # where it is kept has changed too
        config["chat_template"] = (folder / "chat_template.jinja").read_text()
        (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer, expected = load_tokenizer(open_checkpoint(str(folder))), checkpoint_files.tiny_tokenizer()
    for text in TEXTS:
        ids = encode_prompt(tokenizer, text, chat=False)
        assert ids == expected(text)["input_ids"]
        assert tokenizer.decode(ids) == text
    assert encode_prompt(tokenizer, "Hi", chat=True) == encode_prompt(expected, "Hi", chat=True)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.decode([1, *expected("Hi")["input_ids"], 2], skip_special_tokens=True) == "Hi"


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, True),
        ({"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False}, True),
        ({"tokenizer_class": "LlamaTokenizer"}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {"AutoTokenizer": ["a.B", None]}}, False),
        ({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"9000": {"content": "<x>"}}}, False),
        ({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"2": {"content": "<|im_end|>"}}}, True),
    ],
)
def test_tokenizer_json_alone_is_read_where_it_is_all(tmp_path, changes, plain):
    """The short way would lose a BOS, or tokens that were added later."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text()) | changes
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = _plain_tokenizer(folder)
    assert (tokenizer is not None) == plain
    if tokenizer is not None:
        expected = checkpoint_files.tiny_tokenizer()
        assert [tokenizer(text)["input_ids"] for text in TEXTS] == [expected(text)["input_ids"] for text in TEXTS]
        assert encode_prompt(tokenizer, "Hi", chat=True) == encode_prompt(expected, "Hi", chat=True)
        assert sorted(tokenizer.all_special_ids) == sorted(expected.all_special_ids)


@pytest.mark.parametrize(
    "kind",
    ["GPT2Tokenizer", "GPTNeoXTokenizer", "LlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "BloomTokenizer"],
)
def test_the_parts_in_tokenizer_json_are_used_whatever_the_class(tmp_path, kind):
    """Classes of transformers 5 put their own splitting rule, normalizer and decoder in the place of the file's."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rules = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in (r"\p{N}{1,3}", r"[\p{L}\p{M}]+|\s+")]
    stored.pre_tokenizer = pre_tokenizers.Sequence([*rules, pre_tokenizers.ByteLevel(False, use_regex=False)])
    stored.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("colour", "color")])
    stored.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("\r", "")])
    stored.model.ignore_merges = True
    stored.post_processor = processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    stored.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": kind, "unk_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(open_checkpoint(str(folder)))
    for text in [*TEXTS, "the colour of 2024", "ﬁ ２０２４"]:
        ids = tokenizer(text)["input_ids"]
        assert ids == stored.encode(text).ids
        assert tokenizer.decode(ids) == stored.decode(ids, skip_special_tokens=False)


def test_code_in_the_folder_is_not_run(tmp_path):
    """Would catch trust_remote_code, and its question on a terminal."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nclass Tokenizer: pass\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with contextlib.suppress(IpexAssistError):
        load_tokenizer(open_checkpoint(str(folder)))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, {2, 7, 8, 9}),
        ({}, {"eos_token_id": [9, 10]}, {2, 9, 10}),
        ({"eos_token_id": None}, {"eos_token_id": None}, {2}),
        ({"eos_token_id": 0}, {}, {0, 2}),  # id 0 is an id
    ],
)
def test_end_tokens(folder, tmp_path, generation, config, expected):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "generation_config.json").write_text(json.dumps(generation))
    settings = json.loads((copy / "config.json").read_text()) | {"eos_token_id": None} | config
    (copy / "config.json").write_text(json.dumps(settings))
    checkpoint = open_checkpoint(str(copy))
    assert eos_token_ids(checkpoint, load_tokenizer(checkpoint)) == expected  # <|im_end|> is 2


# --- GGUF, byte-level


def test_a_byte_level_tokenizer_survives_the_way_through_gguf(tmp_path):
    """It keeps ids, text and the template; and no token for the embedding's padding."""
    original = checkpoint_files.tiny_tokenizer()
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), tmp_path / "m.gguf", tokenizer=original)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    tokenizer = load_tokenizer(checkpoint)
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == original(text)["input_ids"]
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.get_vocab() == original.get_vocab()
    assert len(original.get_vocab()) == checkpoint_files.TOKENS < checkpoint.config["vocab_size"]
    assert encode_prompt(tokenizer, "Hi", chat=True) == encode_prompt(original, "Hi", chat=True)
    assert tokenizer.decode([1, *tokenizer("Hi")["input_ids"], 2], skip_special_tokens=True) == "Hi"
    assert eos_token_ids(checkpoint, tokenizer) == {0, 2}


_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_SPECIAL = ["<|begin|>", "<|end|>", "<user>"]


def _gguf_tokenizer(path: Path, more: tuple[str, ...] = (), merges: tuple[str, ...] = (), **metadata: Any) -> Any:
    tokens = [*_SPECIAL, *_ALPHABET, *more]
    kinds = [3, 3, 4] + [1] * (len(tokens) - 3)
    checkpoint_files.write_vocabulary(path, tokens, kinds, merges=merges, bos_token_id=0, eos_token_id=1, **metadata)
    return load_tokenizer(open_checkpoint(str(path)))


# How each family splits these texts, as its tokenizer.json has it.
_NUMBERS, _ENGLISH, _LINES = "ab 12345x", "I'LL don't", "a.\n\n  b"
SPLITS = {
    "gpt-2": {
        _NUMBERS: ["ab", " 12345", "x"],
        _ENGLISH: ["I", "'", "LL", " don", "'t"],
        _LINES: ["a", ".", "\n\n ", " b"],
    },
    "smollm": {
        _NUMBERS: ["ab", " ", "1", "2", "3", "4", "5", "x"],
        _ENGLISH: ["I", "'", "LL", " don", "'t"],
        _LINES: ["a", ".", "\n\n ", " b"],
    },
    "qwen2": {
        _NUMBERS: ["ab", " ", "1", "2", "3", "4", "5", "x"],
        _ENGLISH: ["I", "'LL", " don", "'t"],
        _LINES: ["a", ".\n\n", " ", " b"],
    },
    "llama-bpe": {
        _NUMBERS: ["ab", " ", "123", "45", "x"],
        _ENGLISH: ["I", "'LL", " don", "'t"],
        _LINES: ["a", ".\n\n", " ", " b"],
    },
    "tekken": {
        _NUMBERS: ["ab", " ", "1", "2", "3", "4", "5", "x"],
        _ENGLISH: ["I", "'LL", " don", "'t"],
        _LINES: ["a", ".\n\n", " ", " b"],
        "camelCase HTTPServer": ["camel", "Case", " HTTPServer"],
    },
}
SPLITS |= {"starcoder": SPLITS["smollm"], "refact": SPLITS["smollm"], "mpt": SPLITS["gpt-2"]}
# Several rules in turn, as llama.cpp's unicode_regex_split() has split these.
_SIGNS = "x$=1 `y`, (z)"
SPLITS |= {
    "default": {
        _NUMBERS: ["ab", " ", "123", "45", "x"],
        _ENGLISH: ["I", "'", "LL", " don", "'", "t"],
        _SIGNS: ["x", "$=", "1", " `", "y", "`", ",", " ", "(", "z", ")"],
    },
    "falcon": {
        _NUMBERS: ["ab", " ", "123", "45", "x"],
        _LINES: ["a", ".", "\n\n ", " b"],
        _SIGNS: ["x", "$=", "1", " ", "`", "y", "`,", " ", "(", "z", ")"],
    },
    "bloom": {
        _NUMBERS: ["ab", " 12345x"],
        _LINES: ["a", ".\n\n ", " b"],
        _SIGNS: ["x$=1", " `y`", ", (", "z", ")"],
    },
}


@pytest.mark.parametrize("pre", SPLITS)
def test_pre_tokenizers_split_as_their_family_does(tmp_path, pre):
    tokenizer = _gguf_tokenizer(tmp_path / "v.gguf", pre=pre)
    for text, expected in SPLITS[pre].items():
        pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert [text[start:end] for _, (start, end) in pieces] == expected


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False)])
def test_whole_words_before_merges(tmp_path, pre, whole):
    """Llama 3 has words that no merge reaches; would catch a lost ignore_merges."""
    tokenizer = _gguf_tokenizer(tmp_path / "v.gguf", more=("ab", "abc"), merges=("a b",), pre=pre)
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc", add_special_tokens=False)["input_ids"]) == (
        ["abc"] if whole else ["ab", "c"]
    )


def test_qwen_composes_unicode(tmp_path):
    """Qwen's tokenizer.json has an NFC step that GGUF does not mention."""
    tokenizer = _gguf_tokenizer(tmp_path / "v.gguf", pre="qwen2")
    assert tokenizer("e\u0301")["input_ids"] == tokenizer("\u00e9")["input_ids"]


@pytest.mark.parametrize(
    ("metadata", "bos"),
    [
        ({"pre": "gpt-2"}, False),
        ({"pre": "gpt-2", "add_bos_token": True}, True),
        ({"pre": "llama-bpe"}, True),  # llama.cpp's default for Llama 3
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
    ],
)
def test_bos_only_where_the_file_says_so(tmp_path, metadata, bos):
    """transformers 4.55 puts a BOS of its own before every GGUF prompt."""
    template = "{% for m in messages %}<|begin|>{{ m['content'] }}{% endfor %}"
    tokenizer = _gguf_tokenizer(tmp_path / "v.gguf", **metadata)
    tokenizer.chat_template = template
    assert encode_prompt(tokenizer, "a", chat=False).count(0) == bos
    assert encode_prompt(tokenizer, "a", chat=True).count(0) == 1


def test_user_defined_tokens_are_whole_but_text(tmp_path):
    tokenizer = _gguf_tokenizer(tmp_path / "v.gguf", pre="gpt-2")
    ids = tokenizer("a<user>b<|end|>", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "<user>", "b", "<|end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<user>b"


def test_unknown_kinds_are_refused(tmp_path):
    """Guessing a splitting rule gives output that is subtly worse, which nobody would trace back to it."""
    with pytest.raises(IpexAssistError, match=r"pre-tokenizer 'nobodys' is not supported; supported are gpt-2"):
        _gguf_tokenizer(tmp_path / "v.gguf", pre="nobodys")
    path = checkpoint_files.write_vocabulary(tmp_path / "w.gguf", ["a"], [1], merges=[])
    path.write_bytes(path.read_bytes().replace(b"gpt2", b"bert"))
    with pytest.raises(IpexAssistError, match="tokenizer 'bert' with 1 tokens; supported are gpt2, llama"):
        load_tokenizer(open_checkpoint(str(path)))


# --- GGUF, SentencePiece


def _sentencepiece(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE as its paper has it: join the best-scored neighbours, leftmost first; bytes for the rest."""
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joined = [(scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not joined:
            break
        at = -max(joined)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    result = []
    for piece in pieces:
        result += [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()]
    return result


@pytest.fixture(scope="module")
def pieces() -> dict[str, float]:
    """Characters and ever longer joins of what is there, with scores that ids do not follow."""
    rng = random.Random(5)
    tokens = ["▁", *"abcdeé"]
    while len(tokens) < 120:
        new = rng.choice(tokens) + rng.choice(tokens)
        if new not in tokens and len(new) < 9:
            tokens.append(new)
    scores = {token: -float(index) for index, token in enumerate(tokens)}
    rng.shuffle(tokens)
    return {token: scores[token] for token in tokens}


def _spm(path: Path, pieces: dict[str, float], **metadata: Any) -> Any:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * (3 + 256) + list(pieces.values())
    checkpoint_files.write_vocabulary(path, tokens, kinds, scores, bos_token_id=1, eos_token_id=2, **metadata)
    return load_tokenizer(open_checkpoint(str(path)))


def test_sentencepiece_by_scores(tmp_path, pieces):
    """Against the plain algorithm, on text with unknown characters and runs of spaces."""
    tokenizer = _spm(tmp_path / "v.gguf", pieces)
    rng = random.Random(0)
    for length in (1, 2, 3, *range(4, 40)) * 5:
        text = "".join(rng.choice("abcdeé   🙂x") for _ in range(length))
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == _sentencepiece(text, pieces), text
        assert tokenizer.decode(ids) == text


def test_sentencepiece_bos_and_prefix(tmp_path, pieces):
    tokenizer = _spm(tmp_path / "v.gguf", pieces)
    assert tokenizer("a")["input_ids"][0] == 1  # Llama 2's default
    assert tokenizer.decode(tokenizer("a b")["input_ids"], skip_special_tokens=True) == "a b"
    plain = _spm(tmp_path / "w.gguf", pieces, add_space_prefix=False, add_bos_token=False)
    assert plain.convert_ids_to_tokens(plain("a")["input_ids"]) == ["a"]
    assert plain.decode(plain(" a")["input_ids"]) == " a"


# --- several chat templates, and messages without content


def _templated(folder: Path, template: Any, files: dict[str, str] | None = None, kind: str = "Qwen2Tokenizer") -> Any:
    checkpoint_files.save(checkpoint_files.tiny_model("llama"), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": kind, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return load_tokenizer(open_checkpoint(str(folder)))


FOR_TOOLS = "tools {{ tools[0].name }}"
NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": FOR_TOOLS}]
TOOLS = [{"name": "look"}]


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "PreTrainedTokenizerFast", "LlamaTokenizer"])
@pytest.mark.parametrize(
    ("template", "files"),
    [
        (NAMED, {}),
        ("plain", {"additional_chat_templates/tool_use.jinja": FOR_TOOLS}),
        (None, {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": FOR_TOOLS}),
        (None, {"chat_template.json": json.dumps({"chat_template": NAMED})}),
        ({"default": "plain", "tool_use": FOR_TOOLS}, {"chat_template.json": '{"chat_template": "another"}'}),
    ],
)
def test_several_chat_templates(tmp_path, kind, template, files):
    """Would catch "unhashable type: 'list'", and tools that a template of their own would have shown."""
    tokenizer = _templated(tmp_path / "m", template, files, kind)
    messages = [{"role": "user", "content": "Hi"}]
    assert apply_template(tokenizer, messages) == "plain"
    assert apply_template(tokenizer, messages, TOOLS) == "tools look"
    assert tokenizer.get_chat_template(None, tools=TOOLS).startswith("tools")
    assert tokenizer.decode(encode_messages(tokenizer, messages, TOOLS)) == "tools look"


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "LlamaTokenizer"])
@pytest.mark.parametrize(
    ("template", "files", "expected"),
    [
        (NAMED, {"chat_template.jinja": "file"}, "file"),  # which knows tools itself, as transformers has it
        (None, {"chat_template.json": '{"chat_template": "of images, too"}'}, "of images, too"),
        (5, {}, None),
        ([{"nobody": "x"}, "y"], {}, None),
        (None, {"chat_template.json": "{"}, None),
    ],
)
def test_which_chat_template(tmp_path, kind, template, files, expected):
    tokenizer = _templated(tmp_path / "m", template, files, kind)
    assert tokenizer.chat_template == expected


def test_several_chat_templates_in_gguf(tmp_path):
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    path = checkpoint_files.write_vocabulary(
        tmp_path / "v.gguf", _ALPHABET, [1] * len(_ALPHABET), merges=[], templates=templates
    )
    tokenizer = load_tokenizer(open_checkpoint(str(path)))
    messages = [{"role": "user", "content": "Hi"}]
    assert [apply_template(tokenizer, messages), apply_template(tokenizer, messages, TOOLS)] == ["plain", "tools"]


def test_named_templates_without_a_default(tmp_path):
    tokenizer = _templated(tmp_path / "m", [{"name": "rag", "template": "x"}])
    with pytest.raises(UsageError, match="several chat templates, rag, of which none is the default"):
        encode_prompt(tokenizer, "Hi", chat=True)


def test_special_tokens_in_stop_strings(folder):
    """With transformers' tokenizer and with the quick one."""
    for tokenizer in (load_tokenizer(open_checkpoint(str(folder))), checkpoint_files.tiny_tokenizer()):
        assert special_names(tokenizer, ["x<|im_end|>", "y"]) == {2: "<|im_end|>"}
        assert special_names(tokenizer, ["x"]) == {}


CALLED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "calls": "look"}]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}|{{ m.calls }};{% endfor %}", "Hi|;|look;"),  # GLM, MiniMax
        ("{% for m in messages %}{{ m.content.strip() + m.calls|string }};{% endfor %}", "Hi;look;"),  # gpt-oss, LFM2.5
        ("{% for m in messages %}{% if m.content is none %}call {{ m.calls }}{% endif %}{% endfor %}", "call look"),
        ("{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %}{% endfor %} None", "Hi None"),
    ],
)
@pytest.mark.parametrize("absent", [False, True])
def test_messages_without_content(tmp_path, template, expected, absent):
    """A call has none: some templates took it for the text "None", others failed, and DeepSeek's ask for it."""
    tokenizer = _templated(tmp_path / "m", template)
    messages = [{key: value for key, value in each.items() if value is not None or not absent} for each in CALLED]
    if absent and "is none" in template:
        return  # templates take what is not there for something else than None
    assert apply_template(tokenizer, messages) == expected


def test_gguf_adds_an_end_where_vectors_are_made(tmp_path):
    """Qwen3-Embedding's vector is that of the end. A prompt that had one would be an answered question."""
    tokens = [*_ALPHABET, "<s>", "</s>"]
    kinds = [1] * len(_ALPHABET) + [3, 3]
    first, last = len(_ALPHABET), len(_ALPHABET) + 1
    ids = {"bos_token_id": first, "eos_token_id": last, "add_bos_token": True, "add_eos_token": True}
    for pooled, end in (({}, []), ({"llama.pooling_type": 3}, [last])):
        path = checkpoint_files.write_vocabulary(tmp_path / "v.gguf", tokens, kinds, merges=[], **ids, **pooled)
        found = load_tokenizer(open_checkpoint(str(path)))("ab")["input_ids"]
        assert found == [first, *(_ALPHABET.index(letter) for letter in "ab"), *end]
