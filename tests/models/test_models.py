"""Every architecture and variant against transformers, in fp32: a wrong spec, mapping, norm or rotation shows here."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from conftest import EXECUTORS, HAS_NATIVE

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import ARCHITECTURES, architecture_of, find
from ipex_assist.models.common import rope
from ipex_assist.models.config import Config, NotComputed

TOLERANCE = 1e-4
DEFAULT = "native" if HAS_NATIVE else "torch"
CHUNKED = ["llama", "opt-350m", "gpt-bigcode", "mistral-window"]
PROMPT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31, 90, 55, 2, 71, 118, 29]


def hf_logits(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def hf_steps(model, prompt: list[int], following: list[int]) -> torch.Tensor:
    """Logits of transformers' cached steps, one token a call; of whole prompts where it makes no cache by itself."""
    rows = []
    with torch.no_grad():
        out = model(torch.tensor([prompt]), use_cache=True)
        # "cache" of all models from transformers 5.24 on; before it Mamba's name and everybody else's.
        name = next((name for name in ("cache", "cache_params", "past_key_values") if name in out), None)
        if name is None:  # Falcon-H1 before 5
            return hf_logits(model, [*prompt, *following])[len(prompt) :]
        for place, token in enumerate(following, len(prompt)):
            # Without them Bamba begins at 0 in each call, and Mamba before 5 makes none.
            positions = {"position_ids": torch.tensor([[place]])} if model.config.model_type == "bamba" else {}
            positions |= {"cache_position": torch.tensor([place])} if name == "cache_params" else {}
            out = model(torch.tensor([[token]]), **{name: out[name]}, use_cache=True, **positions)
            rows.append(out.logits[0, -1])
    return torch.stack(rows)


# Variants with a kind of layer of their own; the others differ from these by names alone, and run on one executor.
KINDS = [
    *(variant for variant in tiny_models.VARIANTS if variant not in tiny_models.FAMILIES),
    *("phi3-longrope", "granite", "olmo2", "smollm3", "phi", "gemma2", "gemma3", "bloom", "cohere-norms", "glm4"),
    *("qwen2-moe", "granitemoe", "gpt-oss", "qwen3-moe-dense-first", "qwen2-moe-every-second"),
    *tiny_models.known("glm4-moe", "minimax-m2", "ernie4-5-moe", "lfm2-biases", "lfm2-moe"),
    *tiny_models.known("granite-hybrid-moe", "bamba", "nemotron-h", "nemotron-h-moe", "mamba2-biases"),
    *tiny_models.known("apertus", "arcee", "exaone-moe", "hunyuan", "hunyuan-moe", "ministral3", "phimoe"),
    *tiny_models.known("mistral3", "olmo-hybrid", "olmo-hybrid-rope", "qwen3.5-published"),
    *tiny_models.known("qwen3-vl", "qwen3-vl-moe"),
    *tiny_models.known("deepseek-v2", "deepseek-v3-direct", "gemma4", "gemma4-moe", "gemma4-everything"),
    *tiny_models.known("kimi-linear", "llama4", "llama4-plain", "falcon-h1", "jamba", "jamba-biases"),
    *tiny_models.known("mamba", "mamba-biases", "falcon-mamba", "falcon-mamba-biases", "recurrent-gemma", "gemma3n"),
    *tiny_models.known(
        "laguna-values",
        "nanochat-biases",
        "mistral4",
        "granite-swa",
        "minicpm3",
        "nemotron",
        "lfm3",
        "laguna",
        "cohere2-moe",
        "apertus1p5-text",
        "apertus1p5",
        "longcat-flash",
        "longcat-flash-yarn",
        "axk1",
        "mimo-v2-flash",
        "step3p7",
        "bailing-hybrid",
        "bailing-hybrid-row",
        "glm5-next",
        "glm5-next-many",
        "zamba2",
        "zamba2-one-block",
        "zamba2-adapted",
    ),
]


CASES = [
    (variant, executor)
    for variant in tiny_models.VARIANTS
    for executor in (EXECUTORS if variant in KINDS else [DEFAULT])
]


@functools.cache
def saved(variant: str) -> tuple[Path, Any]:
    """A tiny model of this variant and its folder, for all tests of this file."""
    if variant in ("qwen2-vl", "qwen2.5-vl") and transformers.__version__ < "5":
        pytest.skip("transformers 4 looks for the start of images in every prompt, by an id that this config lacks")
    folder = tempfile.TemporaryDirectory()
    _folders.append(folder)  # it is removed with its owner
    return Path(folder.name), tiny_models.save(Path(folder.name), variant)


_folders: list[object] = []


@pytest.mark.parametrize(("variant", "executor"), CASES)
def test_logits_equal_transformers(variant: str, executor: str) -> None:
    """Prompt pass, single steps and a pass of several rows, each within 1e-4 of the reference."""
    folder, model = saved(variant)
    text = tiny_models.text(folder, executor)
    following = [88, 14, 3, 3, 127, 60, 11]

    expected = hf_logits(model, PROMPT)
    tolerance = TOLERANCE * min(1.0, float(expected.abs().max()))
    prompt = text.forward(PROMPT, last=len(PROMPT))
    torch.testing.assert_close(prompt.float(), expected, atol=tolerance, rtol=0)

    reference = hf_steps(model, PROMPT, following)
    steps = torch.cat([text.forward([token]) for token in following])
    torch.testing.assert_close(steps, reference, atol=tolerance, rtol=0)

    text.truncate(len(PROMPT))
    together = text.forward(following, last=len(following))
    assert torch.equal(together, steps), "rows beside it changed a row's bits"


@pytest.mark.parametrize("variant", tiny_models.VARIANTS)
def test_greedy_tokens_equal_transformers(variant: str) -> None:
    """24 tokens by our cache and by transformers' generate."""
    folder, model = saved(variant)
    text = tiny_models.text(folder, DEFAULT, exact=False)
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


@pytest.mark.parametrize("variant", [*CHUNKED, "llama-dynamic", "phi3-longrope", "gemma3", "bloom"])
def test_prompt_in_chunks_equals_prompt_at_once(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt longer than a chunk: masks, positions and the prompt-long rotations across the seam."""
    folder, model = saved(variant)
    prompt = (PROMPT * 3)[:50]
    monkeypatch.setattr("ipex_assist.executors.torch.model.PROMPT_CHUNK", 19)
    text = tiny_models.text(folder)
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
    with pytest.raises(NotComputed, match=r"spiral.*known: default, linear"):
        rope(Config({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}))
    with pytest.raises(NotComputed, match=r"quick_gelu.*known:.*gelu_new"):
        ARCHITECTURES["OPTForCausalLM"].spec(tiny_models.VARIANTS["opt"] | {"activation_function": "quick_gelu"})


def test_a_text_of_longrope_turns_one_way() -> None:
    """What was computed by the short factors does not go on by the long ones: such a text ends."""
    config = json.loads((saved("phi3-longrope")[0] / "config.json").read_text())
    spec = ARCHITECTURES["Phi3ForCausalLM"].spec(config)
    assert [spec.context_for(tokens) for tokens in (3, 16, 17)] == [16, 16, 128]
    assert spec.context_length == 128


def test_unknown_architecture_is_none() -> None:
    """The caller then turns to transformers' own code."""
    assert find("XGLMForCausalLM") is None
    assert find(None) is None


def test_first_names_of_architectures() -> None:
    """Phi-3.5-MoE and K-EXAONE were published with code of their own, whose class is named otherwise."""
    assert find("PhiMoEForCausalLM") is find("PhimoeForCausalLM") is not None
    assert find("ExaoneMoEForCausalLM") is find("ExaoneMoeForCausalLM") is not None
    assert find("BailingMoeV3ForCausalLM") is find("BailingHybridForCausalLM") is not None
    assert find("KimiK25ForConditionalGeneration") is find("Kimi_K25ForConditionalGeneration") is not None


def test_names_of_classes_that_run_other_models() -> None:
    """transformers writes the class that runs EXAONE 3 there, which is Llama's, whose tensors have other names."""
    assert architecture_of({"architectures": ["LlamaForCausalLM"], "model_type": "exaone"}) == "ExaoneForCausalLM"
    assert architecture_of({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}) == "LlamaForCausalLM"
    assert architecture_of({"architectures": "LlamaForCausalLM"}) == architecture_of({}) == ""


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


def test_python_without_docstrings_has_the_table():
    """`python -OO` drops docstrings, of which the models' first lines are data."""
    code = "from ipex_assist.models import ARCHITECTURES as a; print(a['LlamaForCausalLM'].about)"
    run = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    assert (run.stdout.startswith("Llama, Llama 2"), run.stderr) == (True, "")
