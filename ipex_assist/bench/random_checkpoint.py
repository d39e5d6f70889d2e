"""A checkpoint of a known model's exact shapes with random weights, made one tensor at a time as it is read."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.base import Checkpoint, RowReader
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import Source, find

if TYPE_CHECKING:
    import torch

    from ipex_assist.models.spec import DecoderSpec

PART = 1 << 20  # values


class RandomCheckpoint(Checkpoint):
    """What `load_model` reads like any other checkpoint: bf16 tensors by Hugging Face's names.

    The same source and name give the same tensor everywhere.
    """

    def __init__(self, source: str, config: dict[str, Any]) -> None:
        """`config` is of an architecture we have a spec for."""
        self.source, self.config, self.generation_config = source, config, {}
        self.path = Path(source)  # there is nothing there
        architecture = find(self.architecture)
        assert architecture is not None, self.architecture
        self.spec: DecoderSpec = architecture.spec(config)
        sources = architecture.weights(self.spec)
        self._shapes = _stored_shapes(self.spec, sources)
        self._tables = {source.name for ours, source in sources.items() if ours.endswith(".expert_table.weight")}

    @property
    def parameter_bytes(self) -> int:
        return 2 * self.num_parameters

    def weight_files(self) -> list[Path]:
        return []

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._shapes if names is None else names:
            if name not in self._shapes:
                raise IpexAssistError(f"{self.source} has no tensor {name}")
            if name in self._tables:
                yield name, self._expert_table(name)
            else:
                yield name, _random_tensor(f"{self.source} {name}", self._shapes[name], _is_norm(name))

    def _expert_table(self, name: str) -> torch.Tensor:
        """Different experts for each token, as likely each, flat."""
        import numpy
        import torch

        experts = self.spec.experts
        assert experts is not None
        generator = numpy.random.default_rng(zlib.crc32(name.encode()))
        first = generator.integers(0, experts.count, (self.spec.vocab_size, 1))
        step = experts.count // experts.per_token
        chosen = (first + step * numpy.arange(experts.per_token)) % experts.count
        return torch.from_numpy(chosen.reshape(self._shapes[name]))

    def row_reader(self, name: str, precision: str = "bf16") -> RowReader | None:
        columns = self._shapes[name][-1]

        def rows(first: int, last: int) -> torch.Tensor:
            values = _random_values(f"{self.source} {name}", first * columns, last * columns)
            return values.reshape(last - first, columns)

        return None if _is_norm(name) else rows


def _stored_shapes(spec: DecoderSpec, sources: dict[str, Source]) -> dict[str, tuple[int, ...]]:
    """Shapes by the checkpoint's names; parts that share a tensor are stacked in it."""
    from ipex_assist.models.weights import weight_shape

    shapes: dict[str, tuple[int, ...]] = {}
    for ours, source in sources.items():
        rows, *columns = weight_shape(spec, ours)
        known = shapes.get(source.name, (0,))[0 if source.expert is None else 1 :]
        known = known[::-1] if source.transposed else known
        if source.rows is not None:
            if source.flat:
                columns = [1, rows // (source.rows[1] - source.rows[0])]  # of a convolution by columns
            rows = max(source.rows[1], 0, *known[:1])
        elif source.every is not None:
            rows *= source.every[1]
        elif source.interleaved is not None:
            first, last, parts = source.interleaved
            rows = rows * parts // (last - first)
        shape = (rows, *columns)
        shape = shape[::-1] if source.transposed else shape
        shapes[source.name] = shape if source.expert is None else (source.expert + 1, *shape)
    return shapes


def _is_norm(name: str) -> bool:
    return name.endswith(".weight") and ("norm" in name or any(part in name for part in (".ln_1.", ".ln_2.", ".ln_f.")))


def _random_tensor(seed: str, shape: tuple[int, ...], norm: bool) -> torch.Tensor:
    """bf16 in (-2, -1] and [1, 2), times 2^-6; a norm's weights are ones."""
    import torch

    if norm:
        return torch.ones(shape, dtype=torch.bfloat16)
    return _random_values(seed, 0, math.prod(shape)).reshape(shape)


def _random_values(seed: str, first: int, last: int) -> torch.Tensor:
    """Values [first, last) of a tensor: sign and mantissa of 16 random bits each, under one exponent.

    About a second a gigabyte. Each span of PART values has a generator of its own, so that rows can be made alone.
    """
    import numpy
    import torch

    bits = numpy.empty(last - first, numpy.uint16)
    for part in range(first // PART, -(-last // PART)):
        start, end = max(first, part * PART), min(last, (part + 1) * PART)
        generator = numpy.random.SFC64([zlib.crc32(seed.encode()), part])
        made = generator.random_raw(-(-(end - part * PART) // 4)).view(numpy.uint16)
        bits[start - first : end - first] = made[start - part * PART : end - part * PART]
    bits &= 0x807F
    bits |= (127 - 6) << 7
    return torch.from_numpy(bits.view(numpy.int16)).view(torch.bfloat16)
