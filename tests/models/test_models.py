"""Every architecture and variant against transformers, in fp32: a wrong spec, mapping, norm or rotation shows here."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import ARCHITECTURES, find
from ipex_assist.models.common import rope
from ipex_assist.models.config import Config, NotComputed

TOLERANCE = 1e-4
PROMPT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31, 90, 55, 2, 71, 118, 29]


def hf_logits(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def hf_steps(model, prompt: list[int], following: list[int]) -> torch.Tensor:
    """Logits of transformers' cached steps, one token a call."""
    rows = []
    with torch.no_grad():
        out = model(torch.tensor([prompt]), use_cache=True)
        for token in following:
            out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
            rows.append(out.logits[0, -1])
    return torch.stack(rows)


@pytest.mark.parametrize("variant", tiny_models.VARIANTS)
def test_logits_equal_transformers(variant: str, executor: str, tmp_path: Path) -> None:
    """Prompt pass, single steps and a pass of several rows, each within 1e-4 of the reference."""
    model = tiny_models.save(tmp_path, variant)
    text = tiny_models.text(tmp_path, executor)
    following = [88, 14, 3, 3, 127, 60, 11]

    prompt = text.forward(PROMPT, last=len(PROMPT))
    torch.testing.assert_close(prompt.float(), hf_logits(model, PROMPT), atol=TOLERANCE, rtol=0)

    reference = hf_steps(model, PROMPT, following)
    steps = torch.cat([text.forward([token]) for token in following])
    torch.testing.assert_close(steps, reference, atol=TOLERANCE, rtol=0)

    text.truncate(len(PROMPT))
    together = text.forward(following, last=len(following))
    assert torch.equal(together, steps), "rows beside it changed a row's bits"


@pytest.mark.parametrize("variant", tiny_models.VARIANTS)
def test_greedy_tokens_equal_transformers(variant: str, tmp_path: Path) -> None:
    """24 tokens by our cache and by transformers' generate."""
    model = tiny_models.save(tmp_path, variant)
    text = tiny_models.text(tmp_path)
    expected = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
    )[0, len(PROMPT) :].tolist()
    tokens = list(PROMPT)
    logits = text.forward(tokens)
    for _ in range(24):
        tokens.append(int(logits.argmax()))
        logits = text.forward(tokens[-1:])
    assert tokens[len(PROMPT) :] == expected


@pytest.mark.parametrize("variant", ["llama", "opt-350m", "gpt-bigcode", "mistral-window", "llama-dynamic"])
def test_prompt_in_chunks_equals_prompt_at_once(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt longer than a chunk: masks, positions and the prompt-long dynamic rotation across the seam."""
    model = tiny_models.save(tmp_path, variant)
    prompt = (PROMPT * 3)[:50]
    monkeypatch.setattr("ipex_assist.executors.torch_model.PROMPT_CHUNK", 19)
    text = tiny_models.text(tmp_path)
    logits = text.forward(prompt, last=len(prompt))
    torch.testing.assert_close(logits, hf_logits(model, prompt), atol=TOLERANCE, rtol=0)


def test_rope_of_old_and_new_configs() -> None:
    """transformers 4 wrote rope_theta and rope_scaling, 5 writes rope_parameters, old files say "type"."""
    new = rope(Config({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}))
    old = rope(Config({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}))
    assert new == old
    assert (new.theta, new.kind, new.scaling) == (5e5, "linear", {"factor": 2.0})


def test_what_we_do_not_compute_is_refused() -> None:
    """An unknown rope kind or activation must not silently become the default."""
    with pytest.raises(NotComputed, match=r"longrope.*known: default, linear"):
        rope(Config({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}))
    with pytest.raises(NotComputed, match=r"quick_gelu.*known:.*gelu_new"):
        ARCHITECTURES["OPTForCausalLM"].spec(tiny_models.VARIANTS["opt"] | {"activation_function": "quick_gelu"})


def test_unknown_architecture_is_none() -> None:
    """The caller then turns to transformers' own code."""
    assert find("FalconForCausalLM") is None
    assert find(None) is None


def test_missing_weight_is_named(tmp_path: Path) -> None:
    """A config that asks for more layers than the files hold."""
    tiny_models.save(tmp_path, "llama")
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(IpexAssistError, match=r"lacks 9 of 30 weights.*model\.layers\.2\."):
        tiny_models.model(tmp_path)


def test_wrong_shape_is_refused(tmp_path: Path) -> None:
    """A config of another model: the shapes are given, not a traceback of a matrix product."""
    tiny_models.save(tmp_path, "llama")
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 112'))
    with pytest.raises(IpexAssistError, match=r"\(96, 64\) in the checkpoint and \(112, 64\)"):
        tiny_models.model(tmp_path)
