"""What a caller from Python sees: signatures, errors for wrong types, and how results look when they are printed."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import threading
from pathlib import Path
from typing import Any, get_args

import checkpoint_files
import numpy
import pytest
import torch

import ipex_assist
from ipex_assist import GenerationOptions, LoadOptions, UsageError, api
from ipex_assist.executors.registry import EXECUTORS, ExecutorName
from ipex_assist.generation.text_model import TextModel
from ipex_assist.quantization.precision import KV_PRECISIONS, PRECISIONS, KvPrecision, Precision

pytestmark = pytest.mark.one_stack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """A tiny pair, loaded by a path."""
    folder = checkpoint_files.save_pair(tmp_path_factory.mktemp("api"))
    return ipex_assist.load(
        folder / "target", folder / "assistant", precision="fp32", executor="torch", calibrate=False
    )


def test_load_takes_the_fields_of_its_options() -> None:
    """By their names, with their defaults: an option that is added to one is added to the other."""
    taken = {name: each.default for name, each in inspect.signature(ipex_assist.load).parameters.items()}
    fields = {each.name: each.default for each in dataclasses.fields(LoadOptions)}
    assert taken.pop("target") is inspect.Parameter.empty
    assert fields.pop("target") is None
    assert taken == fields
    assert all(f"\n    {name}: " in (ipex_assist.load.__doc__ or "") for name in fields)


def test_all_fields_reach_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is forgotten on the way, and an object's fields load what the object says."""
    asked: list[Any] = []
    monkeypatch.setattr(api, "load_by", asked.append)
    options = LoadOptions(
        target="a/b",
        assistant="lookup",
        precision="int4",
        assistant_precision="int8",
        universal=True,
        draft_vocabulary=512,
        draft_threads=2,
        draft_corpus="notes.txt",
        draft_history=1 << 20,
        recalibrate=True,
        executor="torch",
        kv_memory=1 << 30,
        kv_precision="int8",
        resident=1 << 40,
        lora=("sql=adapters/sql",),
        lora_by_default=True,
        kv_share=0.5,
        cache_packed=False,
        allow_special_tokens=True,
        generation_config="none",
        revision="main",
        offline=True,
        progress=True,
        quick_start=True,
        calibrate=False,
    )
    assert options.changed().keys() == {each.name for each in dataclasses.fields(LoadOptions)}
    ipex_assist.load(**options.as_dict())
    ipex_assist.load(Path("a/b"), None, kv_memory="1G", lora={"sql": Path("adapters/sql")})
    named = ("sql=adapters/sql",)
    assert asked == [options, LoadOptions(target="a/b", assistant="none", kv_memory=1 << 30, lora=named)]


def test_the_names_of_types_are_those_of_the_tables() -> None:
    """A precision that is added is one for type checkers, too."""
    assert get_args(Precision) == PRECISIONS
    assert get_args(KvPrecision) == KV_PRECISIONS
    assert get_args(ExecutorName) == ("auto", *EXECUTORS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"target": 7}, "target 7: must be a text"),
        ({"target": None}, "target: which model"),
        ({"target": "x", "assistant": ["y"]}, r"assistant \['y'\]: must be a text"),
        ({"target": "x", "precision": 8}, "precision 8: must be one of bf16, fp32"),
        ({"target": "x", "universal": "yes"}, "universal 'yes': must be true or false"),
        ({"target": "x", "draft_threads": 2.5}, r"draft_threads 2\.5: must be a whole number"),
        ({"target": "x", "kv_memory": 1.5}, r"kv_memory 1\.5: must be a number of bytes"),
    ],
)
def test_wrong_types_for_load(wrong: dict[str, Any], said: str) -> None:
    """The option, what was given, and what it must be."""
    with pytest.raises(UsageError, match=said):
        ipex_assist.load(**wrong)


def test_wrong_types_for_generate(model: TextModel) -> None:
    """A dictionary in the place of options was a TypeError about replace() and dataclasses."""
    options: Any = {"max_new_tokens": 3}
    with pytest.raises(UsageError, match=r"options is of type dict: give GenerationOptions\("):
        model.generate("the fox", options)
    with pytest.raises(UsageError, match="max_new_tokens '3': must be a whole number"):
        model.generate("the fox", max_new_tokens="3")


def test_what_is_printed(model: TextModel) -> None:
    """A result that is looked at in a notebook: a line with what one wants to know, not all token ids."""
    generation = model.stream("the fox", GenerationOptions(max_new_tokens=24, num_assistant_tokens=2))
    assert repr(generation).startswith("Generation(running, new_tokens=0, text=''")
    chunk = next(generation)
    assert repr(chunk) == f"Chunk(text={chunk.text!r}, tokens={chunk.tokens}, accepted=0 of 0)"
    for _ in generation:
        pass
    result = generation.result()
    shown = repr(result)
    assert shown.startswith("Result(text=")
    assert f"new_tokens={result.new_tokens}, " in shown
    assert f"stop_reason='{result.stop_reason}'" in shown
    assert "tokens=[" not in shown
    assert "\n" not in shown
    assert len(shown) < 500
    assert repr(model).startswith("AssistedModel(target=")
    assert "precision='fp32', assistant_precision='fp32', executor='torch'" in repr(model)


def test_everything_exported_is_there() -> None:
    """Also in dir(), by which notebooks complete names."""
    assert all(hasattr(ipex_assist, name) for name in ipex_assist.__all__)
    assert set(ipex_assist.__all__) <= set(dir(ipex_assist))


def test_a_model_in_a_with_block(tmp_path: Path) -> None:
    """Its background thread ends with the block; catches a model that has close() and cannot stand there."""
    folder = checkpoint_files.save_pair(tmp_path)
    with ipex_assist.load(folder / "target", None, precision="fp32", executor="torch", calibrate=False) as loaded:
        loaded.start()
        assert loaded.generate("fox", max_new_tokens=2).new_tokens == 2
        running = threading.active_count()
    assert threading.active_count() < running


def test_an_empty_prompt_names_no_flag(model: TextModel) -> None:
    """Catches a message of the command line, with flags that Python does not have."""
    with pytest.raises(UsageError, match="prompt is empty") as error:
        model.generate("")
    assert "--" not in str(error.value)


# --- as those who know transformers or vLLM type it


def test_numbers_and_arrays_of_numpy(model: TextModel) -> None:
    """Would catch np.int64 that is refused, and input_ids of two dimensions."""
    expected = model.generate([5, 6, 7], max_new_tokens=4).tokens
    assert model.generate([5, 6, 7], max_new_tokens=numpy.int64(4), temperature=numpy.float32(1)).tokens == expected
    for ids in (numpy.array([[5, 6, 7]]), torch.tensor([[5, 6, 7]])):
        assert [result.tokens for result in model.generate(ids, max_new_tokens=4)] == [expected]
        with model.stream(ids, max_new_tokens=4) as stream:
            assert [token for chunk in stream for token in chunk.tokens] == expected
    both = model.generate(torch.tensor([[5, 6, 7], [7, 6, 5]]), max_new_tokens=4)
    assert [result.tokens for result in both] == [expected, model.generate([7, 6, 5], max_new_tokens=4).tokens]
    with pytest.raises(UsageError):
        model.stream(torch.tensor([[5, 6, 7], [7, 6, 5]]))
    with pytest.raises(UsageError, match=r"give its \['input_ids'\]"):
        model.generate(model.tokenizer("a"))
    with pytest.raises(UsageError, match="max_new_tokens True"):
        model.generate([5], max_new_tokens=True)


def test_no_prompts_give_no_results(model: TextModel) -> None:
    assert model.generate([]) == []


def test_texts_of_one_call_have_the_speed_of_their_passes(model: TextModel) -> None:
    """The later ones of six had 87,186 tokens/s: their times were those of who read them."""
    results = model.generate([[5, 6 + number] for number in range(6)], max_new_tokens=24, ignore_eos=True)
    speeds = [result.tokens_per_s for result in results]
    assert max(speeds) < 20 * min(speeds)


def test_sampling_options_without_sampling_are_said(model: TextModel, caplog: pytest.LogCaptureFixture) -> None:
    """`temperature=0.7` alone decodes greedily, which vLLM's users do not expect."""
    greedy = model.generate([5, 6], max_new_tokens=4)
    caplog.clear()
    assert model.generate([5, 6], max_new_tokens=4, temperature=0.7, top_p=0.9).tokens == greedy.tokens
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["temperature", "top_p"]
    assert "no effect without do_sample=True" in caplog.text
    caplog.clear()
    model.generate([5, 6], max_new_tokens=4, temperature=0.7, do_sample=True, seed=1)
    assert not caplog.records


def test_a_model_cannot_be_pickled(model: TextModel) -> None:
    with pytest.raises(UsageError, match=r"cannot be pickled.*call load\(\) in each process"):
        pickle.dumps(model)


def test_a_stream_can_be_closed(model: TextModel) -> None:
    with model.stream([5, 6, 7], max_new_tokens=50) as stream:
        next(stream)
    assert stream.result().stop_reason == "interrupted"
    assert list(stream) == []
    stream.close()
