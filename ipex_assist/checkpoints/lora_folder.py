"""Reads a LoRA adapter as PEFT writes it: a folder with adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.safetensors_file import StoredTensor, read_header, read_tensors
from ipex_assist.env.errors import IpexAssistError, UsageError

if TYPE_CHECKING:
    import torch

MOST_RANK = 256  # packing/adapter.h: MOST_RANK
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of all names in the file
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])(\.default)?\.weight")
# Fields that make something else of an adapter than W + scale · B · A, and how an error calls that.
_OTHER_KINDS = {
    "use_dora": "DoRA, which scales the columns of W + B · A",
    "use_qalora": "QA-LoRA, which pools its inputs",
    "lora_bias": "biases of B (lora_bias)",
    "modules_to_save": "whole modules beside its matrices (modules_to_save)",
    "trainable_token_indices": "token embeddings (trainable_token_indices)",
    "target_parameters": "parameters that belong to no linear (target_parameters)",
    "layer_replication": "repeated layers (layer_replication)",
    "alora_invocation_tokens": "tokens that switch it on (aLoRA)",
    "arrow_config": "a router between adapters (Arrow)",
}
_MERGE = "merge it into its model by PEFT (merge_and_unload)"
_CHANGED_BASES = ("pissa", "olora", "corda")  # ways to begin that change the weights of the model itself


@dataclass(frozen=True)
class LoraPart:
    """What a module of the model gets: scale · B · A. Shapes: a (rank, in), b (out, rank)."""

    module: str
    a: torch.Tensor
    b: torch.Tensor
    scale: float


def parse_adapter(text: str) -> tuple[str, str]:
    """The name and the folder of `NAME=FOLDER`; of a folder alone its last part is the name.

    Raises ValueError for a text that has neither, and for names that mean something else.
    """
    name, equals, folder = text.partition("=")
    if not equals or "/" in name:
        name, folder = Path(text).resolve().name, text
    if not name or not folder:
        raise ValueError("must be NAME=FOLDER or a folder, such as sql=adapters/sql")
    if name == "none":
        raise ValueError("is a name that stands for no adapter; choose another")
    return name, folder


def read_lora(folder: str) -> Iterator[LoraPart]:
    """Yield what an adapter has for each module, in the order of its file; the modules that are there count.

    Raises UsageError for a folder that holds no such adapter, or one of a kind that is not run here; IpexAssistError
    for files that are damaged.
    """
    path = Path(folder)
    for name in (CONFIG, TENSORS):
        if not (path / name).is_file():
            raise UsageError(
                f"{path / name}: there is no such file; a LoRA adapter is a folder with {CONFIG} and {TENSORS}"
            )
    config = _config(path / CONFIG)
    pairs: dict[str, dict[str, StoredTensor]] = {}
    for name, stored in read_header(path / TENSORS).items():
        module, which = _place(folder, name)
        pairs.setdefault(module, {})[which] = stored
    if not pairs:
        raise UsageError(f"{path / TENSORS} holds no matrices")
    for module, pair in pairs.items():
        scale = _scale(folder, config, module, pair)
        matrices = dict(read_tensors(pair.items()))
        yield LoraPart(module, matrices["A"].float(), matrices["B"].float(), scale)


def lora_shapes(folder: str) -> list[tuple[str, int]]:
    """The modules that an adapter has matrices for, and their ranks, by the header of its file alone.

    Raises IpexAssistError for a file that cannot be read, UsageError for one that holds something else.
    """
    path = Path(folder) / TENSORS
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file; a LoRA adapter is a folder with {CONFIG} and {TENSORS}")
    places = ((*_place(folder, name), stored.shape) for name, stored in read_header(path).items())
    return [(module, shape[0]) for module, which, shape in places if which == "A" and shape]


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise IpexAssistError(f"{path} cannot be read: {str(error)[:300]}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise UsageError(f"{path}: peft_type is {kind!r}, and adapters are LORA here")
    for field, what in _OTHER_KINDS.items():
        if config.get(field):
            raise UsageError(f"{path.parent}: this adapter has {what}, which is not run here: {_MERGE}")
    if config.get("bias", "none") != "none":
        raise UsageError(f"{path.parent}: this adapter has biases (bias={config['bias']!r}): {_MERGE}")
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGED_BASES):
        raise UsageError(
            f"{path.parent}: this adapter was begun by {begun}, which changes the model's own weights; convert it by "
            "PEFT (save_pretrained with path_initial_model_for_weight_conversion)"
        )
    for field in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(field) or {}, Mapping):
            raise UsageError(f"{path}: {field} must be an object of modules and numbers")
    return config


def _place(folder: str, name: str) -> tuple[str, str]:
    """The module of a tensor, and whether it is its A or B."""
    found = _MATRIX.fullmatch(name.removeprefix(_PREFIX))
    if found is None:
        raise UsageError(
            f"{folder}: the adapter holds {name}, and only matrices A and B of linears are run here: no embeddings, "
            "magnitudes, biases or whole modules"
        )
    return found["module"], found["which"]


def _scale(folder: str, config: Mapping[str, Any], module: str, pair: Mapping[str, StoredTensor]) -> float:
    """lora_alpha ÷ rank, or ÷ √rank with use_rslora; both may differ by module. Checks the shapes."""
    if set(pair) != {"A", "B"}:
        raise UsageError(f"{folder}: {module} has only its {' and '.join(sorted(pair))} of two matrices A and B")
    rank, alpha = (
        _of_module(config, "rank_pattern", "r", module),
        _of_module(config, "alpha_pattern", "lora_alpha", module),
    )
    if type(rank) is not int or rank < 1 or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise UsageError(f"{folder}: {CONFIG} says rank {rank!r} and alpha {alpha!r} for {module}")
    if rank > MOST_RANK:
        raise UsageError(f"{folder}: {module} has rank {rank}, and adapters of up to {MOST_RANK} are run here")
    a, b = pair["A"].shape, pair["B"].shape
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
        raise UsageError(
            f"{folder}: {module} has matrices of {list(a)} and {list(b)}, and its rank is {rank} by {CONFIG}"
        )
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_module(config: Mapping[str, Any], pattern: str, default: str, module: str) -> Any:
    """PEFT's rule: the first key that is a name at the end of the module's, as a regular expression."""
    for key, value in (config.get(pattern) or {}).items():
        try:
            if re.match(rf"(.*\.)?({key})$", module):
                return value
        except re.error:
            raise UsageError(f"{pattern}: {key!r} is no regular expression") from None
    return config.get(default)
