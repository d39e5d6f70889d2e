"""Writes a model as a GGUF file with its matrices in fewer bits, tensor by tensor, mixed as llama.cpp mixes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from ipex_assist.checkpoints import gguf_file
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.gguf_file import GgufTensor
from ipex_assist.checkpoints.gguf_writer import ALIGNMENT, GgufWriter, PlannedTensor, entry
from ipex_assist.commands.gguf_sources import FileSource, FolderSource, GgufSource, Place
from ipex_assist.commands.quantized_writer import Written
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.memory import gib
from ipex_assist.models import find
from ipex_assist.models.weights import NotFiniteError, stored_form
from ipex_assist.quantization.gguf_mix import F16, FILE_TYPES, type_of
from ipex_assist.quantization.gguf_quants import quantize
from ipex_assist.tokenization.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipex_assist.models import Source

# Mean squares of what the input columns of matrices read.
Importance = Mapping[Place, "NDArray[np.float32]"]
SAMPLES, LENGTH = 128, 512  # of calibration text: sequences at most, and tokens of each


def source_of(checkpoint: Checkpoint) -> FileSource | FolderSource:
    """What a checkpoint's GGUF file is made from. Raises IpexAssistError for a folder that none is made from."""
    if isinstance(checkpoint, GgufCheckpoint):
        return FileSource(checkpoint.path)
    return FolderSource(checkpoint, load_tokenizer(checkpoint))


def write_gguf(
    source: GgufSource,
    output: Path,
    file_type: str,
    importance: Importance | None = None,
    *,
    threads: int = 1,
    progress: bool = False,
) -> Written:
    """Write the new file `output`, which appears only when it is complete.

    Raises IpexAssistError where a tensor holds what is no number, or the disk has no room.
    """
    planned = []
    for name, tensor in source.tensors.items():
        kind = type_of(name, tensor.shape, file_type, source.facts, bool(importance))
        kind = tensor.type if kind is None else kind
        size = gguf_file.stored_bytes(name, GgufTensor(output, tensor.shape, kind, 0))
        planned.append(PlannedTensor(name, tensor.shape, kind, size))
    entries = [
        *source.entries(),
        entry("general.file_type", FILE_TYPES[file_type][0]),
        entry("general.quantization_version", 2),
        entry("general.alignment", ALIGNMENT),
    ]
    work = output.with_name(f".{output.name}.{os.getpid()}")
    written = Written()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        need, free = sum(each.nbytes for each in planned) + (1 << 26), shutil.disk_usage(output.parent).free
        if free < need:
            raise IpexAssistError(f"{output.parent} has {gib(free)} free, about {gib(need)} are needed")
        with GgufWriter(work, entries, planned) as writer:
            for plan in tqdm(planned, desc=f"writing {output.name}", unit=" tensors", disable=not progress):
                if plan.type == source.tensors[plan.name].type:
                    for raw in source.raw(plan.name):
                        writer.write(raw)
                else:
                    _write_matrix(writer, plan, source, importance or {}, threads, written)
            written.bytes = writer.nbytes
        os.replace(work, output)
    except OSError as error:
        raise IpexAssistError(f"{output} cannot be written: {error}") from error
    finally:
        work.unlink(missing_ok=True)
    return written


def _write_matrix(
    writer: GgufWriter, plan: PlannedTensor, source: GgufSource, importance: Importance, threads: int, written: Written
) -> None:
    written.matrices += 1
    for place, weights in source.rows(plan.name):
        if not np.isfinite(weights).all():
            raise NotFiniteError(plan.name, "NaN or infinity")
        written.squared_norm += float(np.square(weights).sum(dtype=np.float64))
        if plan.type == F16:
            writer.write(weights.astype(np.float16))
            continue
        blocks, error = quantize(weights, plan.type, importance.get(place), threads)
        written.squared_error += error
        writer.write(blocks)


def record_importance(
    checkpoint: Checkpoint, source: FileSource | FolderSource, text: Path, samples: int, length: int
) -> Importance:
    """What linears read, in the mean of squares, while a text passes through the model in bf16.

    Raises UsageError for a text that cannot be read, or is shorter than one sequence.
    """
    from ipex_assist.commands.perplexity import perplexity, windows
    from ipex_assist.executors.load import load_model
    from ipex_assist.executors.load_request import LoadRequest
    from ipex_assist.executors.torch.model import TorchModel
    from ipex_assist.executors.torch.recording import InputRecorder

    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--calibration {text} cannot be read: {error}") from error
    tokenizer: Any = load_tokenizer(checkpoint)
    request = LoadRequest(checkpoint, "bf16", "torch", exact=False)
    length = min(length, request.spec.context_length)
    tokens = tokenizer(content)["input_ids"][: samples * length]
    if len(tokens) < max(length, 2):
        raise UsageError(f"--calibration {text}: {len(tokens)} tokens, fewer than one sequence of --seqlen {length}")
    model = load_model(request)
    assert isinstance(model, TorchModel)
    recorder = InputRecorder(model)
    # Each has a token before those that it scores.
    perplexity(model, tokens, windows(len(tokens), length, length - 1))
    architecture = find(checkpoint.architecture)
    assert architecture is not None
    sources = stored_form(architecture.weights(request.spec), checkpoint.names())
    means = recorder.means([*sources, "lm_head.weight"])
    if request.spec.tied_head:
        sources["lm_head.weight"] = sources["embed_tokens.weight"]
    found = {}
    for ours, squares in means.items():
        if ours in sources and not sources[ours].heads_transposed and not sources[ours].transposed:
            for place in _places(checkpoint, source, sources[ours], len(squares)):
                found[place] = squares.numpy()
    return found


def _places(checkpoint: Checkpoint, source: FileSource | FolderSource, weight: Source, columns: int) -> list[Place]:
    """The matrices of the file that one of our weights is made of, and that have as many columns."""
    if isinstance(checkpoint, GgufCheckpoint) and isinstance(source, FileSource):
        parts = [part for part in checkpoint.parts_of(weight) if part.shape[-1] == columns]
        return [place for part in parts if (place := source.place_of(part)) is not None]
    assert isinstance(source, FolderSource)
    return [(name, 0) for name in source.names_of(weight.name, *weight.alternatives)]
