"""Writes down what draft heads of `speculators` compute: their configs and tensors as it saves them, and logits.

    python tests/executors/record_heads.py --output tests/executors/recorded_heads.json

Needs speculators==0.9.0, beside transformers. Weights and hidden states are numbers that draft_heads.py makes again,
so that neither are stored. Of EAGLE-3 the logits are those of a few rows in the first three steps, each step with the
hidden states of the one before and tokens of the text; of DFlash those of a few blocks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import safetensors.torch
import torch
from draft_heads import SIZES, hidden_numbers, numbers, text
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

AUX = "eagle_aux_hidden_state_layer_ids"
# The config class of the layers, how many there are, and fields of the head's config.
CASES: dict[str, tuple[type, int, dict[str, Any]]] = {
    "eagle3-llama": (LlamaConfig, 1, {"draft_vocab_size": 40}),
    "eagle3-qwen3": (
        *(Qwen3Config, 2),
        {"draft_vocab_size": 40, "norm_before_residual": True, "norm_before_fc": True, AUX: [0, 3, 6]},
    ),
    "eagle3-all-tokens": (
        *(LlamaConfig, 1),
        {"draft_vocab_size": SIZES["vocab_size"], "fc_norm": True, "norm_output": True, AUX: [1, 4]},
    ),
    "dflash": (Qwen3Config, 2, {"draft_vocab_size": 40, "aux_hidden_state_layer_ids": [1, 3, 5]}),
    "dflash-all-tokens": (
        *(Qwen3Config, 1),
        {"draft_vocab_size": SIZES["vocab_size"], "aux_hidden_state_layer_ids": [2, 4]},
    ),
}
# Of the second kind, whose drafts are written down: which are chosen, and their shares among the candidates.
CASES["dflash2"] = (
    *(Qwen3Config, 2),
    {"draft_vocab_size": SIZES["vocab_size"], "aux_hidden_state_layer_ids": [1, 3, 5], "conv_kernel_size": 3}
    | {"conv_group_size": 8, "selector_rank": 12, "selector_top_k": 5},
)
# Likewise: which follow from each other, and how sure the head is of each.
CASES["dspark"] = (
    *(Qwen3Config, 2),
    {"draft_vocab_size": SIZES["vocab_size"], "aux_hidden_state_layer_ids": [1, 3, 5], "markov_rank": 12},
)
CASES["dspark-few-tokens"] = (
    *(Qwen3Config, 1),
    {"draft_vocab_size": 40, "aux_hidden_state_layer_ids": [2, 4], "markov_rank": 5}
    | {"sample_from_anchor": False, "confidence_head_with_markov": False},
)
ROWS = (4, 9, 15)
ANCHORS = 4
STEPS = 3


def made(name: str) -> Any:
    """The head of a case, with its numbers."""
    layer_class, layers, fields = CASES[name]
    kind = name.partition("-")[0]
    model_class, config_class = {
        "eagle3": (Eagle3DraftModel, Eagle3SpeculatorConfig),
        "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
        "dflash2": (DFlash2DraftModel, DFlash2SpeculatorConfig),
        "dspark": (DSparkDraftModel, DSparkSpeculatorConfig),
    }[kind]
    layer_config = layer_class(**SIZES, num_hidden_layers=layers)
    layer_config._attn_implementation = "eager"
    blocks = {"block_size": 6, "mask_token_id": 7} if kind != "eagle3" else {}
    proposal = GreedyTokenProposalConfig(speculative_tokens=3)
    config = config_class(
        transformer_layer_config=layer_config,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **fields,
        **blocks,
    )
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(numbers(parameter_name, tuple(parameter.shape)))
    size = fields["draft_vocab_size"]
    if size < SIZES["vocab_size"]:
        tokens = torch.sort(torch.randperm(SIZES["vocab_size"])[:size]).values
        present = torch.zeros(SIZES["vocab_size"], dtype=torch.bool)
        present[tokens] = True
        model.load_vocab_mappings(present, tokens - torch.arange(size))
    return model


@torch.no_grad()
def eagle3_logits(model: Any) -> list[Any]:
    """Of each step and row."""
    tokens, taps = text(), len(model.target_layer_ids or (0, 0, 0))
    steps: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, out: steps.append(out[0]))
    hidden = torch.from_numpy(hidden_numbers(len(tokens) - 1, taps))
    model(hidden[None], torch.tensor([tokens[1:]]), torch.zeros(1, len(hidden), dtype=torch.long), ttt_steps=STEPS)
    return [{"row": row, "steps": [rounded(step[row]) for step in steps]} for row in ROWS]


@torch.no_grad()
def dflash_logits(model: Any) -> list[Any]:
    """Of each block: the place of its first token, and the logits of the rows after it."""
    tokens, size = text(), model.block_size
    hidden = torch.from_numpy(hidden_numbers(len(tokens), len(model.target_layer_ids)))[None]
    zeros = torch.zeros(1, len(tokens), SIZES["hidden_size"])
    documents = torch.zeros(1, len(tokens), dtype=torch.long)
    found = model._backbone_forward(
        hidden, torch.tensor([tokens]), torch.ones(1, len(tokens)), zeros, documents, max_anchors=ANCHORS
    )
    if hasattr(model, "candidate_selector") or hasattr(model, "markov_head"):
        choose = selected if hasattr(model, "candidate_selector") else followed
        first = 0 if model.config.sample_from_anchor else 1
        blocks = zip(found[4][::size].tolist(), found[0][0].split(size), found[1][0].split(size), strict=True)
        return [
            {"row": place, "steps": choose(model, tokens[place], block[first:], rows[first:])}
            for place, block, rows in blocks
        ]
    logits, places = found[1][0].split(size), found[4][::size].tolist()
    return [
        {"row": place, "steps": [rounded(row) for row in block[1:]]}
        for place, block in zip(places, logits, strict=True)
    ]


def selected(model: Any, last: int, hidden: torch.Tensor, logits: torch.Tensor) -> list[list[float]]:
    """Of each row: the token chosen after that of the row before, and its share among the candidates."""
    steps = []
    for row, unary in zip(hidden, logits, strict=True):
        ids, scores = model.candidate_selector.select(unary[None], row[None], torch.tensor([last]))
        last = int(ids[0, scores[0].argmax()])
        steps.append([last, round(float(scores[0].softmax(0).max()), 6)])
    return steps


def followed(model: Any, last: int, hidden: torch.Tensor, logits: torch.Tensor) -> list[list[float]]:
    """Of each row of a DSpark: the token after that of the row before, and the probability that it is accepted."""
    steps = []
    for row, unary in zip(hidden, logits, strict=True):
        before = torch.tensor([[last]])
        scores = unary + model.markov_head.block_bias(prev_token_ids=before, hidden_states=row[None, None])[0, 0]
        read = [row, *([model.markov_head.prev_embeddings(before)[0, 0]] * model.config.confidence_head_with_markov)]
        sure = model.confidence_head(torch.cat(read)).sigmoid()
        last = int(scores.argmax())
        last += 0 if model.d2t is None else int(model.d2t[last])
        steps.append([last, round(float(sure), 6)])
    return steps


def rounded(logits: torch.Tensor) -> list[float]:
    return [round(float(value), 6) for value in logits]


def record(name: str) -> dict[str, Any]:
    model = made(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        tensors = safetensors.torch.load_file(Path(folder) / "model.safetensors")
    return {
        "config": config,
        "tensors": {key: list(tensor.shape) for key, tensor in tensors.items()},
        "d2t": tensors["d2t"].tolist() if "d2t" in tensors else None,
        "logits": (eagle3_logits if name.startswith("eagle3") else dflash_logits)(model),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    output.write_text(json.dumps({name: record(name) for name in CASES}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
