"""What tokenizer_config.json says beside tokenizer.json: tokens that it alone lists, and those around each text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from tokenizers import Tokenizer, processors

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.tokenization.tokenizer import load_tokenizer


def _configured(folder: Path, **fields: Any) -> Any:
    """The tokenizer of a tiny model whose tokenizer_config.json has these fields as well."""
    checkpoint_files.save(checkpoint_files.tiny_model("llama"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | fields))
    return load_tokenizer(open_checkpoint(str(folder)))


_MORE = {"content": "<more>", "lstrip": False, "normalized": False, "rstrip": True, "single_word": False}


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "PreTrainedTokenizerFast", "LlamaTokenizer", "OfItsOwnCode"])
@pytest.mark.parametrize("field", ["additional_special_tokens", "extra_special_tokens"])
@pytest.mark.parametrize(
    "tokens", [["<more>"], [_MORE], [{"content": "<more>"}], [_MORE | {"__type": "AddedToken"}], {"more": _MORE}]
)
def test_special_tokens_of_the_configuration_alone(tmp_path, kind, field, tokens):
    """The file does not know it, and read by itself would cut its name to pieces; transformers refuses objects."""
    tokenizer = _configured(tmp_path / "m", tokenizer_class=kind, **{field: tokens})
    found, *after = tokenizer("<more> a", add_special_tokens=False)["input_ids"]
    assert found >= checkpoint_files.TOKENS  # after those of the file
    assert tokenizer.decode([found], skip_special_tokens=True) == ""
    if tokens in ([_MORE], {"more": _MORE}):  # those that transformers reads itself lose that in some classes
        assert tokenizer.decode(after) == "a"


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "Qwen2Tokenizer"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("bos", [None, False, True])
@pytest.mark.parametrize("eos", [None, False, True])
def test_what_is_put_around_a_text(tmp_path, kind, stored, bos, eos):
    """By add_bos_token and add_eos_token of Llama's and its relatives' classes, as transformers 4 had them.

    DeepSeek's files count on it: transformers 5 leaves the token out. Else tokenizer.json says it.
    """
    named = {"add_bos_token": bos, "add_eos_token": eos}
    said = {name: value for name, value in named.items() if value is not None}
    ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    file = folder / "tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    first, last = (backend.token_to_id(name) for name in ends.values())
    if stored:
        template = processors.TemplateProcessing(
            single=["<|im_start|>", "$A"], special_tokens=[("<|im_start|>", first)]
        )
        backend.post_processor = template
    backend.save(str(file))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **said}))
    (folder / "special_tokens_map.json").write_text(json.dumps(ends))
    ids = load_tokenizer(open_checkpoint(str(folder)))("ab")["input_ids"]
    obeyed = said and kind != "Qwen2Tokenizer"
    assert (ids[0] == first) == (bos is not False if obeyed else stored)
    assert (ids[-1] == last) == bool(obeyed and eos)
