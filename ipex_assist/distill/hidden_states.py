"""A target's hidden states of prompts and answers, as files in the offline format of `speculators`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.distill.plan import MTP
from ipex_assist.distill.work_folder import AnsweredPrompt, WorkFolder, write
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import HiddenRows, Rows
from ipex_assist.models.weights import part_of, resolve, stored_form

if TYPE_CHECKING:
    import torch

    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.executors.interface import Model
    from ipex_assist.models.draft_head import Taps

ROWS = 512  # of a pass
OUTSIDE = {
    "embed_tokens.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}


def hidden_states(model: Model, taps: Taps, tokens: Sequence[int]) -> torch.Tensor:
    """Hidden states of a text, (tokens, taps, hidden_size), bf16. Raises IpexAssistError for NaN and infinity.

    One alone is there twice: `speculators` reads a last one beside others.
    """
    import torch

    sequence, parts = model.new_sequence(len(tokens), len(tokens)), []
    for first in range(0, len(tokens), ROWS):
        hidden = HiddenRows(taps)
        model.forward([Rows(sequence, tokens[first : first + ROWS], 0)], hidden=hidden)
        assert hidden.rows is not None
        parts.append(torch.from_numpy(hidden.rows).to(torch.bfloat16))
    found = torch.cat(parts).unflatten(1, (len(taps.layers), -1))
    if not bool(torch.isfinite(found).all()):
        raise IpexAssistError("hidden states hold NaN or infinity: the model's weights are damaged")
    return found if len(taps.layers) > 1 else found.repeat(1, 2, 1)


def write_samples(folder: WorkFolder, samples: Sequence[AnsweredPrompt]) -> None:
    """Write data/samples.jsonl, by which the training process makes the dataset."""
    lines = [json.dumps({"tokens": each.tokens, "prompt_tokens": each.prompt_tokens}) for each in samples]
    write(folder.data / "samples.jsonl", "\n".join(lines) + "\n")


def write_hidden_states(
    model: Model, taps: Taps, samples: Sequence[AnsweredPrompt], folder: WorkFolder, said: Callable[[str], None]
) -> int:
    """Write hs_0.safetensors, … of samples that have none yet; returns how many were written."""
    import torch

    from ipex_assist.checkpoints.writer import save_tensors

    missing = [index for index in range(len(samples)) if not is_stored(folder.hidden_file(index), samples[index])]
    for done, index in enumerate(missing, start=1):
        tokens, path = samples[index].tokens, folder.hidden_file(index)
        stored = {"hidden_states": hidden_states(model, taps, tokens), "token_ids": torch.tensor(tokens)}
        part = path.with_suffix(".part")
        try:
            save_tensors(stored, part)
            os.replace(part, path)
        except (OSError, RuntimeError) as error:  # safetensors' own errors are no OSError
            part.unlink(missing_ok=True)
            raise IpexAssistError(f"{path} cannot be written: {error}") from error
        if done % 32 == 0 or done == len(missing):
            said(f"hidden states: {len(samples) - len(missing) + done} of {len(samples)} texts")
    return len(missing)


def is_stored(path: Path, sample: AnsweredPrompt) -> bool:
    """Whether a file has the hidden states of this very sample."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return bool(file.get_tensor("token_ids").tolist() == sample.tokens)
    except (OSError, SafetensorError):
        return False


def write_verifier(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the target's embedding, final norm and lm_head as `speculators` reads them, whatever the target's format.

    The config is Llama's, whose final norm is computed as ours: what other families add to its weights is in them.
    """
    import torch

    from ipex_assist.checkpoints.writer import save_tensors
    from ipex_assist.models import find

    spec, architecture = checkpoint.decoder_spec(), find(checkpoint.architecture)
    assert architecture is not None
    known = architecture.weights(spec)
    if "lm_head.weight" not in known:
        known = {**known, "lm_head.weight": known["embed_tokens.weight"]}
    sources = stored_form({ours: known[ours] for ours in OUTSIDE}, checkpoint.names())
    wanted = resolve(sources, checkpoint.names())
    tensors = {}
    for name, tensor in checkpoint.tensors(wanted):
        for ours in wanted[name]:
            kept = torch.float32 if ours == "final_norm.weight" else torch.bfloat16
            tensors[OUTSIDE[ours]] = part_of(tensor, sources[ours], 1).to(kept).contiguous().clone()
    save_tensors(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
    os.replace(folder / "model.safetensors.part", folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "architectures": [checkpoint.architecture],
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_attention_heads": 1,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": False,
    }
    write(folder / "config.json", json.dumps(config))


def write_mtp(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a target's own MTP layer, by its own names, as `speculators` takes it from a checkpoint."""
    import torch

    from ipex_assist.checkpoints.writer import save_tensors

    folder.mkdir(exist_ok=True)
    tensors = {}
    for name, tensor in checkpoint.tensors([name for name in checkpoint.names() if name.startswith(MTP)]):
        if tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise IpexAssistError(f"{checkpoint.source}: {name} is quantized, and only whole weights can be trained")
        tensors[name] = tensor.to(torch.bfloat16).contiguous().clone()
    save_tensors(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
    os.replace(folder / "model.safetensors.part", folder / "model.safetensors")
