"""Blocks of GGUF files that predict further tokens: written as llama.cpp's converter does, they draft the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import draft_heads
import gguf_converter
import pytest
import safetensors.torch
import tiny_models
from conftest import HAS_NATIVE
from native_models import tokens
from test_gguf_tables import FILES

from ipex_assist.checkpoints.open import OpenCheckpoints, open_checkpoint
from ipex_assist.commands.shared.memory_need import estimate_need
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall
from ipex_assist.executors.load import load_head, load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.resolved import resolve
from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.one_stack

PROMPT = tokens(30, 3)
VARIANTS = tiny_models.known(
    *("glm4-moe", "deepseek-v3", "glm4-moe-lite", "deepseek-v32", "glm-moe-dsa", "exaone-moe", "hy-v3", "glm5-next"),
    *("qwen3-next", "qwen3.5", "qwen3.5-moe", "bailing-hybrid", "mimo-v2-flash", "step3p7", "nemotron-h-moe"),
)
LAYER_NORM = ("bailing-hybrid", "mimo-v2-flash")  # whose last norm the converter names as a layer's own
SEVERAL = ("glm4-moe", "mimo-v2-flash", "step3p7")
# What `draft_heads.save_mtp` takes for those whose layers transformers drafts with, too.
_FULL = {"layer_types": [*["linear_attention"] * 3, "full_attention", "full_attention"]}
_EXAONE = {
    "layer_types": [*["sliding_attention", "full_attention"] * 2, "sliding_attention"],
    "mlp_layer_types": ["dense", *["sparse"] * 3, "dense"],
}


def written(
    folder: Path,
    variant: str,
    last_norm: bool = True,
    alone: bool = False,
    further_from: int | None = None,
    **more: Any,
) -> Path:
    """A checkpoint with layers that predict further tokens in `folder`, and the file of it. last_norm: whether these
    have one of their own. alone: the file has no other layers. further_from: their first block's number, where it is
    not that behind the layers.
    """
    arch, changes, metadata = FILES[variant]
    if variant == "nemotron-h-moe":
        return _written_nemotron(folder, arch, changes)
    number = 2 if variant in SEVERAL else 1
    kinds = draft_heads.kinds_of(variant, number)
    kinds |= {"qwen3-next": _FULL, "qwen3.5": _FULL, "qwen3.5-moe": _FULL, "exaone-moe": _EXAONE}.get(variant, {})
    draft_heads.save_mtp(folder, variant, {}, number, **{**changes, **kinds})
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    layers, layout = text["num_hidden_layers"], draft_heads.LAYOUTS[text["model_type"]]
    count = layers if further_from is None else further_from
    inside = {new: old for old, new in draft_heads.PARTS.get(text["model_type"], {}).items() if new}
    tensors = {}
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        for each in range(number):
            layer, *outside = (part.format(layers + each, each) for part in layout)
            last = "layer_output_norm" if variant in LAYER_NORM else "nextn.shared_head_norm"
            around = dict(zip(outside, ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", last), strict=True))
            if ours := around.get(name.removesuffix(".weight")):
                name = f"blk.{count + each}.{ours}.weight"
            elif name.startswith(layer):
                rest = name.removeprefix(layer)
                for new, old in inside.items():
                    rest = rest.replace(new, old)
                name = f"model.layers.{count + each}.{rest}"
        layer = re.search(r"(?:layers|blk)\.(\d+)\.", name)
        if (last_norm or "shared_head_norm" not in name) and not (alone and layer and int(layer[1]) < count):
            tensors[name] = tensor
    deeper = folder / "deeper"
    lists = {name: value for name, value in kinds.items() if isinstance(value, list)}
    whole = {**config, "text_config": {**text, **lists}} if "text_config" in config else {**config, **lists}
    draft_heads.write(deeper, whole, tensors)
    path = gguf_converter.convert(
        deeper, arch, block_count=count + number, nextn_predict_layers=number, **{**metadata, **more}
    )
    return path.rename(folder / "model.gguf")


def _written_nemotron(folder: Path, arch: str, changes: dict[str, Any]) -> Path:
    """Its two blocks are one of the file."""
    draft_heads.save_nemotron_mtp(folder, **changes)
    config, count = json.loads((folder / "config.json").read_text()), len(changes["hybrid_override_pattern"])
    around = {"0.eh_proj": "nextn.eh_proj", "0.enorm": "nextn.enorm", "0.hnorm": "nextn.hnorm"}
    around |= {"1.final_layernorm": "nextn.shared_head_norm", "1.norm": "post_attention_norm"}
    tensors = {}
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        place, _, rest = name.removeprefix("mtp.layers.").partition(".")
        if not name.startswith("mtp."):
            tensors[name] = tensor
        elif ours := around.get(f"{place}.{rest}".removesuffix(".weight")):
            tensors[f"blk.{count}.{ours}.weight"] = tensor
        else:
            tensors[f"backbone.layers.{count}.{rest}"] = tensor
    draft_heads.write(folder / "deeper", config, tensors)
    path = gguf_converter.convert(folder / "deeper", arch, block_count=count + 1, nextn_predict_layers=1)
    return path.rename(folder / "model.gguf")


def drafted(
    source: Path, executor: str, precision: str, own: Path | None = None
) -> tuple[Any, Any, list[tuple[list[int], list[float]]]]:
    """Head, hidden states of a prompt, and drafts after it, by the target's layers or those of a file of their own."""
    checkpoint = open_checkpoint(str(source))
    target = load_model(LoadRequest(checkpoint, precision, executor, exact=False))
    head = load_head(checkpoint, target, None if own is None else open_checkpoint(str(own)), precision, executor)
    assert isinstance(head, DraftsInOneCall)
    hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
    request = DraftInput(head.new_sequence(64), PROMPT[1:], 2, 0.0, hidden)
    return head, hidden, head.draft_many([request])


@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_draft_as_their_layers(variant: str, executor: str, tmp_path: Path) -> None:
    """Tokens and confidences of the file are those of the checkpoint it was made of; no tensor is left over."""
    path = written(tmp_path, variant)
    open_checkpoint(str(path)).check_weights()
    (_, states, expected), (_, hidden, found) = (drafted(each, executor, "fp32") for each in (tmp_path, path))
    assert hidden == pytest.approx(states, abs=1e-4)
    for (ours, shares), (theirs, likely) in zip(found, expected, strict=True):
        assert ours == theirs
        assert shares == pytest.approx(likely, rel=1e-3)


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
@pytest.mark.parametrize("variant", tiny_models.known("glm4-moe", "qwen3.5", "glm5-next"))
def test_blocks_stay_as_stored(variant: str, tmp_path: Path) -> None:
    """Of Q8_0: the head is computed from the file's blocks, as the target is."""
    path = written(tmp_path, variant, q8=True)
    head, _, [(tokens_, shares)] = drafted(path, "native", "stored")
    assert len(tokens_) == len(shares) == 2
    need = estimate_need(str(path), "mtp", "stored", "stored", 64, native=True)
    assert need.assistant == sum(each.packed.nbytes for each in getattr(head, "layers", [head]))


@pytest.mark.parametrize("variant", tiny_models.known("glm4-moe"))
def test_a_block_without_a_norm_has_the_targets(variant: str, tmp_path: Path) -> None:
    """As llama.cpp computes it: the same drafts as with a copy of that norm."""
    path = written(tmp_path, variant, last_norm=False)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if re.search(r"shared_head\.norm", name)]:
        tensors[name] = tensors["model.norm.weight"].clone()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (_, _, expected), (_, _, found) = (drafted(each, "torch", "fp32") for each in (tmp_path, path))
    assert [each for each, _ in found] == [each for each, _ in expected]


@pytest.mark.parametrize("variant", tiny_models.known("glm4-moe", "qwen3.5", "step3p7"))
def test_blocks_in_a_file_of_their_own(variant: str, executor: str, tmp_path: Path) -> None:
    """As `--mtp` of the converter writes them: the drafts of the same layers inside the target's checkpoint."""
    path = written(tmp_path, variant, alone=True)
    (_, _, expected), (head, _, found) = (drafted(tmp_path, executor, "fp32", each) for each in (None, path))
    assert [each for each, _ in found] == [each for each, _ in expected]
    name = resolve(LoadOptions.of(target=str(tmp_path), assistant=str(path)), OpenCheckpoints())
    assert name.head is not None
    assert name.head.kind == "mtp"
    if executor == "native":
        need = estimate_need(str(tmp_path), str(path), "fp32", "fp32", 64, native=True)
        assert need.assistant == sum(each.packed.nbytes for each in getattr(head, "layers", [head]))
    with pytest.raises(UsageError, match="is a draft head: name it by --assistant-model"):
        resolve(LoadOptions.of(target=str(path)), OpenCheckpoints())


def test_blocks_behind_many_that_are_elsewhere(tmp_path: Path) -> None:
    """Their numbers are those of the whole model, of which there may be more than the file has tensors."""
    path = written(tmp_path, "qwen3.5", alone=True, further_from=200)
    names = open_checkpoint(str(path)).names()
    assert "model.layers.200.eh_proj.weight" in names
    assert len(names) < 200
