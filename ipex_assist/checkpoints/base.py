"""The interface of checkpoints of every format: config, tensor names, shapes, and tensors one at a time."""

from __future__ import annotations

import json
import logging
import math
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import ARCHITECTURES, architecture_of, find
from ipex_assist.models.config import ConfigError, NotComputed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source, check_stored, resolve, stored_form

if TYPE_CHECKING:
    import torch

    from ipex_assist.checkpoints.safetensors_file import StoredTensor

log = logging.getLogger("ipex_assist")

RowReader = Callable[[int, int], "torch.Tensor"]  # rows [first, last) of a tensor, as a matrix of its last dimension

_MAX_JSON_BYTES = 64 << 20
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


class Checkpoint(ABC):
    """A stored model. `config` and `generation_config` have Hugging Face's keys, whatever the format.

    source: the name that the user gave; path: the local folder or file.
    """

    source: str
    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    own_head: bool | None = None  # whether a head is stored that is not the embedding; None until it is asked for
    _read_spec: tuple[dict[str, Any], DecoderSpec] | None = None  # of which config, as another may take its place

    @property
    def architecture(self) -> str:
        """Its first in the config's `architectures`, or "" where it names none."""
        return architecture_of(self.config)

    def config_spec(self) -> DecoderSpec:
        """The DecoderSpec of this model's config, without a look at its tensors.

        Raises:
            NotComputed: the model needs something our decoder does not have; the message says what.
            IpexAssistError: a value of its config is impossible.
        """
        if self._read_spec is None or self._read_spec[0] is not self.config:
            self._read_spec = self.config, self._spec_of_config()
        return self._read_spec[1]

    def _spec_of_config(self) -> DecoderSpec:
        architecture = find(self.architecture)
        if architecture is None:
            name = self.architecture or "a model without architectures in its config"
            raise NotComputed(f"{name} is none of {', '.join(sorted(ARCHITECTURES))}")
        try:
            return architecture.spec(self.config)
        except ConfigError as error:
            raise IpexAssistError(f"{self.source}: {error}. Download it again, or mend its config.json") from error

    def decoder_spec(self) -> DecoderSpec:
        """The DecoderSpec of this model, which our executors run: as `config_spec`, but with the parts that are stored.

        For .bin files that needs torch.
        """
        spec, architecture = self.config_spec(), find(self.architecture)
        if architecture is not None and architecture.stored is not None:
            spec = architecture.stored(spec, self.names())
        if architecture is not None and architecture.learned is not None:
            spec = architecture.learned(spec, self.numbers)
        if not spec.tied_head:
            return spec
        assert architecture is not None
        untied = replace(spec, tied_head=False)
        if self.own_head is None:
            self.own_head = self._has_own_head(architecture.weights(untied))
        return untied if self.own_head else spec

    def numbers(self, names: Sequence[str]) -> list[float]:
        """Those of the first of these tensors that is stored. Raises IpexAssistError where none is."""
        present = self.names()
        name = next((name for name in names if name in present), None)
        if name is None:
            raise IpexAssistError(f"{self.source}: the checkpoint lacks {names[0]}. Is the download complete?")
        ((_, tensor),) = self.tensors([name])
        return [float(number) for number in tensor.flatten().tolist()]

    def _has_own_head(self, sources: Mapping[str, Source]) -> bool:
        """Whether a head beside the embedding has other values, whatever the config says; .bin files have both."""
        shapes = self.shapes()
        sources = stored_form(sources, shapes)
        table, head = (
            next((name for name in (source.name, *source.alternatives) if name in shapes), None)
            for source in (sources["embed_tokens.weight"], sources["lm_head.weight"])
        )
        if table is None or head is None or table == head or self.is_equal(table, head):
            return False
        log.info("%s: its config says that head and embedding are one; both are stored, and differ: kept", self.source)
        return True

    def is_equal(self, first: str, second: str) -> bool:
        """Whether two stored tensors have the same shape, type and values."""
        import torch

        (_, one), (_, other) = self.tensors([first, second])
        return one.dtype == other.dtype and torch.equal(one, other)

    def check_weights(self) -> None:
        """Raise IpexAssistError where the stored tensors are not those the config asks for. Reads headers only."""
        spec, architecture = self.decoder_spec(), find(self.architecture)
        assert architecture is not None
        shapes = self.shapes()
        sources = stored_form(architecture.weights(spec), shapes)
        try:
            check_stored(spec, sources, shapes)
        except IpexAssistError as error:
            raise IpexAssistError(f"{self.source}: {error}") from error
        wanted = resolve(sources, shapes)
        self.refuse_bare_numbers(name for name in wanted if not any(sources[ours].whole for ours in wanted[name]))

    def refuse_bare_numbers(self, wanted: Iterable[str]) -> None:
        """Raise IpexAssistError for weights in integers, or FP8 beside a scale, that nothing says how to scale."""
        found = {name: kind for name in wanted if (kind := self.bare_type(name)) is not None}
        if found:
            name, kind = next(iter(found.items()))
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise IpexAssistError(
                f"{self.source}: {name} ({kind}){more} cannot be read: its numbers are not weights but have to be "
                "scaled, and no quantization_config in config.json says how. Take the original checkpoint, or one "
                "whose config.json has its quantization_config"
            )

    def bare_type(self, name: str) -> str | None:
        """The type of a stored tensor whose numbers have to be scaled to be weights; None where they are weights."""
        return None

    def why_not_ours(self) -> str | None:
        """Why our executors cannot run this model, so that transformers must; None where they can.

        Raises IpexAssistError where a value of its config is impossible.
        """
        try:
            self.config_spec()
        except NotComputed as error:
            return str(error)
        return None

    def names(self) -> list[str]:
        """Hugging Face names of the stored tensors, in the order of `tensors()`."""
        return list(self.shapes())

    @property
    def stored_precision(self) -> str | None:
        """The precision of the native core that keeps the linears as they are stored; None where they are floats."""
        return None

    @property
    def num_parameters(self) -> int:
        """How many elements are stored, by the headers (for .bin: by file sizes and the config's dtype)."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    @abstractmethod
    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""

    @property
    @abstractmethod
    def parameter_bytes(self) -> int:
        """Bytes of all tensors as `tensors()` yields them, by the headers."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, dimensions in PyTorch's order. Reads headers only (for .bin that needs torch)."""

    @abstractmethod
    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) one at a time; those of `names` in that order, else all in file order.

        Memory: each tensor is read into memory of its own and belongs to the caller; besides it, at most one tensor's
        raw bytes are held (and 256 MiB of mapped pages for .bin). Stored dtypes are kept; quantized GGUF gives bf16.
        Tied weights are yielded as they are stored, absent or twice.
        """

    def stream(self, names: Iterable[str], precision: str = "bf16") -> Iterator[tuple[str, Any]]:
        """`tensors` for loading at `precision`. The experts of a layer may come as a `Mxfp4Stack` instead of a tensor.

        At "fp32" quantized GGUF is dequantized in fp32, which is exact; at any other precision in bf16.
        """
        return self.tensors(names)

    def stored_floats(self, name: str) -> StoredTensor | None:
        """Where a tensor of 16- or 32-bit floats lies in a file as it is, for who reads it there; else None."""
        return None

    def row_reader(self, name: str, precision: str = "bf16") -> RowReader | None:
        """What reads rows of a tensor of `stream` by themselves, those of all its matrices one after the other; None
        where the tensor is read whole.
        """
        return None

    def dequantized_to(self, precision: str) -> str | None:
        """The dtype that `stream` dequantizes to, None for the usual bf16: a part of a packed copy's name."""
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file.

    Raises:
        IpexAssistError: the file holds no JSON object, or is larger than any such file of a model.
    """
    if not path.exists():
        return None
    require_file(path)
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise IpexAssistError(f"{path} has {path.stat().st_size:,} bytes, which no such file has. Download it again.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise IpexAssistError(f"{path} is nested too deep to be read. Download it again.") from error
    except ValueError as error:
        raise IpexAssistError(f"{path} is no valid JSON ({error}). Download it again.") from error
    if not isinstance(content, dict):
        raise IpexAssistError(f"{path} holds a {type(content).__name__}, not an object. Download it again.")
    return content


def require_file(path: Path) -> None:
    """Raise IpexAssistError where `path` is a folder, a pipe or a device: opening a pipe can block for ever."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "device or socket"
        raise IpexAssistError(f"{path} is a {kind}, not a file. Download the model again.")


def dtype_bytes(config: dict[str, Any]) -> int:
    """Bytes of a stored element by the config ("torch_dtype"; "dtype" since transformers 4.56); 4 if it has neither."""
    return _DTYPE_BYTES.get(str(config.get("torch_dtype") or config.get("dtype")).removeprefix("torch."), 4)
