"""Texts that become vectors: tokens a second of ours, and of transformers' model with sentence-transformers' batches.

    ipex-launch -- python benchmarks/embeddings.py [--layers 28] [--texts 32] [--lengths 16,128,512] [--precisions bf16]

The model has Qwen3-Embedding-0.6B's shape and random weights. The baseline runs the same weights in bf16 as
sentence-transformers does: texts of a batch padded to its longest. Lengths are drawn from half of each to all of it.
Both get the same texts in turns. The vectors are compared: their least cosine is reported.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from numpy.typing import NDArray

from ipex_assist.embedding.facts import EncodedText
from ipex_assist.embedding.jobs import in_jobs
from ipex_assist.embedding.loading import load_embedder
from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.generation.load_options import LoadOptions

SHAPE: dict[str, Any] = {
    **{"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32_768, "rope_theta": 1e6},
    **{"max_position_embeddings": 32_768, "tie_word_embeddings": True},
}
BATCH = 32  # sentence-transformers' default
Vectors = list[NDArray[np.float32]]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--lengths", default="16,128,512")
    parser.add_argument("--precisions", default="bf16")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(argv)


def write_model(folder: Path, layers: int) -> Any:
    """A model of the shape, saved without a head; returns transformers' own, in bf16."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", **{**SHAPE, "num_hidden_layers": layers})
    model = AutoModel.from_config(config, dtype=torch.bfloat16).eval()
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))).save_pretrained(
        folder
    )
    return model


def drawn(count: int, longest: int) -> list[list[int]]:
    """Texts of half of `longest` tokens to all of it."""
    draw = random.Random(longest)
    return [[draw.randrange(1000) for _ in range(draw.randint(-(-longest // 2), longest))] for _ in range(count)]


def by_ours(model: EmbeddingModel, texts: Sequence[list[int]]) -> Vectors:
    """All texts in jobs that share passes."""
    encoded = [EncodedText(text) for text in texts]
    jobs = [model.begin([encoded[index] for index in job]) for job in in_jobs(encoded)]
    return [vector for job in jobs for vector in job.run()]


def by_transformers(model: Any, texts: Sequence[list[int]]) -> Vectors:
    """Batches of texts in the order of their lengths, padded; the last token's state at length 1."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    found: dict[int, NDArray[np.float32]] = {}
    for first in range(0, len(order), BATCH):
        batch = order[first : first + BATCH]
        longest = max(len(texts[index]) for index in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(batch):
            ids[row, : len(texts[index])], mask[row, : len(texts[index])] = torch.tensor(texts[index]), 1
        with torch.inference_mode():
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        for row, index in enumerate(batch):
            state = states[row, len(texts[index]) - 1].float()
            found[index] = (state / state.norm()).numpy()
    return [found[index] for index in range(len(texts))]


def timed(run: Callable[[], Vectors]) -> tuple[float, Vectors]:
    """Seconds, and what was computed."""
    started = time.perf_counter()
    found = run()
    return time.perf_counter() - started, found


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    table: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = write_model(Path(folder) / "Qwen3-Embedding", args.layers)
        for precision in args.precisions.split(","):
            told = {"precision": precision, "executor": "native", "cache_packed": False, "offline": True}
            options = LoadOptions.of(target=f"{folder}/Qwen3-Embedding", kv_memory=1 << 30, **told)
            ours = load_embedder(options, "embed")
            for length in map(int, args.lengths.split(",")):
                one = _compared(ours, theirs, drawn(args.texts, length), args.repeats)
                results.append({"precision": precision, "length": length, **one})
                row = {"precision": precision, "tokens": length, "ours t/s": round(one["ours"]["median"])}
                row |= {"transformers bf16 t/s": round(one["transformers"]["median"])}
                table.append(row | {"ratio": round(one["ratio"], 2), "least cosine": round(one["cosine"], 5)})
    measure.report(
        table, {"layers": args.layers, "texts": args.texts, "results": results, "machine": measure.machine()}
    )


def _compared(ours: EmbeddingModel, theirs: Any, texts: list[list[int]], repeats: int) -> dict[str, Any]:
    """Tokens a second of both, in turns; the first turn of each is not counted."""
    tokens = sum(map(len, texts))
    rates: dict[str, list[float]] = {"ours": [], "transformers": []}
    vectors: dict[str, Vectors] = {}
    for repeat in range(repeats + 1):
        runs = {"ours": lambda: by_ours(ours, texts), "transformers": lambda: by_transformers(theirs, texts)}
        for name, run in runs.items():
            seconds, vectors[name] = timed(run)
            if repeat:
                rates[name].append(tokens / seconds)
    found = {name: measure.summary(samples) for name, samples in rates.items()}
    cosine = min(float(a @ b) for a, b in zip(*vectors.values(), strict=True))
    return {**found, "ratio": found["ours"]["median"] / found["transformers"]["median"], "cosine": cosine}


if __name__ == "__main__":
    main()
