"""Which experts a row passes through: each kind of router against transformers' own, and against plain loops."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from ipex_assist.executors.torch.experts import route
from ipex_assist.models.config import ConfigError
from ipex_assist.models.mlp_spec import Experts

ROWS, COUNT, HIDDEN = 200, 16, 8
DEEPSEEK: dict[str, Any] = {
    **{"scores": "sigmoid", "correction_bias": True, "groups": 4, "groups_per_token": 2},
    **{"scaling": 2.5, "added_to_sum": 1e-20},
}
DEEPSEEK_CONFIG = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
# Module, router, what its config has, what our Experts have.
ROUTERS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("glm4_moe", "Glm4MoeTopkRouter", DEEPSEEK_CONFIG | {"norm_topk_prob": True}, DEEPSEEK),
    ("dots1", "Dots1TopkRouter", DEEPSEEK_CONFIG | {"norm_topk_prob": False}, DEEPSEEK | {"normalised": False}),
    ("deepseek_v3", "DeepseekV3TopkRouter", DEEPSEEK_CONFIG | {"norm_topk_prob": True}, DEEPSEEK),
    (
        "deepseek_v2",
        "DeepseekV2TopkRouter",
        DEEPSEEK_CONFIG | {"topk_method": "group_limited_greedy", "n_routed_experts": COUNT, "num_attention_heads": 2},
        {"groups": 4, "groups_per_token": 2, "best_of_group": 1, "scaling": 2.5, "normalised": False},
    ),
    (
        "ernie4_5_moe",
        "Ernie4_5_MoeTopKRouter",
        {"moe_norm_min": 0.3, "moe_num_experts": COUNT, "moe_k": 4},
        {"correction_bias": True, "least_sum": 0.3},
    ),
    ("minimax_m2", "MiniMaxM2TopKRouter", {}, {"scores": "sigmoid", "correction_bias": True}),
    ("mixtral", "MixtralTopKRouter", {}, {}),
    (
        "phimoe",
        "PhimoeTopKRouter",
        {"router_jitter_noise": 0.2, "num_experts_per_tok": 2},
        {"scores": "sparsemixer", "jitter": 0.2},
    ),
]


def their_router(module: str, name: str, fields: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """A router of transformers with random weights, and what its forward gets beside rows; skips where it has none."""
    try:
        found = getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name)
    except (ImportError, AttributeError):
        pytest.skip(f"this transformers has no {name}")
    config = importlib.import_module(f"transformers.models.{module}.configuration_{module}").__dict__
    made = next(value for value in config.values() if getattr(value, "model_type", None) == module)
    router = found(
        made(**{"hidden_size": HIDDEN, "num_experts_per_tok": 4, "num_local_experts": COUNT, **fields})
    ).eval()
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.copy_(torch.randn_like(parameter))
        for buffer in router.buffers():
            buffer.copy_(torch.randn_like(buffer))
    return router, [torch.randn(COUNT)] if module == "minimax_m2" else []


@pytest.mark.one_stack
@pytest.mark.parametrize(("module", "name", "theirs", "ours"), ROUTERS, ids=[each[0] for each in ROUTERS])
def test_as_transformers_routes(module: str, name: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """The same experts with the same weights, in some order, for each of 200 rows."""
    torch.manual_seed(3)
    router, others = their_router(module, name, theirs)
    experts = Experts(COUNT, 2 if module == "phimoe" else 4, 4, **ours)
    rows = torch.randn(ROWS, HIDDEN)
    with torch.no_grad():
        logits, weights, chosen = router(rows, *others)
    bias = next(iter([*others, *(value for key, value in router.state_dict().items() if "bias" in key)]), None)
    our_chosen, our_weights = route(experts, logits.float(), None if bias is None else bias.flatten())
    assert spread(our_chosen, our_weights).shape == (ROWS, COUNT)
    torch.testing.assert_close(spread(our_chosen, our_weights), spread(chosen, weights), atol=1e-6, rtol=1e-5)


def spread(chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weight of each expert, (rows, count)."""
    return torch.zeros(len(chosen), COUNT).scatter(1, chosen, weights.float())


def test_groups_by_their_best() -> None:
    """DeepSeek-V2 takes the groups of the largest scores: others' experts are not chosen, however large."""
    experts = Experts(6, 2, 4, groups=3, groups_per_token=1, best_of_group=1, normalised=False, scaling=2.0)
    logits = torch.tensor([[1.0, 2.0, 3.0, -9.0, 2.9, 2.8]])
    chosen, weights = route(experts, logits)
    assert chosen.tolist() == [[2, 3]]
    torch.testing.assert_close(weights, 2 * torch.softmax(logits, -1)[:, 2:4])


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_the_lowest_of_equals(scores: Any) -> None:
    """Experts, and groups of them, that are equally good are taken from the first on."""
    chosen, _ = route(Experts(8, 3, 4, scores=scores, groups=4, groups_per_token=2), torch.zeros(1, 8))
    assert chosen.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("fields", [{}, DEEPSEEK, {"scores": "sparsemixer"}], ids=["softmax", "sigmoid", "sparsemixer"])
def test_no_weights_without_numbers(fields: dict[str, Any], bad: float) -> None:
    """A row that is no number stays none: the sigmoid of infinity is 1."""
    logits = torch.zeros(1, COUNT)
    logits[0, 5] = bad
    _, weights = route(Experts(COUNT, 2, 4, **fields), logits, torch.zeros(COUNT) if fields == DEEPSEEK else None)
    assert bool(weights.isnan().any())


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"groups": 3}, "n_group"),
        ({"groups": 8}, "n_group"),
        ({"groups": 2, "groups_per_token": 3}, "topk_group"),
        ({"groups": 4, "per_token": 3}, "num_experts_per_tok"),
        ({"scores": "sparsemixer", "per_token": 3}, "num_experts_per_tok"),
        ({"scaling": float("nan")}, "routed_scaling_factor"),
    ],
)
def test_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Experts(**{"count": 8, "per_token": 2, "intermediate_size": 4, **fields})
