"""NaN and infinity never become a text: weights that hold them are refused, logits that hold them end the request."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE, PRECISIONS
from decoding import PROMPT, run, tokens_of
from drafts import ScriptedDraft
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.perplexity import compare, perplexity, windows
from ipex_assist.commands.quantized_writer import write_rtn
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import LogitsError, Model, Rows
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.models import find
from ipex_assist.models.weights import NotFiniteError, check_numbers
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.sources.assistant_model import AssistantModel

# One of each kind: a matrix alone and one that shares its linear, a bias, a norm, and the tables.
WEIGHTS = [
    "model.layers.1.self_attn.v_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.1.self_attn.k_proj.bias",
    "model.layers.0.input_layernorm.weight",
    "model.norm.weight",
    "model.embed_tokens.weight",
    "lm_head.weight",
]


SAMPLINGS = [Sampling(), Sampling(do_sample=True, top_k=5, seed=1), Sampling(repetition_penalty=1.3)]
# Which sampling it is matters to no executor: each is asked of the fastest, greedy of all.
KINDS = [
    pytest.param(
        *kind, sampling, id=f"{name}-{'-'.join(kind)}", marks=[pytest.mark.full] * (kind[0] != "native" and i > 0)
    )
    for i, (name, sampling) in enumerate(zip(("greedy", "sampled", "penalty"), SAMPLINGS, strict=True))
    for kind in PRECISIONS
]


def change(folder: Path, name: str, place: tuple[int, ...], value: float) -> None:
    """Put `value` into one place of a checkpoint's tensor."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name][place] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


# ---- weights


@pytest.mark.parametrize(("executor", "precision"), PRECISIONS)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers(executor: str, precision: str, name: str, value: float, tmp_path: Path) -> None:
    """int4 made a group of zeros of NaN, int8 a large number: the text was as fluent as it was wrong."""
    tiny_models.save(tmp_path, "qwen2")
    matrix = name.endswith("weight") and "norm" not in name
    change(tmp_path, name, (13, 7) if matrix else (13,), value)
    with pytest.raises(IpexAssistError) as caught:
        tiny_models.model(tmp_path, executor, precision)
    what = "NaN" if value != value else "infinity"
    assert str(caught.value).startswith(f"{tmp_path}: {name} holds {what} in row 13{', column 7' if matrix else ''}, ")
    assert "Download it again" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2])
def test_every_type_of_tensor_is_looked_at(dtype: torch.dtype) -> None:
    """Wherever the value is, and in types that torch's own minimum and maximum do not know."""
    tensor = torch.ones(5, 40).to(dtype)
    check_numbers("weight", tensor)
    check_numbers("empty", tensor[:0])
    with pytest.raises(NotFiniteError, match="scalar holds NaN, which"):
        check_numbers("scalar", torch.tensor(torch.nan))
    check_numbers("whole numbers", torch.ones(3, dtype=torch.int32))
    for place in ((0, 0), (2, 17), (4, 39)):
        for value, said in ((float("nan"), "NaN"), (float("-inf"), "infinity")):
            bad = torch.ones(5, 40)
            bad[place] = value
            with pytest.raises(IpexAssistError, match=f"weight holds {said} in row {place[0]}, column {place[1]}, "):
                check_numbers("weight", bad.to(dtype))


def test_quantize_refuses_what_is_no_number(tmp_path: Path) -> None:
    """It wrote a checkpoint that was "off by nan%"."""
    tiny_models.save(tmp_path / "plain", "llama")
    change(tmp_path / "plain", "model.layers.0.self_attn.q_proj.weight", (3, 9), float("nan"))
    checkpoint = open_checkpoint(str(tmp_path / "plain"))
    architecture = find(checkpoint.architecture)
    assert architecture is not None
    with pytest.raises(IpexAssistError, match=r"plain: model\..*\.q_proj\.weight holds NaN in row 3, column 9"):
        write_rtn(checkpoint, architecture, tmp_path / "int4", 32, sym=True)
    assert not (tmp_path / "int4").exists()


# ---- logits

POISON = 7  # a token whose rows become NaN


def poisoned(folder: Path, executor: str, precision: str, variant: str = "llama") -> Model:
    """A model in which POISON, which it never chooses, has an embedding whose squares are no numbers any more."""
    tiny_models.save(folder, variant)
    change(folder, "lm_head.weight", (POISON,), 0.0)
    change(folder, "model.embed_tokens.weight", (POISON,), 3e38)
    model = tiny_models.model(folder, executor, precision)
    if isinstance(model, TorchModel):  # PyTorch makes zeros of it
        model.weights.embed_tokens = model.weights.embed_tokens.clone()
        model.weights.embed_tokens[POISON] = torch.nan
    return model


@pytest.mark.parametrize(("executor", "precision", "sampling"), KINDS)
def test_a_request_fails_and_the_next_one_is_right(
    executor: str, precision: str, sampling: Sampling, tmp_path: Path
) -> None:
    """All logits NaN were token 0."""
    model = poisoned(tmp_path, executor, precision)
    expected = {length: tokens_of(run(model, prompt=PROMPT[:length], sampling=sampling)) for length in (2, 20)}
    for place in (0, 1, 19):
        bad = [*PROMPT * 2][:40]
        bad[place] = POISON
        for prompt in (bad, bad[: place + 1]):
            with pytest.raises(LogitsError, match=f"the target computed NaN or infinity .* after {len(prompt)} tokens"):
                run(model, prompt=prompt, sampling=sampling)
            for length, tokens in expected.items():
                assert tokens_of(run(model, prompt=PROMPT[:length], sampling=sampling)) == tokens


@pytest.mark.parametrize(("executor", "precision"), PRECISIONS)
def test_a_sequence_is_used_again(executor: str, precision: str, tmp_path: Path) -> None:
    """Rows of NaN after a text's end made NaN of every later text in the same memory: zero times NaN is NaN."""
    model = poisoned(tmp_path, executor, precision)
    fresh, used = (tiny_models.Text(model) for _ in range(2))
    assert bool(used.forward([*PROMPT * 2, POISON, *PROMPT]).isnan().all())
    for prompt in ([3], PROMPT[:4], PROMPT):
        for text in (fresh, used):
            text.truncate(0)
        assert torch.equal(used.forward(prompt), fresh.forward(prompt))
        assert torch.equal(used.forward([9, 8, 6], last=3), fresh.forward([9, 8, 6], last=3))
    if executor == "native":  # in PyTorch's attention such a row is in the sums of its neighbours
        start = used.length
        used.forward([5, POISON, POISON, POISON])
        used.truncate(start)
        assert torch.equal(used.forward([6, 4], last=2), fresh.forward([6, 4], last=2))


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core does not run here")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalty"])
def test_a_rejected_draft_of_no_numbers_does_not_show(precision: str, sampling: Sampling, tmp_path: Path) -> None:
    """Plain decoding never meets these rows, so that assisted decoding must not fail or change by them."""
    model = poisoned(tmp_path, "native", precision)
    plain = tokens_of(run(model, sampling=sampling))
    assert POISON not in plain
    draft = ScriptedDraft([POISON] * 100, lambda _: False, tiny_models.VOCAB)
    rounds = run(model, draft, 5, sampling=sampling)
    assert sum(round_.drafted for round_ in rounds) > 50
    if not sampling.do_sample:
        assert tokens_of(rounds) == plain


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core does not run here")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_a_row_without_numbers_has_no_experts_to_choose(precision: str, tmp_path: Path) -> None:
    """A router that compares NaN finds experts whose output is a number; rows beside it have their bits."""
    model = poisoned(tmp_path, "native", precision, "qwen3-moe")
    for count in (3, 20):  # few rows and many
        expected = model.extend(model.new_sequence(60), PROMPT, len(PROMPT))
        beside, good = model.new_sequence(60), model.new_sequence(60)
        logits = model.forward([Rows(beside, [POISON] * count, count), Rows(good, PROMPT, len(PROMPT))])
        assert bool(logits[:count].isnan().all())
        assert torch.equal(logits[count:], expected)


@pytest.mark.parametrize(("executor", "precision", "sampling"), KINDS)
def test_an_assistant_without_numbers(executor: str, precision: str, sampling: Sampling, tmp_path: Path) -> None:
    """Its draft would be token 0 with a probability of NaN; the message says which of the two models it is."""
    model = poisoned(tmp_path, executor, precision)
    source = AssistantModel(model, sampling, tiny_models.VOCAB)
    for text in ([*PROMPT, POISON], [3, POISON, 5]):
        with pytest.raises(LogitsError, match=f"the assistant computed NaN or infinity .* after {len(text)} tokens"):
            source.propose(text, 4)
        source.rewind(0)
        assert len(source.propose(PROMPT, 4).tokens) == 4
        source.rewind(0)


@pytest.mark.parametrize(("executor", "precision"), PRECISIONS)
def test_no_perplexity_of_nan(executor: str, precision: str, tmp_path: Path) -> None:
    """`eval` printed nan, and two models that both gave nan agreed by 0 %."""
    model = poisoned(tmp_path, executor, precision)
    text = [*PROMPT, *PROMPT, POISON, *PROMPT]
    # In PyTorch's attention a row of NaN is in the sums of all rows that pass with it.
    place = 41 if executor == "native" else 1
    with pytest.raises(LogitsError, match=f"the model computed NaN or infinity .* after {place} tokens"):
        perplexity(model, text, windows(len(text), 96, 48))
    with pytest.raises(LogitsError, match=f"after {place} tokens"):
        compare(model, model, text, windows(len(text), 96, 48))
    assert perplexity(model, PROMPT, windows(len(PROMPT), 96, 48)).perplexity > 1
