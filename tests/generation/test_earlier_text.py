"""Drafts from earlier answers and a corpus: texts stay the target's own, and options say where they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import tiny_models
from conftest import HAS_NATIVE

import ipex_assist
from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.sources.earlier_text import Caller

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="the native core finds what to copy")]

PROMPT = "the quick brown fox"
FIXED: dict[str, Any] = {"max_new_tokens": 40, "num_assistant_tokens": 6, "ignore_eos": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path / "target", "llama", vocab_size=512)
    checkpoint_files.tiny_tokenizer().save_pretrained(tmp_path / "target")
    return tmp_path


def load(folder: Path, assistant: str = "lookup", executor: str = "native", **options: Any) -> Any:
    return ipex_assist.load(
        folder / "target", assistant, executor=executor, precision="fp32", calibrate=False, **options
    )


@pytest.mark.parametrize("how", [{}, {"do_sample": True, "seed": 3}])
def test_an_answer_that_was_given_is_copied(how: dict[str, Any], folder: Path, executor: str) -> None:
    """The same text the second time, in fewer passes; another key's text is not copied; nothing is kept unasked."""
    if executor == "ipex":
        pytest.skip("the executor has no part in it")
    model, without = load(folder, executor=executor, draft_history="1M"), load(folder, executor=executor)
    plain = without.generate(PROMPT, assisted=False, max_new_tokens=40, ignore_eos=True, **how)
    mine, other = ({**FIXED, **how, "share": key} for key in ("key 0", "key 1"))
    first, again = model.generate(PROMPT, **mine), model.generate(PROMPT, **mine)
    others, unkept = model.generate(PROMPT, **other), without.generate(PROMPT, **mine)
    assert first.tokens == again.tokens == others.tokens == unkept.tokens == plain.tokens
    assert again.draft.accepted > 30
    assert first.draft.accepted == others.draft.accepted == unkept.draft.accepted < again.draft.accepted


def test_a_corpus_is_copied(folder: Path) -> None:
    """What the model says stands in a corpus: nearly every draft is right; lookup is added to whatever else drafts."""
    (folder / "corpus").write_text(PROMPT)
    model = load(folder, "self", draft_corpus=folder / "corpus", draft_history=1 << 16)
    assert model.identity.assistant == "lookup+self"
    plain = model.generate(PROMPT, assisted=False, max_new_tokens=40, ignore_eos=True)
    before = model.drafting.corpus.nbytes
    model.drafting.corpus.append([*model.encode(PROMPT), *plain.tokens])
    assert model.drafting.corpus.nbytes > before
    alone = load(folder, draft_corpus=folder / "corpus")
    alone.drafting.corpus = model.drafting.corpus
    for each in (model, alone):
        assert each.generate(PROMPT, **FIXED).tokens == plain.tokens
    assert alone.generate(PROMPT, **FIXED).draft.accepted > load(folder).generate(PROMPT, **FIXED).draft.accepted


def test_texts_at_once_are_those_alone(folder: Path) -> None:
    """Ten texts by three callers: cancelled, paused and resumed between passes while others end and are added."""
    model = load(folder, draft_history="64K")
    prompts = [[5 + i, 9, 5 + i, 9, 30] for i in range(5)] * 2
    options = GenerationOptions(max_new_tokens=30, num_assistant_tokens=4, ignore_eos=True)
    plain = [model.generate(prompt, options, assisted=False).tokens for prompt in prompts]
    engine = model.engine()
    handles = [engine.submit(list(prompt), replace(options, share=f"key {i % 3}")) for i, prompt in enumerate(prompts)]
    found: list[list[int]] = [[] for _ in handles]
    for number in range(200):
        engine.step()
        if number == 3:
            handles[4].pause()
        if number == 6:
            handles[4].resume()
            handles[7].cancel()
        for tokens, handle in zip(found, handles, strict=True):
            while handle.has_round:
                tokens += next(handle).tokens
    for number, (tokens, expected) in enumerate(zip(found, plain, strict=True)):
        assert tokens == (expected[: len(tokens)] if number == 7 else expected)
    answers = model.drafting.answers
    assert 0 < answers.nbytes <= 64 << 10
    assert answers.of(Caller("key 0")).indexes[0].nbytes > 0


def test_it_is_for_drafts(folder: Path) -> None:
    """Where nothing may be drafted the options are refused, and so is a file that is not there."""
    with pytest.raises(UsageError, match=r"--draft-corpus and --draft-history are for drafts"):
        load(folder, "none", draft_history="1M")
    with pytest.raises(UsageError, match=r"--draft-corpus .*nowhere: cannot be read"):
        load(folder, draft_corpus=folder / "nowhere")
