"""The table of default assistants: families, vocabularies, and never the target itself."""

from __future__ import annotations

import checkpoint_files
import pytest

import ipex_assist
from ipex_assist.checkpoints.hub import canonical_id
from ipex_assist.generation import resolved
from ipex_assist.speculative.sources.default_assistants import DEFAULT_ASSISTANTS, default_assistant, why_none

pytestmark = pytest.mark.one_stack


def _config(architecture: str, vocab_size: int, hidden_size: int, layers: int) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
    }


# Sizes from the models' config.json.
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (_config("OPTForCausalLM", 50272, 5120, 40), "facebook/opt-125m"),  # opt-13b
        (_config("OPTForCausalLM", 50272, 1024, 24), "facebook/opt-125m"),  # opt-350m
        (_config("OPTForCausalLM", 50272, 768, 12), None),  # opt-125m itself
        (_config("LlamaForCausalLM", 32000, 4096, 32), "TinyLlama/TinyLlama-1.1B-intermediate-step-715k-1.5T"),
        (_config("LlamaForCausalLM", 32016, 4096, 32), "TinyLlama/TinyLlama-1.1B-intermediate-step-715k-1.5T"),  # Code
        (_config("LlamaForCausalLM", 32000, 2048, 22), None),  # TinyLlama itself
        (_config("LlamaForCausalLM", 128256, 4096, 32), "meta-llama/Llama-3.2-1B"),  # Llama-3.1-8B
        (_config("LlamaForCausalLM", 128256, 2048, 16), None),  # Llama-3.2-1B itself
        (_config("LlamaForCausalLM", 49152, 2048, 24), "HuggingFaceTB/SmolLM2-135M-Instruct"),  # SmolLM2-1.7B
        (_config("LlamaForCausalLM", 49152, 576, 30), None),  # SmolLM2-135M itself
        (_config("LlamaForCausalLM", 64000, 4096, 32), None),  # Yi: no row for this vocabulary
        (_config("Qwen2ForCausalLM", 152064, 3584, 28), "Qwen/Qwen2.5-0.5B-Instruct"),  # Qwen2.5-7B
        (_config("Qwen2ForCausalLM", 151936, 896, 24), None),
        (_config("Qwen3ForCausalLM", 151936, 4096, 36), "Qwen/Qwen3-0.6B"),
        (_config("Qwen3MoeForCausalLM", 151936, 2048, 48), "Qwen/Qwen3-0.6B"),
        (_config("Qwen2MoeForCausalLM", 151936, 2048, 24), "Qwen/Qwen2.5-0.5B-Instruct"),
        (_config("PhiForCausalLM", 51200, 2560, 32), "microsoft/phi-1_5"),
        (
            {
                "architectures": ["Qwen3_5ForConditionalGeneration"],
                "text_config": {"vocab_size": 248320, "hidden_size": 4096, "num_hidden_layers": 32},
            },
            "Qwen/Qwen3.5-0.8B",
        ),  # Qwen3.5-9B
        (_config("Gemma4ForConditionalGeneration", 262144, 5376, 60), "google/gemma-4-E2B-it"),  # gemma-4-31B
        (_config("Gemma4ForConditionalGeneration", 262144, 2816, 30), None),  # 26B-A4B: as many layers, few are read
        (_config("Gemma4ForConditionalGeneration", 262144, 2560, 42), None),  # E4B
        (
            {
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": {"hidden_size": 5376, "num_hidden_layers": 62},
            },
            "google/gemma-3-270m-it",
        ),  # gemma-3-27b, whose config leaves its vocabulary to its family
        (_config("MambaForCausalLM", 50280, 2560, 64), "state-spaces/mamba-130m-hf"),  # mamba-2.8b-hf
        (_config("MambaForCausalLM", 50280, 768, 24), None),  # mamba-130m-hf itself
        (_config("FalconMambaForCausalLM", 65024, 4096, 64), None),
        (_config("MistralForCausalLM", 32000, 4096, 32), None),
        (_config("NobodysForCausalLM", 32000, 4096, 32), None),
        ({}, None),
    ],
)
def test_default_assistant(config, expected):
    assert default_assistant(config) == expected


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            _config("MistralForCausalLM", 32000, 4096, 32) | {"model_type": "mistral"},
            "no small model is known for mistral",
        ),
        (
            _config("LlamaForCausalLM", 64000, 4096, 32) | {"model_type": "llama"},
            "those of llama have other vocabularies",
        ),
        (_config("LlamaForCausalLM", 49152, 576, 30), "not twice as large as HuggingFaceTB/SmolLM2-135M-Instruct"),
        ({}, "no small model is known for this architecture"),
    ],
)
def test_why_there_is_none(config, said):
    """A family that `ipex-assist models` lists with an assistant was said to have none."""
    assert said in why_none(config)


@pytest.mark.parametrize("lookup", ["auto", "auto-lookup"])
def test_lookup_drafts_where_the_default_cannot_be_had(lookup, tmp_path, monkeypatch, caplog):
    """The hub cannot be reached, and nothing is in the cache: one short line, and drafts without a model."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path)
    monkeypatch.setattr(resolved, "default_assistant", lambda *_: "someone/small")
    model = ipex_assist.load(str(folder), lookup, precision="fp32", executor="torch", calibrate=False)
    assert (model.identity.assistant, model.drafting.possible) == ("lookup", True)
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "someone/small is not on this machine, so lookup drafts (copies from the text); run once without HF" in said
    assert said.endswith(", or give --assistant-model FOLDER")
    assert len(said) < 200


def test_gpt_bigcode_has_its_own_keys():
    """Would catch sizes read by Llama's key names only."""
    config = {"architectures": ["GPTBigCodeForCausalLM"], "vocab_size": 49152, "n_embd": 6144, "n_layer": 40}
    assert default_assistant(config) == "bigcode/tiny_starcoder_py"
    assert default_assistant(config | {"n_embd": 768, "n_layer": 20}) is None


def test_code_models_get_the_code_sibling():
    config = _config("Qwen2ForCausalLM", 151936, 1536, 28)
    assert default_assistant(config, "Qwen/Qwen2.5-Coder-1.5B") == "Qwen/Qwen2.5-Coder-0.5B-Instruct"


@pytest.mark.parametrize("architecture", DEFAULT_ASSISTANTS)
def test_no_row_assists_itself(architecture):
    for row in DEFAULT_ASSISTANTS[architecture]:
        for vocab_size in row.vocab_sizes:
            assert default_assistant(_config(architecture, vocab_size, row.hidden_size, row.num_hidden_layers)) is None


def test_the_former_home_of_tinyllama():
    assert canonical_id("PY007/TinyLlama-1.1B-Chat-v0.3") == "TinyLlama/TinyLlama-1.1B-Chat-v0.3"
    assert canonical_id("PY007/other") == "PY007/other"
    assert canonical_id("PY007") == "PY007"
    assert canonical_id("./PY007/TinyLlama") == "./PY007/TinyLlama"
