"""Architectures without a spec: transformers' own generation with our methods."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import torch
from conftest import HAS_IPEX
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import ipex_assist
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import LogitsError
from ipex_assist.executors.select_executor import library_executor
from ipex_assist.generation import transformers_model
from ipex_assist.generation.result import DraftResult
from ipex_assist.generation.stream import Generation

PROMPT = "the quick brown fox"
# Its activation is none of ours.
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": 64}
GPT2["activation_function"] = "quick_gelu"


def save(folder: Path, seed: int = 0, rows: int | None = None, **changes: Any) -> Any:
    """A random model that our decoder does not compute, a gpt2 unless `changes` say another, and a tokenizer."""
    tokenizer = checkpoint_files.tiny_tokenizer()
    fields = changes if "model_type" in changes else {**GPT2, **changes}
    fields = {**fields, "vocab_size": rows or len(tokenizer), "eos_token_id": None, "bos_token_id": None}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def reference(model: Any, tokenizer: Any, new: int) -> list[int]:
    """transformers' plain greedy tokens."""
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, inputs["input_ids"].shape[1] :].tolist()


def test_plain_equals_transformers(tmp_path: Path, executor: str) -> None:
    """Tokens are the same, in a round each; who ran it is said; on the ipex stack gpt2 goes through optimum-intel."""
    model, tokenizer = save(tmp_path)
    ours = ipex_assist.load(str(tmp_path), assistant=None, precision="fp32", executor=executor)
    result = ours.generate(PROMPT, max_new_tokens=12)
    assert result.tokens == reference(model, tokenizer, 12)
    # The native core does not compute this one either and leaves it to the best library at hand.
    library = library_executor() if executor == "native" else executor
    assert result.executor == ("optimum-intel" if library == "ipex" else "transformers+torch")
    assert (result.stop_reason, result.assisted, result.draft.rounds) == ("length", False, None)
    assert result.ttft_s is not None
    assert result.tokens_per_s is not None
    assert (result.times.target.load_s or 0) > 0
    assert (result.times.target.eval_s, result.times.target.choose_s, result.times.assistant.load_s) == (None,) * 3


def test_assisted_equals_plain_and_counts(tmp_path: Path, executor: str) -> None:
    """A copy of the target as its assistant: same tokens, fewer passes, drafted and accepted counted."""
    model, tokenizer = save(tmp_path)
    ours = ipex_assist.load(str(tmp_path), assistant=str(tmp_path), precision="fp32", executor=executor)
    result = ours.generate(PROMPT, max_new_tokens=16, num_assistant_tokens=3)
    assert result.tokens == reference(model, tokenizer, 16)
    assert result.assisted
    assert result.draft.rounds is not None
    assert result.draft.rounds < 10
    assert result.draft.accepted is not None
    assert 0 < result.draft.accepted <= (result.draft.drafted or 0)


def test_counts_do_not_depend_on_when_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that wakes late found the counter of later passes: drafted tokens went missing, accepted ones not."""

    class Late(queue.Queue):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            item = super().get(*args, **kwargs)
            time.sleep(0.02)
            return item

    save(tmp_path)
    ours = ipex_assist.load(str(tmp_path), assistant=str(tmp_path), precision="fp32", executor="torch")
    prompt_reader = ours.generate(PROMPT, max_new_tokens=16).draft
    monkeypatch.setattr(transformers_model.queue, "Queue", Late)
    late = ours.generate(PROMPT, max_new_tokens=16).draft
    assert late == prompt_reader
    assert late.drafted is not None
    assert late.accepted is not None
    assert 0 < late.accepted <= late.drafted


def test_number_of_drafted_tokens_is_of_one_generation_only(tmp_path: Path) -> None:
    """transformers keeps it in the model; the next generation without the option must draft as the first did."""
    save(tmp_path)
    ours = ipex_assist.load(str(tmp_path), assistant=str(tmp_path), precision="fp32", executor="torch")
    assert isinstance(ours, transformers_model.TransformersModel)
    assert ours.assistant is not None
    config = ours.assistant.generation_config
    before = config.num_assistant_tokens, config.num_assistant_tokens_schedule
    ours.generate(PROMPT, max_new_tokens=4, num_assistant_tokens=2)
    assert config.num_assistant_tokens == 2
    ours.generate(PROMPT, max_new_tokens=4)
    assert (config.num_assistant_tokens, config.num_assistant_tokens_schedule) == before


def test_stream_ends_at_a_stop_string_and_frees_the_thread(tmp_path: Path) -> None:
    """The consumer stops; generate must stop too, and a second generation must work."""
    save(tmp_path)
    ours = ipex_assist.load(str(tmp_path), assistant=None, precision="fp32", executor="torch")
    whole = ours.generate(PROMPT, max_new_tokens=24).text
    stop = whole[5:7]
    result = ours.generate(PROMPT, max_new_tokens=24, stop=[stop])
    assert result.stop_reason == "stop"
    assert result.text == whole[: whole.index(stop)]
    assert ours.generate(PROMPT, max_new_tokens=24).text == whole


def test_interrupt_keeps_the_text_so_far(tmp_path: Path) -> None:
    """Ctrl-C ends the text and keeps what there is of it."""
    save(tmp_path)
    ours = ipex_assist.load(str(tmp_path), assistant=None, precision="fp32", executor="torch")
    generation = ours.stream(PROMPT, max_new_tokens=30)
    for _ in range(3):
        next(generation)
    generation.interrupt()
    result = generation.result()
    assert (result.stop_reason, result.new_tokens) == ("interrupted", 3)


def test_context_is_respected(tmp_path: Path) -> None:
    """The limit of the context ends the text; a prompt beyond it is refused with numbers."""
    save(tmp_path)
    ours = ipex_assist.load(str(tmp_path), assistant=None, precision="fp32", executor="torch")
    result = ours.generate([5] * 60, max_new_tokens=30)
    assert (result.stop_reason, result.new_tokens) == ("context", 4)
    with pytest.raises(UsageError, match=r"70 tokens.*holds 64.*at least 7"):
        ours.generate([5] * 70)


def test_precisions_transformers_lacks(tmp_path: Path) -> None:
    """int8 exists on our executors only."""
    save(tmp_path)
    with pytest.raises(UsageError, match="int8"):
        ipex_assist.load(str(tmp_path), assistant=None, precision="int8", executor="ipex" if HAS_IPEX else "torch")


def test_unknown_everywhere(tmp_path: Path) -> None:
    """An architecture nobody has: our list, and the fallback's name."""
    save(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("GPT2LMHeadModel", "NoSuchForCausalLM").replace('"gpt2"', '"no-such"'))
    with pytest.raises(IpexAssistError, match=r"NoSuchForCausalLM.*LlamaForCausalLM.*AutoModelForCausalLM"):
        ipex_assist.load(str(tmp_path), assistant=None, precision="fp32", executor="torch")


@pytest.mark.parametrize("assisted", [False, True])
def test_logits_that_are_no_numbers(assisted: bool, tmp_path: Path) -> None:
    """transformers takes token 0 where all logits are NaN; here it is an error, and the next text is right."""
    save(tmp_path)
    assistant = str(tmp_path) if assisted else None
    ours = ipex_assist.load(str(tmp_path), assistant=assistant, precision="fp32", executor="torch")
    before = ours.generate([1, 2, 3], max_new_tokens=4).tokens
    with torch.no_grad():
        ours.target.transformer.wpe.weight[10] = torch.nan  # type: ignore[attr-defined]
    for options in ({}, {"do_sample": True}):
        # A pass over drafts meets it some tokens earlier.
        with pytest.raises(LogitsError, match=r"the model computed NaN or infinity .* after ([4-9]|1\d) tokens"):
            ours.generate([1, 2, 3], max_new_tokens=12, **options)
    assert ours.generate([1, 2, 3], max_new_tokens=4).tokens == before


OVERLAPPING: list[dict[str, Any]] = [
    {"seed": 1, "num_assistant_tokens": 2},
    {"seed": 2, "num_assistant_tokens": 5},
    {"seed": 1, "num_assistant_tokens_schedule": "heuristic"},
    {"seed": 3, "assisted": False},
]


@pytest.fixture
def drawn(tmp_path: Path) -> Callable[[dict[str, Any]], Generation]:
    """Begin a drawn text on a pair of models, by its options."""
    save(tmp_path / "target")
    save(tmp_path / "assistant", seed=1)
    names = str(tmp_path / "target"), str(tmp_path / "assistant")
    model = ipex_assist.load(*names, precision="fp32", executor="torch")
    return lambda options: model.stream(PROMPT, max_new_tokens=12, do_sample=True, **options)


def finished(generation: Generation) -> tuple[list[int], DraftResult]:
    """The tokens to its end, and what was drafted for them."""
    for _ in generation:
        pass
    result = generation.result()
    return result.tokens, result.draft


def test_texts_that_overlap_are_as_alone(drawn: Callable[[dict[str, Any]], Generation]) -> None:
    """Alternately in one thread, and in several threads: catches shared draft settings, counts, and random numbers."""
    alone = [finished(drawn(options)) for options in OVERLAPPING]
    assert len({tuple(tokens) for tokens, _ in alone}) > 1
    streams = [drawn(options) for options in OVERLAPPING]
    for _ in itertools.zip_longest(*streams):
        pass
    assert [finished(stream) for stream in streams] == alone
    with ThreadPoolExecutor(len(OVERLAPPING)) as threads:
        assert list(threads.map(lambda options: finished(drawn(options)), OVERLAPPING)) == alone


@pytest.mark.parametrize("options", OVERLAPPING)
def test_the_global_generator_is_the_callers(
    drawn: Callable[[dict[str, Any]], Generation], options: dict[str, Any]
) -> None:
    """A text does not change what the caller draws, and what the caller draws meanwhile does not change the text."""
    alone = finished(drawn(options))
    torch.manual_seed(5)
    expected = torch.rand(12).tolist()
    torch.manual_seed(5)
    stream, ours = drawn(options), []
    for _ in stream:
        ours.append(float(torch.rand(())))
    assert finished(stream) == alone
    assert ours == expected[: len(ours)]
    assert ours


def test_a_reader_that_leaves_before_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a text that still waits for another one at once, and not when that has ended."""

    class Interrupted(queue.Queue):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    save(tmp_path)
    model = ipex_assist.load(str(tmp_path), assistant=None, precision="fp32", executor="torch")
    assert isinstance(model, transformers_model.TransformersModel)
    monkeypatch.setattr(transformers_model.queue, "Queue", Interrupted)
    with model._generating, pytest.raises(KeyboardInterrupt):
        next(model.stream(PROMPT, max_new_tokens=4))
    monkeypatch.undo()
    assert model.generate(PROMPT, max_new_tokens=4).new_tokens == 4


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_integers_that_nothing_scales_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """transformers makes floats of them: a model that answers nonsense. A mask of integers is no weight."""
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ipex_assist.load(tmp_path, None, precision="fp32")
    name = "transformer.h.0.mlp.c_fc.weight"
    tensors[name] = (tensors[name] * 50).to(dtype)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(IpexAssistError, match=rf"{name} \(\w+\) cannot be read: its numbers are not weights"):
        ipex_assist.load(tmp_path, None, precision="fp32")
