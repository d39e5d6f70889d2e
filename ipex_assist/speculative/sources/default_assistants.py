"""Which small model or draft head assists a target when none is named: one row per family and vocabulary, or target.

Rows hold published models whose tokenizer is the family's, up to ids at the end; `share_vocabulary` compares the
tokens once both are loaded. Families without a row have no small published sibling that is known to help:
Mistral and Mixtral, Phi-4, Falcon, GLM-4 and its mixtures, SmolLM3, OLMoE, Granite MoE, MiniMax, dots, Seed-OSS,
Bamba, Nemotron-H, Mamba-2, Falcon Mamba, Kimi Linear (Moonlight has its vocabulary, and is not half as large), Llama 4,
Falcon-H1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipex_assist.models import architecture_of, gemma3

# A draft of more than this share of the target's size is not worthwhile.
LARGEST_SHARE = 0.5


@dataclass(frozen=True)
class DefaultAssistant:
    """A hub id, the `vocab_size`s of the targets it fits, and its size by its own config.json."""

    id: str
    vocab_sizes: tuple[int, ...]
    hidden_size: int
    num_hidden_layers: int
    least_hidden_size: int = 0  # of targets: what narrower ones compute for a token is less than twice the assistant's


# architectures[0] -> assistants. The first three are the defaults Intel Extension for Transformers had (its TinyLlama
# id has moved to TinyLlama/); the rest are each family's smallest member by its model card.
DEFAULT_ASSISTANTS: dict[str, tuple[DefaultAssistant, ...]] = {
    "OPTForCausalLM": (DefaultAssistant("facebook/opt-125m", (50272,), 768, 12),),
    "LlamaForCausalLM": (
        DefaultAssistant(
            "TinyLlama/TinyLlama-1.1B-intermediate-step-715k-1.5T", (32000, 32016), 2048, 22
        ),  # Llama 1, 2, Code Llama
        DefaultAssistant("meta-llama/Llama-3.2-1B", (128256,), 2048, 16),  # Llama 3.x; gated, like its targets
        DefaultAssistant("HuggingFaceTB/SmolLM2-135M-Instruct", (49152,), 576, 30),  # SmolLM2
    ),
    "GPTBigCodeForCausalLM": (DefaultAssistant("bigcode/tiny_starcoder_py", (49152,), 768, 20),),
    # 7B and up pad the same vocabulary further.
    "Qwen2ForCausalLM": (DefaultAssistant("Qwen/Qwen2.5-0.5B-Instruct", (151936, 152064), 896, 24),),
    "Qwen3ForCausalLM": (DefaultAssistant("Qwen/Qwen3-0.6B", (151936,), 1024, 28),),
    "Qwen2MoeForCausalLM": (DefaultAssistant("Qwen/Qwen2.5-0.5B-Instruct", (151936,), 896, 24),),
    "Qwen3MoeForCausalLM": (DefaultAssistant("Qwen/Qwen3-0.6B", (151936,), 1024, 28),),
    "PhiForCausalLM": (DefaultAssistant("microsoft/phi-1_5", (51200,), 2048, 24),),  # phi-2
    "Phi3ForCausalLM": (DefaultAssistant("microsoft/Phi-3-mini-4k-instruct", (32064,), 3072, 32),),  # Phi-3-medium
    "GemmaForCausalLM": (DefaultAssistant("google/gemma-2b", (256000,), 2048, 18),),
    "Gemma2ForCausalLM": (DefaultAssistant("google/gemma-2-2b-it", (256000,), 2304, 26),),
    "Gemma3ForCausalLM": (DefaultAssistant("google/gemma-3-270m-it", (262144,), 640, 18),),
    "Gemma3ForConditionalGeneration": (DefaultAssistant("google/gemma-3-270m-it", (262208, 262144), 640, 18),),
    "GPTNeoXForCausalLM": (DefaultAssistant("EleutherAI/pythia-70m", (50304, 50432, 50688), 512, 6),),
    "BloomForCausalLM": (DefaultAssistant("bigscience/bloom-560m", (250880,), 1024, 24),),
    "GPT2LMHeadModel": (DefaultAssistant("distilbert/distilgpt2", (50257,), 768, 6),),
    "GraniteForCausalLM": (DefaultAssistant("ibm-granite/granite-3.3-2b-instruct", (49159,), 2048, 40),),
    "Olmo2ForCausalLM": (DefaultAssistant("allenai/OLMo-2-0425-1B", (100352,), 2048, 16),),
    "Olmo3ForCausalLM": (DefaultAssistant("allenai/Olmo-3-7B-Instruct", (100278,), 4096, 32),),
    "GraniteMoeHybridForCausalLM": (DefaultAssistant("ibm-granite/granite-4.0-h-350m", (100352,), 768, 32),),
    "MambaForCausalLM": (DefaultAssistant("state-spaces/mamba-130m-hf", (50280,), 768, 24),),
    "Lfm2ForCausalLM": (DefaultAssistant("LiquidAI/LFM2-350M", (65536,), 1024, 16),),
    "Lfm2MoeForCausalLM": (DefaultAssistant("LiquidAI/LFM2-350M", (65536,), 1024, 16),),
    "Ernie4_5_MoeForCausalLM": (DefaultAssistant("baidu/ERNIE-4.5-0.3B-PT", (103424,), 1024, 18),),
    "Exaone4ForCausalLM": (DefaultAssistant("LGAI-EXAONE/EXAONE-4.0-1.2B", (102400,), 2048, 30),),
    "Qwen3_5ForConditionalGeneration": (DefaultAssistant("Qwen/Qwen3.5-0.8B", (248320,), 1024, 24),),
    "Qwen3_5MoeForConditionalGeneration": (DefaultAssistant("Qwen/Qwen3.5-0.8B", (248320,), 1024, 24),),
    # The 31B. E4B and the 26B-A4B compute about as much for a token as twice the E2B.
    "Gemma4ForConditionalGeneration": (DefaultAssistant("google/gemma-4-E2B-it", (262144,), 1536, 35, 4096),),
    "Starcoder2ForCausalLM": (DefaultAssistant("bigcode/starcoder2-3b", (49152,), 3072, 30),),
    "Cohere2ForCausalLM": (DefaultAssistant("CohereLabs/c4ai-command-r7b-12-2024", (256000,), 4096, 32),),
}

# model_types whose checkpoints bring layers that predict further tokens, as their makers publish them; some leave them
# out, as many quantized copies do, and say nothing of it in their config.
OWN_HEADS = frozenset(
    {"deepseek_v3", "deepseek_v32", "ernie4_5_moe", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"}
    | {"bailing_hybrid", "deepseek_v4", "glm5_next", "hy_v3", "hy_v4", "longcat_flash", "mimo_v2_flash"}
    | {"minimax_m3_vl", "nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "step3p7"}
)
# Published draft heads by their targets' hub ids, for targets whose checkpoints bring none.
DEFAULT_HEADS: dict[str, str] = {
    # As the publisher's collection "DFlash" lists them (huggingface.co/collections/z-lab/dflash); the first also in
    # speculators 0.9 (convert/entrypoints.py), Qwen3.5-9B in vLLM (model_executor/models/qwen3_dflash.py).
    "Qwen/Qwen3-8B": "z-lab/Qwen3-8B-DFlash-b16",
    "Qwen/Qwen3-4B": "z-lab/Qwen3-4B-DFlash-b16",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "z-lab/Qwen3-Coder-30B-A3B-DFlash",
    "Qwen/Qwen3-Coder-Next": "z-lab/Qwen3-Coder-Next-DFlash",
    "Qwen/Qwen3.5-4B": "z-lab/Qwen3.5-4B-DFlash",
    "Qwen/Qwen3.5-9B": "z-lab/Qwen3.5-9B-DFlash",
    "Qwen/Qwen3.5-27B": "z-lab/Qwen3.5-27B-DFlash",
    "Qwen/Qwen3.5-35B-A3B": "z-lab/Qwen3.5-35B-A3B-DFlash",
    "meta-llama/Llama-3.1-8B-Instruct": "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
    "openai/gpt-oss-20b": "z-lab/gpt-oss-20b-DFlash",
    "openai/gpt-oss-120b": "z-lab/gpt-oss-120b-DFlash",
    # By pages of their own there, but the second, which other projects' files name; the first is in vLLM's
    # qwen3_dflash.py as well. The last asks for permission.
    "google/gemma-4-31B-it": "z-lab/gemma-4-31B-it-DFlash",
    "google/gemma-4-26B-A4B-it": "z-lab/gemma-4-26B-A4B-it-DFlash",
    "MiniMaxAI/MiniMax-M2.5": "z-lab/MiniMax-M2.5-DFlash",
    # DSpark, as its makers list it (github.com/deepseek-ai/DeepSpec, "Released Checkpoints").
    "Qwen/Qwen3-14B": "deepseek-ai/dspark_qwen3_14b_block7",
    # EAGLE-3, by its page.
    "Qwen/Qwen3-32B": "RedHatAI/Qwen3-32B-speculator.eagle3",
}


def default_head(source: str) -> str | None:
    """The hub id of a published draft head for the target with this hub id; None where none is known."""
    return next((head for target, head in DEFAULT_HEADS.items() if target.lower() == source.lower()), None)


def default_assistant(config: Mapping[str, Any], source: str = "") -> str | None:
    """The hub id that assists a target with this config.json, or None where no published model fits.

    source: what the user called the target; code models get the code sibling where there is one. The target itself, or
    a model of more than half its size, is never returned.
    """
    config = _text_part(config)
    for assistant in DEFAULT_ASSISTANTS.get(architecture_of(config), ()):
        if config.get("vocab_size") in assistant.vocab_sizes and _large_enough(config, assistant):
            if assistant.id == "Qwen/Qwen2.5-0.5B-Instruct" and "coder" in source.lower():
                return "Qwen/Qwen2.5-Coder-0.5B-Instruct"
            return assistant.id
    return None


def why_none(config: Mapping[str, Any]) -> str:
    """Why `default_assistant` knows none for this config.json, as a part of a sentence."""
    family, config = config.get("model_type"), _text_part(config)
    family = family or architecture_of(config) or "this architecture"
    assistants = DEFAULT_ASSISTANTS.get(architecture_of(config), ())
    if not assistants:
        return f"no small model is known for {family}"
    fitting = [each.id for each in assistants if config.get("vocab_size") in each.vocab_sizes]
    if not fitting:
        return f"those of {family} have other vocabularies than the target's {config.get('vocab_size')} tokens"
    return f"the target is not twice as large as {fitting[0]}"


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config with the fields of its text model as its own, where it takes images, too."""
    text = config.get("text_config")
    usual = gemma3.USUAL if architecture_of(config) == gemma3.ARCHITECTURE else {}
    return {**config, **usual, **text} if isinstance(text, dict) else config


def _large_enough(config: Mapping[str, Any], assistant: DefaultAssistant) -> bool:
    width = config.get("hidden_size") or config.get("n_embd")
    wide = isinstance(width, int) and width >= assistant.least_hidden_size
    return wide and _size(config) * LARGEST_SHARE >= _size(vars(assistant))


def _size(config: Mapping[str, Any]) -> int:
    """Layers × width², to which the parameters of the layers are proportional within a family."""
    width = config.get("hidden_size") or config.get("n_embd")
    layers = config.get("num_hidden_layers") or config.get("n_layer")
    return layers * width**2 if isinstance(width, int) and isinstance(layers, int) else 0
