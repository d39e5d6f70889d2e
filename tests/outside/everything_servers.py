"""Tiny models for serve_everything.py, made on the spot, and the flags of servers that have everything on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # what the tests share

import adapter_files
import checkpoint_files
import embedding_folders
import tool_calls
from dialect_templates import TEMPLATES
from tls_files import write_certificate
from transformers import AutoTokenizer

from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.workers.capacity import InstanceNeed

# Whether a model thinks is the request's to say; each writes calls in a form of its own.
THINKS = "{% if enable_thinking %}<think>\n{% endif %}"
DIALECTS = (tool_calls.TEMPLATE, TEMPLATES["qwen-xml"], TEMPLATES["glm"])
ADAPTERS = ("sql", "notes", "changing")  # scales of the last one change during the run
WRITERS = ("ann", "bob", "cat")
VECTORS, SCORES = "vec", "rank"
CONTEXT, KV_MEMORY = 2048, 6 << 20  # keys and values for a few long texts: others are paused, and read again
REFUSED = "http://127.0.0.1:9"  # where no collector of traces listens


@dataclass(frozen=True)
class EverythingFlags:
    """A server's flags. generators: names of models that write. adapters: names that can be asked for as models.
    vectors, scores: whether there is a model of each kind."""

    words: list[str]
    generators: tuple[str, ...]
    adapters: tuple[str, ...] = ()
    vectors: bool = False
    scores: bool = False

    @property
    def many(self) -> bool:
        """Whether models come and go."""
        return len(self.generators) > 1


def _writer(folder: Path, seed: int) -> Path:
    """A model that can call tools, and thinks if it is told to."""
    model = checkpoint_files.tiny_model("llama", seed=seed, max_position_embeddings=CONTEXT)
    checkpoint_files.save(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = DIALECTS[seed % len(DIALECTS)] + THINKS
    tokenizer.save_pretrained(folder)
    return folder


def _common(folder: Path) -> list[str]:
    cert, key, _ = write_certificate(folder)
    return [
        *("--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--otel", REFUSED),
        *("--prefix-store", str(folder / "prefixes"), "--prefix-store-size", "16M"),
        *("--offline", "--no-launch", "--no-cache-packed", "--precision", "fp32", "--threads", "1"),
        *("--kv-memory", str(KV_MEMORY), "--concurrency", "12"),
    ]


def one_model(folder: Path) -> EverythingFlags:
    """A model with adapters, an assistant and the prompt's own n-grams."""
    target, drafts = _writer(folder / "target", 0), _writer(folder / "drafts", 0)  # whose drafts are mostly right
    model = checkpoint_files.tiny_model("llama", max_position_embeddings=CONTEXT)
    words = ["-m", str(target), "--assistant-model", f"lookup+{drafts}", "--served-model-name", "base"]
    for number, name in enumerate(ADAPTERS):
        made = adapter_files.save_adapter(folder / name, model, rank=2 + 3 * number, seed=1 + number)
        words += ["--lora", f"{name}={made}"]
    return EverythingFlags([*words, *_common(folder)], ("base",), ADAPTERS)


def many_models(folder: Path) -> EverythingFlags:
    """Three models that write, one of them with an assistant, one of vectors and one of scores: in memory for three."""
    words: list[str] = []
    for seed, name in enumerate(WRITERS):
        own = f",assistant={_writer(folder / 'drafts', 1)}" if name == "bob" else ",assistant=none"
        words += ["-m", f"{name}={_writer(folder / name, seed)}{own}"]
    embedding_folders.write_embedder(folder / VECTORS, "last token")
    embedding_folders.write_model(folder / SCORES, "gemma2", "ForSequenceClassification", pad_token_id=0)
    words += ["-m", f"{VECTORS}={folder / VECTORS}", "-m", f"{SCORES}={folder / SCORES}"]
    load = LoadOptions.of(target=str(folder / "ann"), assistant="none", precision="fp32", offline=True,
                          kv_memory=KV_MEMORY)  # fmt: skip
    need = InstanceNeed.of(load, 1024, (1024,) * 12).total
    assert need is not None
    words += ["--models-memory", str(need * 7 // 2), "--keep", "2s"]
    return EverythingFlags([*words, *_common(folder)], WRITERS, vectors=True, scores=True)
