"""Texts by a grammar from Python: `stream` and `generate` with `grammar=`, on every executor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

import ipex_assist
from ipex_assist import GenerationOptions, GrammarSpec
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.workers.request_loop import RequestLoop
from ipex_assist.workers.wire import Answered, TextRequest

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"add": {"type": "boolean"}, "n": {"enum": [1, 2, "fox"]}},
    "required": ["add", "n"],
    "additionalProperties": False,
}
JSON = GrammarSpec("json_schema", json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and an assistant of its vocabulary."""
    return checkpoint_files.save_pair(tmp_path_factory.mktemp("pair"), max_position_embeddings=512)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return ipex_assist.load(str(folder / "target"), str(folder / "assistant"), precision="fp32", calibrate=False)


OPTIONS: dict[str, Any] = {"max_new_tokens": 80, "num_assistant_tokens": 4}


def test_on_every_executor(folder: Path, executor: str) -> None:
    """The text is what the schema says, ends, and is the same without drafts; what is forced was drafted."""
    loaded = ipex_assist.load(
        str(folder / "target"), str(folder / "assistant"), executor=executor, precision="fp32", calibrate=False
    )
    plain = loaded.generate("The fox", grammar=JSON, max_new_tokens=80, assisted=False)
    result = loaded.generate("The fox", grammar=JSON, **OPTIONS)
    value = json.loads(result.text)
    assert list(value) == ["add", "n"]
    assert value["n"] in (1, 2, "fox")
    assert result.stop_reason == "eos"
    assert (result.tokens, result.text) == (plain.tokens, plain.text)
    assert result.draft.accepted > 0
    assert plain.draft.drafted is None


def test_several_prompts(model: Any) -> None:
    """Each has a state of its own; drawn ones are what they are alone."""
    alone = [model.generate(prompt, grammar=JSON, do_sample=True, seed=3, **OPTIONS) for prompt in ("a", "b", "c")]
    together = model.generate(["a", "b", "c"], grammar=JSON, do_sample=True, seed=3, **OPTIONS)
    assert [each.tokens for each in together] == [each.tokens for each in alone]


def test_without_an_assistant(folder: Path) -> None:
    """What is forced is drafted all the same, and nothing else: no pair is measured for it."""
    loaded = ipex_assist.load(str(folder / "target"), None, precision="fp32")
    result = loaded.generate("The fox", grammar=JSON, max_new_tokens=80)
    assert json.loads(result.text).keys() == {"add", "n"}
    assert result.draft.accepted > 0
    assert loaded.drafting._costs is None


def test_an_assistant_with_another_vocabulary(folder: Path, tmp_path: Path) -> None:
    """It knows nothing of the grammar; what it drafts is cut, and forced tokens come first."""
    other = checkpoint_files.tiny_tokenizer(special=("<unk>", "<a>", "<b>", "<c>", "</s>"))
    checkpoint_files.save(checkpoint_files.tiny_model("llama", seed=1), tmp_path, tokenizer=False)
    other.save_pretrained(tmp_path)
    loaded = ipex_assist.load(str(folder / "target"), str(tmp_path), precision="fp32", universal=True, calibrate=False)
    plain = loaded.generate("The fox", grammar=JSON, max_new_tokens=80, assisted=False)
    result = loaded.generate("The fox", grammar=JSON, **OPTIONS)
    assert result.tokens == plain.tokens
    assert result.draft.accepted > 0


def test_wrong_grammars(model: Any) -> None:
    """Said before anything runs; the model goes on."""
    with pytest.raises(IpexAssistError, match="cannot be compiled"):
        model.generate("a", grammar=GrammarSpec("regex", "(a"))
    assert model.generate("a", max_new_tokens=3).new_tokens == 3


def test_an_engine_says_that_the_request_is_wrong(model: Any) -> None:
    """A special token that only the model's own vocabulary can lack: by `refused` the server answers 400."""
    replies: list[Any] = []
    loop = RequestLoop(model, replies.append)
    for number, value in enumerate(("start: <[99999]>", "start: <|nothing|>", 'start: "add" <[0]>')):
        options = GenerationOptions(max_new_tokens=3)
        loop.inbox.put(TextRequest(number, "a", options=options, grammar=GrammarSpec("lark", value)))
    loop.inbox.put(None)
    loop.run()
    found = {reply.id: reply for reply in replies if isinstance(reply, Answered)}
    assert [found[number].refused for number in range(3)] == [True, True, False]


def test_grammars_are_prepared(folder: Path) -> None:
    """What takes a second of the first one can be had before; a model that can have none says so only when asked."""
    loaded: Any = ipex_assist.load(str(folder / "target"), None, precision="fp32")
    loaded.prepare_grammars()
    made = loaded._grammars
    assert made is not None
    loaded.grammar(JSON)
    assert loaded._grammars is made
    loaded._grammars, loaded.eos = None, frozenset()
    loaded.prepare_grammars()
    with pytest.raises(UsageError, match="no end-of-text token"):
        loaded.grammar(JSON)


def test_models_that_transformers_runs(tmp_path: Path) -> None:
    """Have no grammars, and say so."""
    tokenizer = checkpoint_files.tiny_tokenizer()
    fields = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "activation_function": "quick_gelu"}
    config = AutoConfig.for_model("gpt2", vocab_size=len(tokenizer), **fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = ipex_assist.load(str(tmp_path), assistant=None, precision="fp32")
    with pytest.raises(UsageError, match="grammar"):
        loaded.generate("a", grammar=JSON)
