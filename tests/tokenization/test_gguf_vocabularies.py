"""GGUF's tokenizers against llama.cpp: its splitting rules, its test vocabularies, and what it ends a generation at."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest

from ipex_assist.checkpoints.gguf_file import read_header
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.tokenization.gguf_pre_tokenizers import RULES
from ipex_assist.tokenization.gguf_tokenizer import pre_tokenizer_of, tokenizer_from
from ipex_assist.tokenization.tokenizer import eos_token_ids, load_tokenizer

# The pieces that llama.cpp's unicode_regex_split made of these texts by the rules of its llama-vocab.cpp. Texts are
# left out where llama.cpp only comes near the rule of tokenizer.json, as it says there.
SPLITS = json.loads(Path(__file__).with_name("llama_cpp_splits.json").read_text(encoding="utf-8"))
VOCABULARIES = (  # those of kinds that we read, with cases
    "command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 qwen2 qwen35 refact "
    "starcoder"
)
CASES = "\n__ggml_vocab_test__\n"


def _pieces(name: str, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in pre_tokenizer_of(name).pre_tokenize_str(text)]


def test_names_that_share_a_rule():
    """As llama.cpp's vocabulary code puts them together, for names of which no piece is recorded."""
    for base, names in {"llama-bpe": ("lfm2",), "gpt-4o": ("minimax-m2",), "deepseek-v3": ("hunyuan-dense",)}.items():
        assert all(RULES[name] == RULES[base] for name in names), base


@pytest.mark.parametrize("name", SPLITS)
def test_rules_split_as_llama_cpp_does(name):
    assert {text: _pieces(name, text) for text in SPLITS[name]} == SPLITS[name]


def test_every_rule_is_tried():
    """`superbpe` cuts before digits that threes follow, where llama.cpp's pieces include empty ones."""
    assert {RULES[name] for name in (*SPLITS, "superbpe")} == {*RULES.values()}
    assert _pieces("superbpe", "so many words 1234567.") == ["so many words ", "1", "234", "567", "."]


def test_rules_that_llama_cpp_comes_near_to_are_those_of_tokenizer_json():
    """As the comments beside llama.cpp's expressions, and Kimi's tokenization_kimi.py, have them."""
    assert _pieces("gpt-4o", " e\u0301x नमस्ते éÀb") == [" e\u0301x", " नमस्ते", " é", "Àb"]
    assert _pieces("kimi-k2", "漢字abc camelCase") == ["漢字", "abc", " camel", "Case"]
    assert _pieces("tiny_aya", "12345 12345x") == ["12", "345", " ", "123", "45", "x"]
    assert _pieces("deepseek-llm", "1234") == ["1", "2", "3", "4"]


@pytest.mark.skipif("LLAMA_CPP" not in os.environ, reason="LLAMA_CPP names no folder with llama.cpp's sources")
@pytest.mark.parametrize("name", VOCABULARIES.split())
def test_llama_cpps_own_vocabularies(name):
    """Its models/ggml-vocab-*.gguf with the cases beside them."""
    file = Path(os.environ["LLAMA_CPP"], "models", f"ggml-vocab-{name}.gguf")
    tokenizer = tokenizer_from(read_header(file))
    texts = Path(f"{file}.inp").read_bytes().decode().split(CASES)
    expected = [[int(token) for token in line.split()] for line in Path(f"{file}.out").read_text().split("\n")]
    for text, ids in zip(texts, expected, strict=False):
        if name == "qwen35" and not unicodedata.is_normalized("NFC", text):
            continue  # Qwen's own tokenizer composes, llama.cpp does not
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids, text


# --- ends of a generation

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _ends(path: Path, names: dict[str, int], **metadata: Any) -> set[str]:
    tokens = ["a", *names]
    checkpoint_files.write_vocabulary(path, tokens, [1, *names.values()], merges=[], **metadata)
    checkpoint = open_checkpoint(str(path))
    tokenizer = load_tokenizer(checkpoint)
    ends = {tokens[index] for index in eos_token_ids(checkpoint, tokenizer)}
    for end in ends:  # an end is one token where a template writes it, and no text
        assert tokenizer(f"a{end}a", add_special_tokens=False)["input_ids"] == [0, tokens.index(end), 0]
        assert tokenizer.decode([0, tokens.index(end)], skip_special_tokens=True) == "a"
    return ends


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("<|start|>", "<|end|>", "<|return|>", "<|call|>"), {"<|return|>", "<|call|>"}),  # gpt-oss
        (("<|end|>", "<|endoftext|>"), {"<|end|>", "<|endoftext|>"}),  # Phi-3
        (("<|end|>", "<|calls|>", "<|flush|>"), {"<|calls|>", "<|flush|>"}),  # Solar Open
        (("<|im_start|>", "<|im_end|>"), {"<|im_end|>"}),
        (("[BOS]", "[EOS]", "[EOT]"), {"[EOS]", "[EOT]"}),  # Kimi K2
        (("[e~[", "]~b]"), {"[e~["}),  # MiniMax-M2
        (("<turn|>", "<|turn>", "<eos>"), {"<turn|>", "<eos>"}),  # Gemma 4
        (("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"), {"<｜end▁of▁sentence｜>"}),
        (("<|fim_pad|>", "<|file_sep|>", "<|fim_middle|>"), {"<|fim_pad|>", "<|file_sep|>"}),
        (("<|repo_name|>", "<reponame>", "<fim_pad>"), {"<|repo_name|>", "<reponame>", "<fim_pad>"}),
        (("<end_of_utterance>", "<|eom_id|>", "<|eot_id|>"), {"<end_of_utterance>", "<|eom_id|>", "<|eot_id|>"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_ends_by_name_whatever_their_type(tmp_path, names, expected, kind):
    """Would catch answers of gpt-oss that end with its thoughts, and ones of others that go on after their end."""
    assert _ends(tmp_path / "v.gguf", dict.fromkeys(names, kind)) == expected


def test_ends_of_the_metadata(tmp_path):
    names = dict.fromkeys(("<stop>", "<over>", "<more>", "<pad>"), 3)
    ids = {"eos_token_id": 1, "eot_token_id": 2, "eom_token_id": 3, "fim_pad_token_id": 4}
    assert _ends(tmp_path / "v.gguf", names, **ids) == {"<stop>", "<over>", "<more>", "<pad>"}


@pytest.mark.parametrize(("kind", "ends"), [(1, set()), (3, {"</s>"}), (4, {"</s>"})])
def test_html_in_a_vocabulary_is_text(tmp_path, kind, ends):
    """Qwen's vocabulary has "</s>" among its words: HTML that is struck through would end there."""
    path = tmp_path / "v.gguf"
    checkpoint_files.write_vocabulary(path, ["a", "</s>"], [1, kind], merges=[])
    checkpoint = open_checkpoint(str(path))
    assert {["a", "</s>"][index] for index in eos_token_ids(checkpoint, load_tokenizer(checkpoint))} == ends


# --- Phi-3, and tokens in UTF-8


@pytest.mark.parametrize(("name", "spaces"), [("Phi-3-mini-4k", False), ("Phi3", False), ("TinyLlama", True)])
def test_phi_3_takes_the_spaces_right_of_its_markers(tmp_path, name, spaces):
    """llama.cpp knows it by the model's name: two tokens too many stood after each marker."""
    tokens = ["<unk>", "<s>", "<|endoftext|>", "<|user|>", "<|end|>", *_BYTES, "▁", "a"]
    kinds = [2, 3, 3, 3, 4] + [6] * 256 + [1, 1]
    scores = [0.0] * len(tokens)
    path = checkpoint_files.write_vocabulary(tmp_path / "v.gguf", tokens, kinds, scores, name=name, add_bos_token=False)
    tokenizer = load_tokenizer(open_checkpoint(str(path)))
    words = tokenizer.convert_ids_to_tokens(tokenizer("<|user|> \na<|end|>\na<s> a")["input_ids"])
    gap = ["▁", "▁", "<0x0A>"], ["▁", "<0x0A>"]
    expected = (
        ["<|user|>", *gap[0], "a", "<|end|>", *gap[1], "a", "<s>", "▁", "▁", "a"]
        if spaces
        else ["<|user|>", "▁", "a", "<|end|>", "▁", "a", "<s>", "▁", "▁", "a"]
    )
    assert words == expected


def test_gemma_4_merges_over_spaces(tmp_path):
    tokens = ["<bos>", "<eos>", *_BYTES, "a", "▁", "b", "a▁", "a▁b"]
    kinds = [3, 3] + [6] * 256 + [1] * 5
    path = checkpoint_files.write_vocabulary(
        tmp_path / "v.gguf", tokens, kinds, merges=["a ▁", "a▁ b"], model="gemma4", bos_token_id=0, eos_token_id=1
    )
    tokenizer = load_tokenizer(open_checkpoint(str(path)))
    ids = tokenizer("a b\né")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<bos>", "a▁b", "<0x0A>", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a b\né"
