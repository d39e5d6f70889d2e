"""Every family in every precision: near transformers, exact in any batch, and drafting is decoding."""

from __future__ import annotations

import itertools

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE, some_quick
from decoding import run, tokens_of
from native_models import PRECISIONS, loaded, relative, tokens, transformers_logits

from ipex_assist.executors.interface import Rows
from ipex_assist.native.library import unavailable
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.sources.assistant_model import AssistantModel

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")

# One of each kind of layer; the other families differ from these by names alone.
VARIANTS = [
    *("phi3-longrope", "granite", "olmo2", "smollm3", "gpt-neox", "gpt2", "starcoder2", "stablelm-parallel", "phi"),
    *("gemma", "gemma2", "gemma3", "falcon-new", "gptj", "bloom", "mpt", "cohere-norms", "cohere2", "glm4", "exaone4"),
    *("mixtral", "qwen2-moe", "qwen3-moe", "granitemoe", "gpt-oss", "qwen3-moe-dense-first", "qwen2-moe-every-second"),
    *tiny_models.known(
        "lfm2-biases", "lfm2-moe", "granite-hybrid-moe", "bamba", "nemotron-h", "nemotron-h-all-experts", "mamba2"
    ),
    *tiny_models.known("mamba-biases", "falcon-mamba"),
    *tiny_models.known(
        "apertus", "arcee", "exaone-moe", "hunyuan", "hunyuan-moe", "ministral3", "olmo-hybrid", "phimoe"
    ),
    *tiny_models.known(
        "deepseek-v2-direct",
        "deepseek-v3",
        "glm4-moe-lite",
        "kimi-linear-all-experts",
        "llama4",
        "falcon-h1",
        "jamba-all-experts",
        "recurrent-gemma",
        "gemma3n",
        "gemma3n-biases",
    ),
    *tiny_models.known("gemma4", "gemma4-one-kind", "gemma4-moe", "gemma4-everything"),
    *tiny_models.known("nanochat", "mistral4", "granite-swa", "cohere2-moe", "lfm3", "laguna-values"),
    *tiny_models.known("axk1", "mimo-v2-flash-biases", "step3p7", "apertus1p5-text", "longcat-flash"),
    # Of which fewer bits choose others.
    *tiny_models.known("deepseek-v32-many", "glm-moe-dsa-many", "hy-v4-other", "axk2-groups", "deepseek-v4-other"),
    *tiny_models.known("bailing-hybrid-all-experts", "glm5-next-many"),
    *tiny_models.known("mistral-large4-many"),
    *tiny_models.known("minimax-m3-many", "qwen4-exp-many", "zamba2"),
]
# Those that have other parts of these together.
ALIKE = tiny_models.known(
    *("nemotron", "olmo", "jais2", "exaone", "minicpm3", "youtu", "solar-open", "sarvam-moe", "hy-v3"),
    *("afmoe-all-experts", "granitemoeshared", "granitemoe-swa", "cohere2-moe-sigmoid", "laguna"),
)
EACH = some_quick([*VARIANTS, *ALIKE], VARIANTS)
# Norms behind attention enlarge what fewer bits change: transformers in bf16 is 0.10 off there.
LARGER = {"zamba2": 3}
LARGEST_ERROR = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.1, "int4": 0.7}
PROMPT = tokens(30, 1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", EACH)
def test_every_precision(variant: str, precision: str) -> None:
    """As near to transformers as that precision is; a row has its bits alone, in a chunk, and among other texts."""
    model = loaded(variant, precision)
    alone = model.new_sequence(60, len(PROMPT))
    steps = torch.cat([model.extend(alone, [token]) for token in PROMPT])
    # By row: fewer bits may choose another expert for one of them, which is then far off.
    errors = torch.stack(
        [torch.tensor(relative(*rows)) for rows in zip(steps, transformers_logits(variant, tuple(PROMPT)), strict=True)]
    )
    off = (
        relative(steps, transformers_logits(variant, tuple(PROMPT)))
        if model.spec.experts is None
        else float(errors.median())
    )
    assert off < LARGEST_ERROR[precision] * LARGER.get(variant, 1)
    second, third = model.new_sequence(60, len(PROMPT)), model.new_sequence(60, 3)
    model.extend(second, PROMPT[:7])
    rows = [Rows(third, [5, 6, 7], 3), Rows(second, PROMPT[7:], 3)]
    assert torch.equal(model.forward(rows)[3:], steps[-3:])
    drafted, _ = model.draft(alone, [9], 5)
    following = [9, *drafted]
    for token, right in itertools.pairwise(following):
        assert int(model.extend(second, [token]).argmax()) == right


@pytest.mark.parametrize("variant", EACH)
def test_drafting_with_its_own_kind(variant: str) -> None:
    """The int4 form of a model drafts for it in the engine: the tokens are those it writes alone."""
    target, draft = loaded(variant, "bf16"), loaded(variant, "int4")
    plain = tokens_of(run(target, new=16))
    assistant = AssistantModel(draft, Sampling(), tiny_models.VOCAB, capacity=64)
    rounds = run(target, assistant, k=3, new=16)
    assert tokens_of(rounds) == plain
    assert sum(each.accepted for each in rounds) > 0
