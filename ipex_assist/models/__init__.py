"""The architectures we run ourselves: one file each, named by Hugging Face's `model_type`.

A model file holds `ARCHITECTURE` (what config.json's `architectures[0]` says), `EXAMPLES` (published checkpoints),
`NAMES` (what its config.json calls a DecoderSpec's fields, where that differs), `spec(config)` and `weights(spec)`.
`weights` maps each of our weight names to the checkpoint's, so that a missing tensor is known before any is read.
A checkpoint tensor that holds several weights is named with a slice of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ipex_assist.models import (
    afmoe,
    apertus,
    apertus1p5,
    apertus1p5_text,
    arcee,
    axk1,
    axk2,
    bailing_hybrid,
    bamba,
    bloom,
    cohere,
    cohere2,
    cohere2_moe,
    deepseek_v2,
    deepseek_v3,
    deepseek_v4,
    deepseek_v32,
    dots1,
    ernie4_5,
    ernie4_5_moe,
    exaone,
    exaone4,
    exaone_moe,
    falcon,
    falcon_h1,
    falcon_mamba,
    gemma,
    gemma2,
    gemma3,
    gemma3_text,
    gemma3n,
    gemma3n_text,
    gemma4,
    gemma4_text,
    glm,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    glm4v,
    glm5_next,
    glm46v,
    glm_moe_dsa,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite_docling,
    granite_swa,
    granitemoe,
    granitemoe_swa,
    granitemoehybrid,
    granitemoeshared,
    hunyuan_v1_dense,
    hunyuan_v1_moe,
    hy_v3,
    hy_v4,
    idefics3,
    internvl,
    jais2,
    jamba,
    kimi_k25,
    kimi_linear,
    laguna,
    lfm2,
    lfm2_moe,
    lfm3,
    llama,
    llama4,
    llama4_text,
    longcat_flash,
    mamba,
    mamba2,
    mimo_v2_flash,
    minicpm3,
    minimax_m2,
    minimax_m3_vl,
    ministral3,
    mistral,
    mistral3,
    mistral4,
    mistral_large4,
    mixtral,
    mpt,
    nanochat,
    nemotron,
    nemotron_h,
    olmo,
    olmo2,
    olmo3,
    olmo_hybrid,
    olmoe,
    opt,
    paddleocr_vl,
    phi,
    phi3,
    phimoe,
    qwen2,
    qwen2_5_vl,
    qwen2_moe,
    qwen2_vl,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_5_moe_text,
    qwen3_5_text,
    qwen3_moe,
    qwen3_next,
    qwen3_vl,
    qwen3_vl_moe,
    qwen4_exp,
    qwen4_exp_text,
    recurrent_gemma,
    sarvam_moe,
    seed_oss,
    smollm3,
    smolvlm,
    solar_open,
    stablelm,
    starcoder2,
    step3p7,
    youtu,
    zamba2,
)
from ipex_assist.models.config import Config, ConfigError, MissingError
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Product, Source

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of", "find"]


@dataclass(frozen=True)
class Architecture:
    """How one architecture's config and checkpoint names become a DecoderSpec and our weight names."""

    name: str
    model_type: str
    about: str  # a sentence
    examples: tuple[str, ...]  # published checkpoints
    names: Mapping[str, str]
    read: Callable[[Config], DecoderSpec]
    weights: Callable[[DecoderSpec], dict[str, Source]]
    # What its checkpoints may lack, whatever their configs say: the spec of one whose tensors have these names.
    stored: Callable[[DecoderSpec, Collection[str]], DecoderSpec] | None = None
    # What of its spec is in the checkpoint's tensors: the spec, of a tensor's numbers by the first of such names.
    learned: Callable[[DecoderSpec, Callable[[Sequence[str]], list[float]]], DecoderSpec] | None = None
    # Matrices that are made of several tensors, by the names that `weights` has for them: of a spec, its config, and
    # names of stored tensors.
    products: Callable[[DecoderSpec, Mapping[str, Any], Collection[str]], dict[str, Product]] | None = None
    # A layer that predicts further tokens, the first of which has the number 0; None: of the target's the last that is
    # attention.
    layer_after: Callable[[Config, int], LayerSpec] | None = None

    def spec(self, config: Mapping[str, Any]) -> DecoderSpec:
        """Return the spec of a config.json.

        Raises ConfigError for values that cannot be, by the names they have there; NotComputed for a sound config that
        asks for something our decoder does not have.
        """
        try:
            return self.read(Config(config, self.names))
        except MissingError:
            raise
        except ConfigError as error:
            raise ConfigError(self.names.get(error.name, error.name), error.value, error.must) from error


def _architecture(module: ModuleType) -> Architecture:
    model_type = module.__name__.rpartition(".")[2]
    document = module.__doc__ or Path(str(module.__file__)).read_text(encoding="utf-8").split('"""')[1]  # of python -OO
    about = document.strip().splitlines()[0]
    found = (getattr(module, name, None) for name in ("stored", "learned", "products", "layer_after"))
    parts = module.NAMES, module.spec, module.weights, *found
    return Architecture(module.ARCHITECTURE, model_type, about, module.EXAMPLES, *parts)


_MODULES = (
    *(bloom, cohere, cohere2, dots1, ernie4_5, ernie4_5_moe, exaone4, falcon, gemma, gemma2, gemma3_text, glm, glm4),
    *(glm4_moe, gpt2, gpt_bigcode, gpt_neox, gpt_oss, gptj, granite, granitemoe, llama, minimax_m2, mistral, mixtral),
    *(mpt, olmo2, olmo3, olmoe, opt, phi, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, seed_oss, smollm3, stablelm),
    *(starcoder2, qwen3_next, qwen3_5_text, qwen3_5_moe_text, lfm2, lfm2_moe, granitemoehybrid, bamba, nemotron_h),
    *(apertus, arcee, exaone_moe, hunyuan_v1_dense, hunyuan_v1_moe, ministral3, mistral3, phimoe, qwen3_5, qwen3_5_moe),
    *(deepseek_v2, deepseek_v3, glm4_moe_lite, olmo_hybrid, mamba2, gemma4, gemma4_text, jamba, kimi_linear),
    *(llama4, llama4_text, falcon_h1, mamba, falcon_mamba, afmoe, exaone, gemma3, granite_swa, granitemoe_swa),
    *(granitemoeshared, hy_v3, jais2, kimi_k25, minicpm3, mistral4, nanochat, nemotron, olmo, sarvam_moe, solar_open),
    *(youtu, cohere2_moe, lfm3, laguna, deepseek_v32, glm_moe_dsa, axk1, mimo_v2_flash, step3p7),
    *(apertus1p5, apertus1p5_text, longcat_flash),
    *(recurrent_gemma, gemma3n, gemma3n_text),
    *(qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, glm4v, glm46v, idefics3, internvl, paddleocr_vl, smolvlm),
    *(granite_docling, hy_v4, axk2, mistral_large4, minimax_m3_vl, deepseek_v4),
    *(bailing_hybrid, glm5_next, qwen4_exp, qwen4_exp_text, zamba2),
)
# Published configs have these names of their makers' own code, which is transformers' now.
_FIRST_NAMES = {
    **{"ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM", "PhiMoEForCausalLM": "PhimoeForCausalLM"},
    "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
    "BailingMoeV3ForCausalLM": "BailingHybridForCausalLM",
}
# Of model_types that another family's class runs in transformers, which writes its name into their configs.
_OWN_NAMES = {
    ("exaone", "LlamaForCausalLM"): "ExaoneForCausalLM",
    ("sarvam_moe", "Glm4MoeForCausalLM"): "SarvamMoEForCausalLM",
}
ARCHITECTURES: dict[str, Architecture] = {module.ARCHITECTURE: _architecture(module) for module in _MODULES}


def architecture_of(config: Mapping[str, Any]) -> str:
    """The architecture that a config.json names first in `architectures`, or "" where it names none."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    return _OWN_NAMES.get((str(config.get("model_type")), name), name)


def find(architecture: str | None) -> Architecture | None:
    """The architecture of this name, or None: then transformers runs the model (generation/transformers_model.py)."""
    return ARCHITECTURES.get(_FIRST_NAMES.get(architecture or "", architecture or ""))
