"""The tokenizer without transformers gives what transformers gives, or leaves it to transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoint_files
import jinja2
import pytest
from test_tokenizer import TEXTS
from transformers import PreTrainedTokenizerFast

from ipex_assist.tokenization.chat_template import render
from ipex_assist.tokenization.fast_tokenizer import FastTokenizer
from ipex_assist.tokenization.tokenizer import _from_tokenizer_json, _plain_tokenizer

CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be <kind> & short."},
        {"role": "user", "content": "日本語\n\n  hi  "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": '{"a": 1}'},
    ],
]
TEMPLATES = [
    checkpoint_files.CHAT_TEMPLATE,
    "{% for m in messages %}\n  {% if loop.index > 2 %}{% break %}{% endif %}\n{{ m | tojson(indent=1) }}{% endfor %}",
    "{% set n = namespace(n=0) %}{% for m in messages %}{% set n.n = n.n + m.content | length %}{% endfor %}{{ n.n }}",
    "{% generation %}{{ messages[0]['content'] | trim }}{% endgeneration %}{{ eos_token }}{{ tools is none }}",
    "{{ dict(a=1) | tojson }}{{ messages[0].content.upper() }}{% if add_generation_prompt %}go{% endif %}",
]
REFUSED = [
    "{{ messages.append(1) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ dict.__class__.__mro__ }}",
    "{{ raise_exception('no') }}",
]


@pytest.fixture(scope="module", params=["PreTrainedTokenizerFast", "TokenizersBackend"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of no model's own class, by the name it has from transformers 4 and from 5."""
    folder = tmp_path_factory.mktemp("tokenizer")
    checkpoint_files.tiny_tokenizer().save_pretrained(folder)
    change(folder, tokenizer_class=request.param)
    return folder


def change(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes))


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[Any, PreTrainedTokenizerFast]:
    full = _from_tokenizer_json(folder)
    assert full is not None
    return _plain_tokenizer(folder), full


def test_texts_and_ids(pair: tuple[Any, Any]) -> None:
    fast, full = pair
    assert isinstance(fast, FastTokenizer)
    assert fast.get_vocab() == full.get_vocab()
    assert len(fast) == len(full)
    assert fast.eos_token_id == full.eos_token_id
    assert fast.convert_ids_to_tokens(5) == full.convert_ids_to_tokens(5)
    assert fast.convert_tokens_to_ids("nobody's token") == full.convert_tokens_to_ids("nobody's token")
    for text in TEXTS:
        for special in (True, False):
            ids = list(full(text, add_special_tokens=special)["input_ids"])
            assert fast(text, add_special_tokens=special)["input_ids"] == ids
            assert fast.decode(ids, skip_special_tokens=special) == full.decode(ids, skip_special_tokens=special)


def test_a_token_that_is_added_is_known_to_both(folder: Path) -> None:
    fast = _plain_tokenizer(folder)
    assert isinstance(fast, FastTokenizer)
    size = len(fast)
    fast.add_tokens(["<padding>"])
    assert len(fast) == size + 1
    assert fast("x<padding>")["input_ids"][-1] == size
    assert fast.decode([size]) == "<padding>"


def test_what_it_does_not_know_is_asked_of_transformers(pair: tuple[Any, Any]) -> None:
    fast, full = pair
    assert fast(TEXTS[:2])["input_ids"] == full(TEXTS[:2])["input_ids"]
    assert fast.all_special_ids == full.all_special_ids
    assert fast.convert_ids_to_tokens([3, 4]) == full.convert_ids_to_tokens([3, 4])


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_chat_templates(pair: tuple[Any, Any], template: str, messages: list[dict[str, str]]) -> None:
    fast, full = pair
    fast.chat_template = full.chat_template = template
    told = {"add_generation_prompt": True, "tokenize": False}
    assert fast.apply_chat_template(messages, **told) == full.apply_chat_template(messages, **told)


@pytest.mark.parametrize("template", REFUSED)
def test_a_template_cannot_leave_its_sandbox(template: str) -> None:
    with pytest.raises(jinja2.exceptions.TemplateError):
        render(template, CONVERSATIONS[0], {})


@pytest.mark.parametrize(
    "changes",
    [
        {"eos_token": "<|nobody has me|>"},
        {"clean_up_tokenization_spaces": True},
        {"tokenizer_class": "LlamaTokenizerFast"},
    ],
)
def test_transformers_reads_what_it_would_change(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    change(tmp_path, **changes)
    assert not isinstance(_plain_tokenizer(tmp_path), FastTokenizer)


@pytest.mark.parametrize("setting", ["truncation", "padding"])
def test_a_file_that_cuts_or_fills_texts_is_read_by_transformers(folder: Path, tmp_path: Path, setting: str) -> None:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4) if setting == "truncation" else backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_bytes((folder / "tokenizer_config.json").read_bytes())
    assert not isinstance(_plain_tokenizer(tmp_path), FastTokenizer)
