"""Token ids of a prompt that the model has no embedding for: the native core read whatever memory was there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_files
import numpy
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from test_transformers_model import save as save_foreign
from tiny_tokenizers import tiny_tokenizer

import ipex_assist
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.native.model import NativeModel

ROWS = 290  # fewer than the tokenizer's tokens, as where one was added to it and not to the model
native = pytest.mark.skipif(not HAS_NATIVE, reason="the native core does not run here")


def load(folder: Path, executor: str, model_type: str = "llama") -> Any:
    """A tiny model with fewer rows than its tokenizer has tokens."""
    if model_type == "llama":
        checkpoint_files.save(checkpoint_files.tiny_model("llama", vocab_size=ROWS), folder)
    else:
        save_foreign(folder)
    return ipex_assist.load(str(folder), assistant=None, precision="fp32", executor=executor)


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_ids_that_the_model_does_not_have(executor: str, model_type: str, tmp_path: Path) -> None:
    """Beyond the last row, below the first, and larger than any integer of the core; then the model goes on."""
    model = load(tmp_path, executor, model_type)
    rows = model.vocab_size
    assert rows == (ROWS if model_type == "llama" else checkpoint_files.TOKENS)
    expected = model.generate([1, 2, rows - 1], max_new_tokens=4).tokens
    for bad in (rows, rows + 5, 1 << 31, (1 << 32) + 3, 1 << 70, -1):
        with pytest.raises(UsageError, match=rf"token 3 of the prompt has the id {bad}\b.* ids from 0 to {rows - 1}: "):
            model.generate([1, 2, bad, 3], max_new_tokens=4)
    for wrong in (1.5, "a", None):
        with pytest.raises(UsageError, match="is no whole number"):
            model.generate([1, wrong], max_new_tokens=4)
    for kind in (numpy.array, torch.tensor, tuple, iter):
        assert model.generate(kind([1, 2, rows - 1]), max_new_tokens=4).tokens == expected
    for several in ([[1, 2, rows - 1], [3]], ([1, 2, rows - 1], (3,))):
        results = model.generate(several, max_new_tokens=4)
        assert [result.tokens for result in results] == [expected, model.generate([3], max_new_tokens=4).tokens]


def test_a_token_without_a_row_is_named(executor: str, tmp_path: Path) -> None:
    """As with Llama 2's first release, whose tokenizer had a <pad> that the model had not."""
    model = load(tmp_path, executor)
    model.tokenizer.add_tokens(["<padding>"])
    with pytest.raises(UsageError, match=r"token 2 of the prompt has the id 300 \(<padding>\), and .* knows ids"):
        model.generate("x<padding>", max_new_tokens=4)


@pytest.mark.parametrize("variant", ["llama", *tiny_models.known("apertus1p5-text")])
def test_biases_of_tokens_that_are_never_written(variant: str, executor: str, tmp_path: Path) -> None:
    """A bias of an id without a logit had no effect, and nobody was told; Apertus 1.5 has fewer logits than tokens."""
    fewer = variant != "llama"
    tiny_models.save(tmp_path, variant)
    tiny_tokenizer().save_pretrained(tmp_path)
    model: Any = ipex_assist.load(str(tmp_path), assistant=None, precision="fp32", executor=executor)
    assert (model.lm_head_rows < model.vocab_size) == fewer
    last = model.lm_head_rows - 1
    assert model.generate([1, 2], max_new_tokens=3, ignore_eos=True, logit_bias={last: 100}).tokens == [last] * 3
    said = f"only ids up to {last} have a logit" if fewer else f"there is no token {last + 1}; ids go to {last}"
    with pytest.raises(UsageError, match=f"logit_bias: .*{said}"):
        model.generate([1, 2], max_new_tokens=3, logit_bias={5: 1, last + 1: 100})
    with pytest.raises(UsageError, match=f"there is no token {1 << 20}; ids go to {model.vocab_size - 1}"):
        model.generate([1, 2], max_new_tokens=3, logit_bias={1 << 20: 100})


@native
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_the_core_checks_what_it_is_given(precision: str, tmp_path: Path) -> None:
    """Ids, positions and rows, in one row and in a prompt's; each ended the process, or gave what was in memory."""
    tiny_models.save(tmp_path, "llama")
    text = tiny_models.text(tmp_path, "native", precision, tokens=300)
    assert isinstance(text.model, NativeModel)
    expected = text.forward([1, 2, 3])
    for tokens in ([tiny_models.VOCAB], [-1], [1] * 40 + [1 << 20], [(1 << 32) + 1]):
        text.truncate(0)
        with pytest.raises(IpexAssistError, match="token id"):
            text.forward(tokens)
        with pytest.raises(IpexAssistError, match="token id"):
            text.draft(tokens, 4)
    text.truncate(0)
    with pytest.raises(IpexAssistError, match="logits of 2 rows were asked for, of 1"):
        text.forward([1], last=2)
    with pytest.raises(IpexAssistError, match=r"0 \+ 301 tokens in a sequence of 300"):
        text.forward([1] * 301)
    with pytest.raises(IpexAssistError, match=r"0 \+ 301 tokens in a sequence of 300"):
        text.draft([1] * 17, 285)
    with pytest.raises(IpexAssistError, match="cannot truncate 0 tokens to 5"):
        text.truncate(5)
    with pytest.raises(IpexAssistError, match="room for 0 tokens"):
        text.model.new_sequence(0)
    assert torch.equal(text.forward([1, 2, 3]), expected)


def test_messages_are_a_conversation(tmp_path: Path) -> None:
    """One list of messages is one prompt, a list of such several; what is none of a prompt's kinds is said to be."""
    model = ipex_assist.load(
        str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path)), None, executor="torch"
    )
    asked = {"role": "user", "content": "Hello"}
    expected = model.encode("Hello", chat=True)
    assert model.encode([asked]) == expected != model.encode("Hello")
    assert len(model.encode([{"role": "system", "content": "Be brief."}, asked])) > len(expected)
    one, several = model.generate([asked], max_new_tokens=2), model.generate([[asked], [asked]], max_new_tokens=2)
    assert [one.tokens] * 2 == [each.tokens for each in several]
    wrong: dict[str, Any] = {
        "bytes": b"Hello",
        "int": 7,
        "dict": asked,
        "message 2 of the prompt is of type str": [asked, "Hello"],
        "message 1 of the prompt has no role": [{"content": "Hello"}],
        "message 2 of the prompt has no content": [asked, {"role": "user"}],
    }
    for said, prompt in wrong.items():
        with pytest.raises(UsageError, match=said):
            model.generate(prompt, max_new_tokens=2)
