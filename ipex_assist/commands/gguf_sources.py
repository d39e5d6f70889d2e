"""What a quantized GGUF file is made from: a GGUF file in more bits, or a Hugging Face folder of a few families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ipex_assist.checkpoints import gguf_file
from ipex_assist.checkpoints.gguf_file import GgufHeader, GgufTensor
from ipex_assist.checkpoints.gguf_writer import entry
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.config import Config
from ipex_assist.quantization.gguf_mix import MixFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipex_assist.checkpoints.base import Checkpoint

CHUNK = 1 << 23  # weights that are read at once
F32 = 0  # GGMLQuantizationType
Place = tuple[str, int]  # of a matrix: its tensor, and which expert's it is
# Keys of the original that are written anew, or that are of a split file.
_OWN_KEYS = (
    *("general.file_type", "general.quantization_version", "general.alignment"),
    *("split.no", "split.count", "split.tensors.count"),
)


@dataclass(frozen=True)
class SourceTensor:
    """A tensor as it is there. shape: in PyTorch's order; type: a GGMLQuantizationType."""

    shape: tuple[int, ...]
    type: int


class GgufSource(Protocol):
    """Metadata and tensors by GGUF's names, read one at a time."""

    facts: MixFacts
    tensors: dict[str, SourceTensor]

    def entries(self) -> list[bytes]:
        """The metadata but for what depends on the types of tensors, encoded."""
        ...

    def rows(self, name: str) -> Iterator[tuple[Place, NDArray[np.float32]]]:
        """A tensor's rows in fp32, a few million weights at once, and the matrix that they are of."""
        ...

    def raw(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """A tensor's bytes as they are."""
        ...


class FileSource:
    """A GGUF file, or all parts of a split one."""

    def __init__(self, path: Path) -> None:
        self._header = gguf_file.read_header(path)
        self.tensors = {name: SourceTensor(each.shape, each.type) for name, each in self._header.tensors.items()}
        heads = _most(self._header.required("attention.head_count"))
        self.facts = MixFacts(
            layers=self._header.required("block_count"),
            heads_per_key=heads // max(_most(self._header.get("{arch}.attention.head_count_kv") or heads), 1),
            experts=self._header.get("{arch}.expert_count") or 0,
            tied="output.weight" not in self.tensors,
        )

    def entries(self) -> list[bytes]:
        first = min({each.path for each in self._header.tensors.values()}, default=self._header.path)
        return [raw for key, raw in gguf_file.metadata_entries(first).items() if key not in _OWN_KEYS]

    def rows(self, name: str) -> Iterator[tuple[Place, NDArray[np.float32]]]:
        for number, matrix in enumerate(self._matrices(name)):
            rows, columns = matrix.shape
            step = max(1, CHUNK // columns)
            parts = (gguf_file.rows_of(name, matrix, first, min(first + step, rows)) for first in range(0, rows, step))
            for _, values in gguf_file.read_tensors(((name, each) for each in parts), fp32=True):
                yield (name, number), values.float().numpy()

    def place_of(self, part: GgufTensor) -> Place | None:
        """The matrix that begins at a part's first byte."""
        return self._places.get((part.path, part.offset))

    @cached_property
    def _places(self) -> dict[tuple[Path, int], Place]:
        return {
            (matrix.path, matrix.offset): (name, number)
            for name, tensor in self._header.tensors.items()
            if len(tensor.shape) > 1
            for number, matrix in enumerate(self._matrices(name))
        }

    def _matrices(self, name: str) -> list[GgufTensor]:
        """A tensor itself, or those of its experts."""
        tensor = self._header.tensors[name]
        if len(tensor.shape) < 3:
            return [tensor]
        parts = (gguf_file.rows_of(name, tensor, each, each + 1) for each in range(tensor.shape[0]))
        return [GgufTensor(part.path, part.shape[1:], part.type, part.offset) for part in parts]

    def raw(self, name: str) -> Iterator[NDArray[np.uint8]]:
        tensor = self._header.tensors[name]
        size = gguf_file.stored_bytes(name, tensor)
        with open(tensor.path, "rb", buffering=0) as file:
            for offset in range(0, size, CHUNK):
                content = np.empty(min(CHUNK, size - offset), np.uint8)
                gguf_file.read_into(file, tensor.offset + offset, content)
                yield content


def _most(value: Any) -> int:
    return max(value) if isinstance(value, list) else value


# model_type → general.architecture, of families whose tensors only have other names, and rows of q and k another order.
FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# Splitting rules that tokenizers of these families have, the most special ones first: those before it would do as well.
_RULES = ("llama-bpe", "qwen2", "smollm", "tekken", "gpt-2")
_PROBE = (
    "Hello, world! It's 12345 o'clock — 3.14159 or 007?\n\n    def f(x):\n\treturn x**2  # ünïcödé 中文字 日本語 한국어"
    "\ncamelCase HTTPServer don't WE'LL   spaces\r\n\r\nemoji 😀 e\u0301 ½ ²³ ١٢٣ x_y-z.w/v\\u (a) [b] {c} <d> $5.00"
    " 100%  \n"
)


@dataclass
class FolderSource:
    """A Hugging Face folder whose tokenizer is byte-level BPE."""

    checkpoint: Checkpoint
    tokenizer: Any
    tensors: dict[str, SourceTensor] = field(init=False)
    facts: MixFacts = field(init=False)

    def __post_init__(self) -> None:
        import gguf

        model_type = self.checkpoint.config["model_type"]
        if model_type not in FAMILIES:
            raise IpexAssistError(
                f"{self.checkpoint.source}: GGUF files of {model_type} are written from GGUF files alone: pass one of "
                f"this model in F16, BF16 or Q8_0. From folders: {', '.join(FAMILIES)}"
            )
        config = Config(self.checkpoint.config)
        self._arch, layers = FAMILIES[model_type], config.integer("num_hidden_layers")
        heads = config.integer("num_attention_heads")
        keys = config.integer("num_key_value_heads", heads)
        self._heads = {".q_proj.": heads, ".k_proj.": keys}
        key = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self._arch)
        names = gguf.get_tensor_name_map(key, layers)
        self._names: dict[str, str] = {}
        for theirs in self.checkpoint.shapes():
            ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            if ours is not None:
                self._names[ours] = theirs
            elif not theirs.endswith("rotary_emb.inv_freq"):
                raise IpexAssistError(f"{self.checkpoint.source}: {theirs} has no name in GGUF files of {self._arch}")
        spec = self.checkpoint.decoder_spec()
        if spec.tied_head:
            self._names.pop("output.weight", None)
        shapes = self.checkpoint.shapes()
        self.tensors = {ours: SourceTensor(shapes[theirs], F32) for ours, theirs in self._names.items()}
        self.facts = MixFacts(layers, heads // max(keys, 1), 0, spec.tied_head)
        self._factors = _llama3_factors(self.checkpoint.config, config.integer("head_dim", spec.hidden_size // heads))
        if self._factors is not None:
            self.tensors["rope_freqs.weight"] = SourceTensor(self._factors.shape, F32)

    def entries(self) -> list[bytes]:
        config, arch = Config(self.checkpoint.config), self._arch
        heads = self._heads[".q_proj."]
        head_dim = config.integer("head_dim", config.integer("hidden_size") // heads)
        values = {
            "general.architecture": arch,
            "general.type": "model",
            "general.name": self.checkpoint.source.rstrip("/").rpartition("/")[2],
            f"{arch}.context_length": config.integer("max_position_embeddings"),
            f"{arch}.embedding_length": config.integer("hidden_size"),
            f"{arch}.block_count": self.facts.layers,
            f"{arch}.feed_forward_length": config.integer("intermediate_size"),
            f"{arch}.attention.head_count": heads,
            f"{arch}.attention.head_count_kv": self._heads[".k_proj."],
            f"{arch}.attention.layer_norm_rms_epsilon": float(config.number("rms_norm_eps", 1e-6)),
            f"{arch}.rope.freq_base": float(_rope_theta(self.checkpoint.config)),
            f"{arch}.rope.dimension_count": head_dim,
            f"{arch}.attention.key_length": head_dim,
            f"{arch}.attention.value_length": head_dim,
            f"{arch}.vocab_size": config.integer("vocab_size"),
            **_scaling(self.checkpoint, arch),
            **tokenizer_metadata(self.checkpoint, self.tokenizer, config.integer("vocab_size")),
        }
        return [entry(key, value) for key, value in values.items()]

    def names_of(self, *theirs: str) -> list[str]:
        """GGUF's names of tensors of the checkpoint."""
        return [name for name, stored in self._names.items() if stored in theirs]

    def rows(self, name: str) -> Iterator[tuple[Place, NDArray[np.float32]]]:
        values = self._values(name)
        step = max(1, CHUNK // values.shape[-1])
        for first in range(0, len(values), step):
            yield (name, 0), values[first : first + step]

    def raw(self, name: str) -> Iterator[NDArray[np.uint8]]:
        yield self._values(name).view(np.uint8).reshape(-1)

    def _values(self, name: str) -> NDArray[np.float32]:
        if name == "rope_freqs.weight" and self._factors is not None:
            return self._factors
        theirs = self._names[name]
        [(_, tensor)] = self.checkpoint.tensors([theirs])
        values = np.ascontiguousarray(tensor.float().numpy())
        heads = next((count for part, count in self._heads.items() if part in theirs), None)
        if heads is None or self._arch != "llama":
            return values
        halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _rope_theta(config: Any) -> float:
    parameters = config.get("rope_parameters") or {}
    return float(config.get("rope_theta") or parameters.get("rope_theta") or 10000.0)


def _rope(config: Any) -> dict[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return found if isinstance(found, dict) else {}


def _scaling(checkpoint: Checkpoint, arch: str) -> dict[str, Any]:
    scaling = _rope(checkpoint.config)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind in ("default", "llama3"):
        return {}
    if kind not in ("linear", "yarn"):
        raise IpexAssistError(f"{checkpoint.source}: rope scaling {kind!r} is not written into GGUF files")
    found = {f"{arch}.rope.scaling.type": kind, f"{arch}.rope.scaling.factor": float(scaling["factor"])}
    if length := scaling.get("original_max_position_embeddings"):
        found[f"{arch}.rope.scaling.original_context_length"] = int(length)
    return found


def _llama3_factors(config: Any, head_dim: int) -> NDArray[np.float32] | None:
    """Divisors of the rotary frequencies of Llama 3.x (transformers' _compute_llama3_parameters), or None."""
    scaling = _rope(config)
    if (scaling.get("rope_type") or scaling.get("type")) != "llama3":
        return None
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * np.pi * _rope_theta(config) ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def tokenizer_metadata(checkpoint: Checkpoint, tokenizer: Any, rows: int) -> dict[str, Any]:
    """tokenizer.ggml of a byte-level BPE tokenizer, padded to `rows`; IpexAssistError for any other.

    Which splitting rule it has is found by trying: the file's tokenizer must give the same tokens.
    """
    import json

    from ipex_assist.tokenization.gguf_tokenizer import tokenizer_from

    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model, added = content["model"], content.get("added_tokens") or []
    if model.get("type") != "BPE" or not model.get("merges") or model.get("byte_fallback"):
        raise IpexAssistError(
            f"{checkpoint.source}: its tokenizer is no byte-level BPE, which is all that is written into GGUF files "
            "from folders: pass a GGUF file of this model in F16, BF16 or Q8_0"
        )
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    kinds = {each["id"]: 3 if each["special"] else 4 for each in added}
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(max(rows, len(by_id)))]
    types = [kinds.get(index, 1 if index in by_id else 5) for index in range(len(tokens))]
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    found: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id],
    }
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "padding": tokenizer.pad_token_id}
    found |= {f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items() if index is not None}
    if isinstance(tokenizer.chat_template, str):
        found["tokenizer.chat_template"] = tokenizer.chat_template
    expected = tokenizer(_PROBE)["input_ids"]
    for rule in _RULES:
        header = _Words(checkpoint.path, found | {"tokenizer.ggml.pre": rule})
        if tokenizer_from(header)(_PROBE)["input_ids"] == expected:
            return found | {"tokenizer.ggml.pre": rule}
    raise IpexAssistError(
        f"{checkpoint.source}: its tokenizer splits texts by none of the rules {', '.join(_RULES)}: pass a GGUF file "
        "of this model in F16, BF16 or Q8_0"
    )


class _Words(GgufHeader):
    """Metadata that were never in a file."""

    def strings(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        return value if isinstance(value, list) else []
