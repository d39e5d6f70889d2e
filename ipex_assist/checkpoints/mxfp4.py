"""Checkpoints whose experts are in MXFP4, as OpenAI stores gpt-oss: 4-bit floats, 32 of which share a power of two.

`tensors` presents them as a checkpoint of floats: "…experts.gate_up_proj" is (experts, in, out) in bf16, which holds
each value exactly (2 significant bits and a power of two). Loading uses `stream` instead, and decodes one expert at a
time. Format: Open Compute Project, Microscaling Formats 1.0 (E2M1 with scales E8M0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.base import Checkpoint, RowReader
from ipex_assist.checkpoints.folder import FolderCheckpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.weights import NotFiniteError

if TYPE_CHECKING:
    import torch

BLOCK = 32  # input columns that share a scale
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the lower 3 bits; the highest bit is the sign
MOST_SCALE = 252  # 6 · 2^(252-127) is the largest product below 2^128; 255 is NaN
_PARTS = ("_blocks", "_scales")


@dataclass
class Mxfp4Stack:
    """One matrix of every expert of a layer; indexing by expert decodes it as bf16 (in, out)."""

    blocks: torch.Tensor  # uint8 (experts, out, in / 32, 16): two values in a byte, the first in the lower 4 bits
    scales: torch.Tensor  # uint8 (experts, out, in / 32): exponents of 2, plus 127
    # The last expert decoded: gate and up are parts of one matrix, and asked for one after the other.
    _last: tuple[int, torch.Tensor] | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the decoded matrices, (experts, in, out)."""
        experts, columns, groups = self.scales.shape
        return experts, groups * BLOCK, columns

    def __getitem__(self, expert: int) -> torch.Tensor:
        if self._last is None or self._last[0] != expert:
            self._last = expert, decode(self.blocks[expert], self.scales[expert])
        return self._last[1].t()

    def floats(self) -> torch.Tensor:
        """All experts decoded, bf16 (experts, in, out)."""
        import torch

        return torch.stack([self[expert] for expert in range(self.shape[0])])


def decode(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Decode blocks (out, in / 32, 16) and scales (out, in / 32) to a bf16 matrix (out, in), exactly."""
    import torch

    pairs, powers = _tables()
    values = pairs.index_select(0, blocks.reshape(-1).int()).view(torch.bfloat16)
    factors = powers.index_select(0, scales.reshape(-1).int())
    return values.view(-1, BLOCK).mul_(factors[:, None]).view(scales.shape[0], -1)


@cache
def _tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Lookup tables: the two values of a byte, as the bits of two bf16 in an int32; the power of two of a scale."""
    import torch

    values = torch.tensor([sign * value for sign in (1.0, -1.0) for value in VALUES])
    byte = torch.arange(256)
    pairs = torch.stack((values[byte & 15], values[byte >> 4]), 1).bfloat16()
    return pairs.view(torch.int32).flatten(), torch.exp2(byte.double() - 127).bfloat16()


class Mxfp4Checkpoint(Checkpoint):
    """A folder with experts in MXFP4. Faults in them are reported when the weights are first needed."""

    def __init__(self, stored: FolderCheckpoint) -> None:
        self.source, self.path = stored.source, stored.path
        self.config, self.generation_config = stored.config, stored.generation_config
        self.files = stored.files
        self._stored = stored

    @cached_property
    def stacks(self) -> dict[str, tuple[int, int, int]]:
        """The shapes (experts, in, out) of the MXFP4 stacks by name. Raises IpexAssistError where parts do not fit."""
        shapes = self._stored.shapes()
        found = {}
        for name in [name.removesuffix("_blocks") for name in shapes if name.endswith("_blocks")]:
            blocks, scales = shapes[name + "_blocks"], shapes.get(name + "_scales")
            if scales is None:
                raise self._unsupported(f"{name}_blocks is there, and {name}_scales is not")
            if len(scales) != 3 or blocks != (*scales, BLOCK // 2):
                raise self._unsupported(f"{name}_blocks and {name}_scales have the shapes {blocks} and {scales}")
            found[name] = scales[0], scales[2] * BLOCK, scales[1]
        return found

    def _unsupported(self, what: str) -> IpexAssistError:
        return IpexAssistError(
            f"{self.source}: its MXFP4 cannot be read: {what[:300]}. We read stacks of experts, in blocks of 32, as "
            "openai/gpt-oss-20b has them. Take such a checkpoint, or one in bf16"
        )

    @property
    def stored_precision(self) -> str | None:
        return "mxfp4" if self.stacks else None

    def weight_files(self) -> list[Path]:
        return self._stored.weight_files()

    @property
    def parameter_bytes(self) -> int:
        values = sum(experts * width * columns for experts, width, columns in self.stacks.values())
        return self._stored.parameter_bytes - values // 2 - values // BLOCK + 2 * values

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._stored.shapes().items():
            stack = name[: -len(_PARTS[0])] if name.endswith(_PARTS) else name
            shapes[stack if stack in self.stacks else name] = self.stacks.get(stack, shape)
        return shapes

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.stream(self.shapes() if names is None else names):
            yield name, weight.floats() if isinstance(weight, Mxfp4Stack) else weight
            del weight

    def stream(self, names: Iterable[str], precision: str = "bf16") -> Iterator[tuple[str, torch.Tensor | Mxfp4Stack]]:
        wanted = list(names)
        raw = [part for name in wanted for part in self._parts(name)]
        tensors = self._stored.tensors(raw)
        for name in wanted:
            parts = [next(tensors)[1] for _ in self._parts(name)]
            yield name, self._stack(name, *parts) if name in self.stacks else parts[0]
            del parts

    def bare_type(self, name: str) -> str | None:
        return None if name in self.stacks else self._stored.bare_type(name)

    def row_reader(self, name: str, precision: str = "bf16") -> RowReader | None:
        return None if name in self.stacks else self._stored.row_reader(name, precision)

    def _parts(self, name: str) -> tuple[str, ...]:
        return tuple(name + part for part in _PARTS) if name in self.stacks else (name,)

    def _stack(self, name: str, blocks: torch.Tensor, scales: torch.Tensor) -> Mxfp4Stack:
        import torch

        if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise self._unsupported(f"the parts of {name} are {blocks.dtype} and {scales.dtype}")
        if scales.numel() and int(scales.max()) > MOST_SCALE:
            expert, row, group = (scales > MOST_SCALE).nonzero()[0].tolist()
            what = "NaN" if scales[expert, row, group] == 255 else "infinity"
            raise NotFiniteError(name, f"{what} in row {row}, column {group * BLOCK} of expert {expert}")
        return Mxfp4Stack(blocks, scales)
