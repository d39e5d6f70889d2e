"""Pairs that transformers runs: what checkpoints say besides, odd vocabularies, models that cannot be assisted."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import torch
from conftest import HAS_NATIVE
from test_transformers_model import PROMPT, save
from transformers import AutoConfig, AutoModelForCausalLM

import ipex_assist
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.select_executor import library_executor
from ipex_assist.generation import resolved
from ipex_assist.generation.transformers_model import TransformersModel

TOKENS = checkpoint_files.TOKENS
MPT: dict[str, Any] = {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
MPT["expansion_ratio"] = 2  # which our decoder leaves to transformers
GRIFFIN: dict[str, Any] = {"model_type": "recurrent_gemma", "hidden_size": 64, "num_hidden_layers": 3, "lru_width": 64}
GRIFFIN |= {"num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 96, "attention_window_size": 32}
GRIFFIN["hidden_activation"] = "relu"  # likewise
RWKV: dict[str, Any] = {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2, "context_length": 64}


def load(target: Path, assistant: Path | None = None, **options: Any) -> TransformersModel:
    """On the library at hand, which is where the flags of our own executors have no meaning."""
    name = None if assistant is None else str(assistant)
    model = ipex_assist.load(str(target), name, precision="fp32", executor=library_executor(), **options)
    assert isinstance(model, TransformersModel)
    return model


def drafted(model: TransformersModel, **options: Any) -> list[int]:
    """Drafted tokens of each round of a text that does not end early."""
    return [chunk.round.drafted for chunk in model.stream(PROMPT, **options)]


def write(path: Path, **changes: Any) -> None:
    """Add to a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_constant_number_is_that_number(tmp_path: Path) -> None:
    """transformers stops after a token of less than 0.4 unless told otherwise: 1 of 4 in nearly every round."""
    save(tmp_path / "target")
    save(tmp_path / "assistant", seed=1)
    model = load(tmp_path / "target", tmp_path / "assistant")
    for number in (2, 4):
        counts = drafted(model, max_new_tokens=24, num_assistant_tokens=number)
        assert set(counts[:-number]) == {number}
    assert max(drafted(model, max_new_tokens=24, num_assistant_tokens_schedule="constant")) == 3
    assert min(drafted(model, max_new_tokens=24)[:-5]) < 4  # by its own rule, which was not forgotten


def test_a_cache_is_used_though_the_config_says_no(tmp_path: Path) -> None:
    """MPT's checkpoints have `use_cache: false`: each pass read the whole text, and none could be assisted."""
    save(tmp_path, **MPT)
    write(tmp_path / "config.json", use_cache=False)
    model = load(tmp_path)
    rows: list[int] = []
    model.target.get_input_embeddings().register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[-1]))
    plain = model.generate(PROMPT, max_new_tokens=12)
    assert set(rows[1:]) == {1}
    ours = load(tmp_path, tmp_path).generate(PROMPT, max_new_tokens=12, num_assistant_tokens=3)
    assert ours.tokens == plain.tokens
    assert ours.draft.accepted


LEFTOVERS: dict[str, Any] = {
    "num_beams": 3,
    "no_repeat_ngram_size": 1,
    "min_length": 20,
    "suppress_tokens": list(range(50, 250)),
    "max_length": 15,
}


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("assisted", [False, True])
def test_leftovers_of_a_checkpoint_change_nothing(file: str, assisted: bool, tmp_path: Path) -> None:
    """Our own decoders read none of them; beams cannot be streamed at all."""
    save(tmp_path / "clean")
    save(tmp_path / "full")
    expected = load(tmp_path / "clean").generate(PROMPT, max_new_tokens=24)
    sampling = {"do_sample": True, "top_p": 0.5}  # in generation_config.json they are defaults
    write(tmp_path / "full" / file, **LEFTOVERS, **(sampling if file == "config.json" else {}))
    if file == "config.json":
        (tmp_path / "full" / "generation_config.json").unlink()
    ours = load(tmp_path / "full", tmp_path / "full" if assisted else None).generate(PROMPT, max_new_tokens=24)
    assert ours.tokens == expected.tokens


def gemma3(folder: Path, wrapped: bool, seed: int = 0) -> None:
    """A tiny Gemma 3, alone or inside a model that also takes images, whose config has the sizes in `text_config`."""
    tokenizer = checkpoint_files.tiny_tokenizer()
    text: dict[str, Any] = {
        "vocab_size": TOKENS,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 96,
        "sliding_window": 32,
        "attn_logit_softcapping": 50.0,  # which our decoder leaves to transformers
    }
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    vision |= {"image_size": 28, "patch_size": 14}
    fields = {"text_config": text, "vision_config": vision, "mm_tokens_per_image": 4} if wrapped else text
    config = AutoConfig.for_model("gemma3" if wrapped else "gemma3_text", **fields)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if wrapped:
        assert "vocab_size" not in json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("assistant", ["wrapped", "text"])
def test_sizes_of_a_wrapped_config(assistant: str, tmp_path: Path) -> None:
    """KeyError: 'vocab_size' before; and the context of the text part was not known."""
    gemma3(tmp_path / "target", wrapped=True)
    gemma3(tmp_path / "wrapped", wrapped=True)
    gemma3(tmp_path / "text", wrapped=False, seed=1)
    model = load(tmp_path / "target", tmp_path / assistant)
    assert model.context_length == 96
    plain = model.generate(PROMPT, max_new_tokens=20, assisted=False)
    ours = model.generate(PROMPT, max_new_tokens=20, num_assistant_tokens=3)
    assert ours.tokens == plain.tokens
    assert ours.draft.drafted


@pytest.mark.parametrize("fields", [GRIFFIN, RWKV], ids=["griffin", "rwkv"])
def test_a_model_with_a_state_takes_no_assistant(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Named: an error in our words. The family's default: without it, and that is said."""
    save(tmp_path / "stateful", **fields)
    save(tmp_path / "gpt2")
    for target, assistant in (("stateful", "stateful"), ("gpt2", "stateful"), ("stateful", "gpt2")):
        with pytest.raises(UsageError, match=r"stateful is a \w+, whose state cannot be taken back.*--no-assisted"):
            load(tmp_path / target, tmp_path / assistant)
    plain = load(tmp_path / "stateful").generate(PROMPT, max_new_tokens=6)
    monkeypatch.setattr(resolved, "default_assistant", lambda *_: str(tmp_path / "stateful"))
    with caplog.at_level(logging.WARNING, "ipex_assist"):
        model = ipex_assist.load(str(tmp_path / "stateful"), precision="fp32", executor=library_executor())
        ours = model.generate(PROMPT, max_new_tokens=6)
    assert "generating without the default assistant" in caplog.text
    assert (ours.tokens, ours.assisted, ours.assistant) == (plain.tokens, False, None)


@pytest.mark.parametrize("fails_behind", [1, 5])
def test_an_assistant_that_fails_only_when_it_is_used(
    fails_behind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers finds reasons of its own, late: likewise an error where it was named, else the text goes on."""
    save(tmp_path)
    named = load(tmp_path, tmp_path)
    plain = named.generate(PROMPT, max_new_tokens=12, assisted=False)
    monkeypatch.setattr(resolved, "default_assistant", lambda *_: str(tmp_path))
    default: Any = ipex_assist.load(str(tmp_path), precision="fp32", executor=library_executor())
    for model in (named, default):
        original = model.target.generate

        def generate(*args: Any, original: Any = original, **options: Any) -> Any:
            if "assistant_model" not in options:
                return original(*args, **options)
            original(*args, **(options | {"max_new_tokens": fails_behind}))
            raise ValueError("assisted generate requires `use_cache=True`")

        monkeypatch.setattr(model.target, "generate", generate)
    with pytest.raises(UsageError, match=r"cannot generate with .* and the assistant .*use_cache.*--no-assisted"):
        named.generate(PROMPT, max_new_tokens=12)
    for _ in range(2):
        assert default.generate(PROMPT, max_new_tokens=12).tokens == plain.tokens
    assert caplog.text.count("going on without it") == 1


# Tokens and rows of target and assistant.
PAIRS = [
    ((TOKENS + 3, TOKENS + 3), (TOKENS, TOKENS)),
    ((TOKENS, TOKENS), (TOKENS + 16, TOKENS + 16)),
    ((TOKENS + 16, TOKENS + 20), (TOKENS, TOKENS + 20)),
    ((TOKENS, TOKENS + 20), (TOKENS + 16, TOKENS + 20)),
    ((TOKENS, TOKENS + 8), (TOKENS, TOKENS)),
    ((TOKENS, TOKENS), (TOKENS, TOKENS + 8)),
]


@pytest.mark.parametrize(("target", "assistant"), PAIRS)
def test_vocabularies_that_differ_at_the_end(
    target: tuple[int, int], assistant: tuple[int, int], tmp_path: Path
) -> None:
    """transformers compares nothing but the numbers of rows: an index out of range, or a request for tokenizers."""
    for seed, (name, (tokens, rows)) in enumerate({"target": target, "assistant": assistant}.items()):
        tokenizer = checkpoint_files.tiny_tokenizer()
        tokenizer.add_tokens([f"<extra{index}>" for index in range(tokens - TOKENS)])
        save(tmp_path / name, seed=seed, rows=rows)
        tokenizer.save_pretrained(tmp_path / name)
    model = load(tmp_path / "target", tmp_path / "assistant")
    tokens_drafted: list[int] = []
    assert model.assistant is not None
    generate = model.assistant.generate

    def recorded(*args: Any, **options: Any) -> Any:
        out = generate(*args, **options)
        tokens_drafted.extend(out.sequences[0, -len(out.scores) :].tolist())
        return out

    model.assistant.generate = recorded  # type: ignore[method-assign]
    for prompt in ([5, 9, 33, 40], [5, min(target) - 1, 33, min(target) - 1]):
        plain = model.generate(prompt, max_new_tokens=24, assisted=False)
        ours = model.generate(prompt, max_new_tokens=24, num_assistant_tokens=3)
        assert ours.tokens == plain.tokens
        model.generate(prompt, max_new_tokens=24, do_sample=True, top_k=0, temperature=2.0, seed=1)
    limit = TOKENS if assistant[0] > target[0] else min(target[1], assistant[1])
    assert tokens_drafted
    assert max(tokens_drafted) < limit


def test_another_vocabulary_through_its_text(tmp_path: Path) -> None:
    """--universal was refused with the advice to use it; transformers has it too."""
    save(tmp_path / "target")
    tokenizer = checkpoint_files.tiny_tokenizer(("<s>", "</s>"))
    save(tmp_path / "other", seed=1, rows=TOKENS + 1)
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(UsageError, match="--universal"):
        load(tmp_path / "target", tmp_path / "other")
    model = load(tmp_path / "target", tmp_path / "other", universal=True)
    plain = model.generate(PROMPT, max_new_tokens=24, assisted=False)
    ours = model.generate(PROMPT, max_new_tokens=24, num_assistant_tokens=4)
    assert ours.tokens == plain.tokens
    assert ours.draft.drafted
    assert ours.assistant == f"{tmp_path / 'other'} (universal)"
    save(tmp_path / "other", seed=1)
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(UsageError, match=rf"both have {TOKENS} rows"):
        load(tmp_path / "target", tmp_path / "other", universal=True)


def test_flags_without_a_meaning_there_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They were ignored in silence."""
    save(tmp_path)
    load(tmp_path, tmp_path, draft_vocabulary=256, cache_packed=True)
    assert "--draft-vocabulary: no effect" in caplog.text
    assert "--cache-packed: no effect" in caplog.text
    if HAS_NATIVE:
        ipex_assist.load(str(tmp_path), None, precision="fp32", executor="native")
        assert f"{tmp_path.name} runs through transformers, not our own decoder: activation 'quick_gelu'" in caplog.text
    caplog.clear()
    load(tmp_path, tmp_path)
    assert "no effect" not in caplog.text


def test_our_decoder_is_not_left_for_an_assistant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign assistant took the target to transformers without a word."""
    checkpoint_files.save(checkpoint_files.tiny_model("llama", vocab_size=TOKENS), tmp_path / "llama")
    save(tmp_path / "gpt2")
    options = {"precision": "fp32", "executor": "torch"}
    with pytest.raises(UsageError, match=r"cannot run the assistant .*gpt2 \(activation .quick_gelu.*slower.*lookup"):
        ipex_assist.load(str(tmp_path / "llama"), str(tmp_path / "gpt2"), **options)
    monkeypatch.setattr(resolved, "default_assistant", lambda *_: str(tmp_path / "gpt2"))
    model = ipex_assist.load(str(tmp_path / "llama"), **options)
    assert isinstance(model, ipex_assist.AssistedModel)
    assert "gpt2 cannot be used (" in caplog.text
    assert "so lookup drafts" in caplog.text


def test_a_default_assistant_whose_config_leaves_its_vocabulary_to_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a KeyError: transformers saves what differs from a class's defaults, and 50,257 rows are gpt2's."""
    rows = AutoConfig.for_model("gpt2").vocab_size
    for name in ("target", "assistant"):
        save(tmp_path / name, rows=rows)
        path = tmp_path / name / "config.json"
        config = json.loads(path.read_text())
        assert config.pop("vocab_size") == rows
        path.write_text(json.dumps(config))
    monkeypatch.setattr(resolved, "default_assistant", lambda *_: str(tmp_path / "assistant"))
    model = ipex_assist.load(str(tmp_path / "target"), precision="fp32", executor=library_executor())
    assert model.identity.assistant == str(tmp_path / "assistant")
    assert "generating without" not in caplog.text
