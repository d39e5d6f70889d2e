"""Finds, by trying it on this machine, which row counts give a row the same bits.

The first layer and the head are run over the same rows in passes of different sizes, with different neighbours, at
different offsets in the pass and with different numbers of masked keys. All layers have the same shapes, so a result
for one holds for all. A different order of summation shows at once: it changes the last bit of some of the thousands
of intermediate values, and each of those changes many outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ipex_assist.executors.torch.kernels import Kernels
from ipex_assist.executors.torch.mixers.recurrent import mixer_rows
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.executors.torch.row_plan import RowPlan
from ipex_assist.executors.torch.streams import read_streams
from ipex_assist.executors.torch.weights import Weights
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.spec import DecoderSpec

ROWS = 24
OFFSETS = (0, 1, 3, 6)
STARTS = (116, 500, 1012)  # first positions: 24 rows from each cross the end of a block of 128 or 512 keys
ANCHORS = (8, 16, 4)  # the row count that others are compared with: the first that agrees with itself

# One row in each pass: exact by construction, but then verifying a draft costs a pass for each token.
ROW_BY_ROW = RowPlan((1,), 512)


@torch.inference_mode()
def find_plan(spec: DecoderSpec, weights: Weights, kernels: Kernels, kv_precision: str | None = None) -> RowPlan:
    """The plan with the most row counts that give equal bits; of equal ones, the plan with the smaller key block."""
    trials = (_Trial(spec, weights, kernels, block, kv_precision) for block in (128, 512))
    plans = [plan for plan in map(_plan, trials) if plan]
    return max(plans, key=lambda plan: len(plan.sizes), default=ROW_BY_ROW)


def unchecked_plan(kernels: Kernels) -> RowPlan:
    """A plan that was not checked, for a draft model: every token it drafts is verified by the target anyway."""
    return RowPlan(kernels.row_sizes, 128)


def _plan(trial: _Trial) -> RowPlan | None:
    for anchor in ANCHORS:
        reference = trial.reference(anchor)
        sizes = [size for size in trial.plan.sizes if trial.agrees(size, reference)]
        if anchor in sizes:
            return RowPlan(tuple(sizes), trial.plan.key_block)
    return None


class _Trial:
    """A layer of each shape and the head over ROWS fixed rows, at each of STARTS."""

    def __init__(
        self, spec: DecoderSpec, weights: Weights, kernels: Kernels, key_block: int, kv_precision: str | None
    ) -> None:
        self.plan = RowPlan(kernels.row_sizes, key_block)
        self.model = TorchModel(spec, weights, kernels, self.plan, kv_precision)
        self.layers, self.dtype = _shapes(spec), kernels.dtype
        random = torch.Generator().manual_seed(0)
        rows = self.plan.key_length(STARTS[-1] + ROWS + self.plan.sizes[-1])
        self.cache = self.model.new_cache(rows, layers=self.layers[-1] + 1)
        for index in self.layers:
            if spec.layers[index].recurrent is not None:
                continue
            kv_layer = spec.layers[index].attention.kv_layer
            kv_layer = index if kv_layer is None else kv_layer
            attention = spec.layers[kv_layer].attention
            keys, values = (
                torch.randn((rows, attention.kv_heads, width), generator=random)
                for width in (attention.head_dim, attention.value_width)
            )
            self.cache.write(kv_layer, 0, keys, values)
        if self.model.rotary is not None:
            self.model.rotary.reach(rows)
        self.tokens = torch.randint(spec.vocab_size, (ROWS,), generator=random)
        self.rows = self.model.embed(self.tokens, 0)

    def reference(self, size: int) -> dict[int, torch.Tensor]:
        """Outputs of all rows in passes of `size` rows, by first position; -1 holds the head's."""
        outputs = {start: self._in_passes(size, partial(self._layer, start)) for start in STARTS}
        self.head_input = outputs[STARTS[0]]
        outputs[-1] = self._in_passes(size, lambda _, rows: self.model.head(rows), self.head_input)
        return outputs

    def agrees(self, size: int, reference: dict[int, torch.Tensor]) -> bool:
        """Whether passes of `size` rows give the reference's bits, at every offset where a pass may begin."""
        offsets = [offset for offset in OFFSETS if offset + size <= ROWS]
        for offset in offsets:
            here = slice(offset, offset + size)
            if not torch.equal(self.model.head(self.head_input[here].contiguous()), reference[-1][here]):
                return False
            for start in STARTS:
                if not torch.equal(self._layer(start, offset, self.rows[here].contiguous()), reference[start][here]):
                    return False
        return True

    def _in_passes(
        self,
        size: int,
        run: Callable[[int, torch.Tensor], torch.Tensor],
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = self.rows if rows is None else rows
        outputs = []
        for offset in range(0, ROWS, size):
            chunk = rows[offset : offset + size]
            chunk = torch.cat((chunk, chunk[-1:].expand(size - len(chunk), -1)))
            outputs.append(run(offset, chunk))
        return torch.cat(outputs)[:ROWS]

    def _layer(self, start: int, offset: int, rows: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens[torch.arange(offset, offset + len(rows)).clamp(max=ROWS - 1)]
        inputs, self.model.tokens = self.model.per_layer_inputs(tokens, rows), tokens
        for index in self.layers:
            if (recurrent := self.model.spec.layers[index].recurrent) is not None:
                if recurrent.hashes is not None:
                    made = self.model.weights.layers[index].qkv(rows[:, : recurrent.gate_rank].contiguous())
                    rows = rows + made[:, : rows.shape[1]]
                    continue
                # What a row gets from its state depends on the rows before it: its linears are what may differ.
                layer = self.model.weights.layers[index]
                read = read_streams(self.model.spec, rows, layer.streams.get("attention_hc"))
                made = mixer_rows(recurrent, layer, read, self.model.spec.norm_eps, lambda values: values)
                made = made[:, : recurrent.value_size] + made[:, -recurrent.value_size :]
                mixed = layer.o_proj(made)
                rows = self.model.after_mixer(rows, rows, index, mixed, inputs)
                continue
            attention = self.model.spec.layers[index].attention
            metadata = self.model.attention_metadata(start + offset, len(rows), attention, True)
            read = rows.repeat(1, 2) if self.model.spec.layers[index].aside else rows
            rows = self.model.layer(rows, index, self.cache, metadata, per_layer=inputs, read=read)
        return rows


def _shapes(spec: DecoderSpec) -> list[int]:
    """The first layer of each shape of matrices."""
    first: dict[object, int] = {}
    for index, layer in enumerate(spec.layers):
        mixer = layer.mixer
        if isinstance(mixer, AttentionSpec):
            sizes = mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.v_head_dim, mixer.qkv_size
            shape: object = (*sizes, mixer.latent)
        else:
            shape = mixer
        first.setdefault((shape, layer.mlp), index)
    return list(first.values())
