"""LoRA adapters for tests, as PEFT writes them, of weights by formula, and models that they are merged into."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ATTENTION = r".*(q_proj|k_proj|v_proj|o_proj|out_proj|c_attn|attn\.c_proj|qkv_proj|query_key_value|attention\.dense)"
MLP = r".*(gate_proj|up_proj|down_proj|gate_up_proj|fc1|fc2|c_fc|mlp\.c_proj|dense_h_to_4h|dense_4h_to_h)"
LINEARS = f"({ATTENTION})|({MLP})"


def wave(shape: tuple[int, ...], seed: int, size: float) -> torch.Tensor:
    """Values that no random generator decides."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (torch.sin(count * (0.7391 + 0.01 * (seed % 17)) + seed) * size).float().reshape(shape)


def fill(model: torch.nn.Module) -> None:
    """Give a model weights by formula."""
    with torch.no_grad():
        for number, (name, each) in enumerate(sorted(model.named_parameters())):
            base = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
            each.copy_(wave(tuple(each.shape), number, 0.15) + (base if name.endswith("weight") else 0.0))


def linears(model: torch.nn.Module, targets: str) -> dict[str, tuple[int, int]]:
    """(out, in) of the modules whose names `targets` matches; a Conv1D has its weight the other way round."""
    found = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if re.fullmatch(targets, name) and weight is not None and weight.dim() == 2:
            shape = tuple(weight.shape)
            found[name] = shape if isinstance(module, torch.nn.Linear) else shape[::-1]
    assert found, f"{targets} is no linear of this model"
    return found


def save_adapter(
    folder: Path,
    model: torch.nn.Module,
    rank: int = 4,
    targets: str = LINEARS,
    seed: int = 1,
    size: float = 0.3,
    ranks: Mapping[str, int] | None = None,
    **config: Any,
) -> Path:
    """Write an adapter of a model's linears. ranks: rank_pattern. config: further fields of adapter_config.json."""
    tensors = {}
    for number, (name, (out, columns)) in enumerate(linears(model, targets).items()):
        own = next((value for key, value in (ranks or {}).items() if re.match(rf"(.*\.)?({key})$", name)), rank)
        tensors[f"base_model.model.{name}.lora_A.weight"] = wave((own, columns), 100 * seed + number, size)
        tensors[f"base_model.model.{name}.lora_B.weight"] = wave((out, own), 100 * seed + number + 7, size)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": targets,
        "bias": "none",
        "rank_pattern": dict(ranks or {}),
        "alpha_pattern": {},
        "use_rslora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
        **config,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    return folder


def merge(model: torch.nn.Module, folder: Path, scale: float = 1.0) -> None:
    """W + scale · alpha ÷ rank · B · A, in place, in plain torch."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(str(folder / "adapter_model.safetensors"))
    for name in [each for each in tensors if each.endswith("lora_A.weight")]:
        module_name = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
        alphas = config["alpha_pattern"].items()
        alpha = next((v for k, v in alphas if re.match(rf"(.*\.)?({k})$", module_name)), config["lora_alpha"])
        factor = scale * alpha / (len(a) ** 0.5 if config["use_rslora"] else len(a))
        module = model.get_submodule(module_name)
        delta = (b.double() @ a.double() * factor).float()
        with torch.no_grad():
            module.weight += delta if isinstance(module, torch.nn.Linear) else delta.T
