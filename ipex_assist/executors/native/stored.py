"""Packs matrices that a checkpoint stores in 4 or 8 bits into the native core's image without rounding them again.

The core's int8 holds signed integers with a scale for each output column, its fp8 E4M3 with one for each span of 128
input columns of 16 outputs, or for each output: see native/packing/stored_bytes.cpp.

The core's int4 format holds everything that GPTQ and AWQ store, exactly: 4-bit values, zeros up to 31, scales of 19
significant bits. Act-order (GPTQ's desc_act) gives each linear a permutation of its input columns, in which groups are
consecutive; the core permutes a row before it multiplies. The permutation cannot be folded into the weights before it:
query, key, value, gate and up read the residual stream, which they share, and o_proj's would mix the heads of
attention. So each row is gathered, which takes under 1 % of a pass.
"""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections.abc import Iterable
from dataclasses import replace

import torch

from ipex_assist.checkpoints.compressed import FP8_SPAN
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.model_bytes import stored_group, stored_outer_precision
from ipex_assist.executors.native.matrix_rows import MatrixRows, matrix_rows, pack_matrix_rows
from ipex_assist.models import Source
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import (
    NotFiniteError,
    check_shape,
    head_dim_of,
    may_be_linear,
    part_of,
    resolve,
    weight_shape,
)
from ipex_assist.native.library import Pool
from ipex_assist.native.model import PackedModel
from ipex_assist.quantization.int4_weight import Int4Weight
from ipex_assist.quantization.precision import BLOCK_FORMAT, beside_experts
from ipex_assist.quantization.scaled_weight import ScaledWeight
from ipex_assist.quantization.stored_blocks import StoredWeight, row_scales, to_blocks
from ipex_assist.quantization.table_weight import TableWeight

log = logging.getLogger("ipex_assist")

IN_MEMORY = -1  # in place of a file

# Weights that the core computes as one linear, so that they share a permutation of input columns.
_OF_INPUT = ("q_proj", "k_proj", "v_proj", "g_proj", "index_q_proj", "index_k_proj")
_TOGETHER = {**dict.fromkeys(_OF_INPUT, "qkv"), "gate_proj": "up", "up_proj": "up"}


def stored_model(
    checkpoint: QuantizedCheckpoint, spec: DecoderSpec, sources: dict[str, Source], pool: Pool
) -> PackedModel:
    """An empty model of the core with the checkpoint's precision and group size, to be filled by `pack_stored`.

    Raises IpexAssistError for a permutation of input columns that the core has no place for.
    """
    latent = any(attention.latent is not None for attention in spec.attentions)
    if checkpoint.act_order and (latent or spec.recurrents):
        raise IpexAssistError(
            f"{short_name(checkpoint.source)} has act-order (desc_act), which the core does not keep with "
            f"{'latent attention' if latent else 'recurrent layers'}: --precision int8 or bf16 reads it"
        )
    if checkpoint.stored_precision == "stored":
        return PackedModel(spec, "stored", pool, formats=checkpoint.block_formats(spec, sources))
    return PackedModel(
        spec,
        checkpoint.stored_precision or "bf16",
        pool,
        stored_group(checkpoint),
        outer_precision=stored_outer_precision(checkpoint, sources),
        ordered=bool(checkpoint.act_order),
    )


def pack_stored(
    model: PackedModel,
    checkpoint: QuantizedCheckpoint,
    sources: dict[str, Source],
    weights: Iterable[tuple[str, torch.Tensor | StoredWeight | MatrixRows]],
) -> None:
    """Fill a model's image from `checkpoint.stored` and `large_floats`; floats are quantized as their linear is.

    Raises NotFiniteError for a weight that holds NaN or infinity.
    """
    wanted = resolve(sources, checkpoint.names())
    orders = _orders(checkpoint, wanted)
    model.allocate()
    if checkpoint.act_order:
        for ours in sources:
            outside = ours in ("lm_head.weight", "project_in.weight", "project_out.weight", "embed_tokens.weight")
            if outside or ours.endswith("_proj.weight"):
                _set_order(model, ours, orders.get(_linear_of(ours)))
    rounded = []
    for name, weight in weights:
        if isinstance(weight, MatrixRows):
            pack_matrix_rows(model, sources, name, wanted[name], weight)
            continue
        for ours in wanted.get(name, ()):
            order = orders.get(_linear_of(ours)) if ours.endswith(".weight") else None
            try:
                exact = _pack(model, ours, sources[ours], weight, order)
            except NotFiniteError as error:
                raise NotFiniteError(name, error.where) from None
            if not exact:
                rounded.append(name)
        del weight
    if rounded:
        log.warning(
            "%s: %d matrices are rounded to %s here: they are stored as floats, or in another "
            "order of columns than the ones they are multiplied with; the first is %s",
            short_name(checkpoint.source),
            len(rounded),
            f"4 bits in groups of {model.group}" if model.precision == "int4" else beside_experts(model.precision),
            rounded[0],
        )


def large_floats(checkpoint: QuantizedCheckpoint, sources: dict[str, Source]) -> dict[str, MatrixRows]:
    """The large matrices outside of layers that are stored as floats: the embedding, and most often the head.

    None of them has an order of columns, which only what is quantized has.
    """
    found: dict[str, MatrixRows] = {}
    for name, ours in resolve(sources, checkpoint.names()).items():
        if name not in checkpoint.modules and not any(each.startswith("layers.") for each in ours):
            matrix = matrix_rows(checkpoint, sources, name, ours, checkpoint.stored_precision or "bf16")
            found |= {} if matrix is None else {name: matrix}
    return found


def _pack(
    model: PackedModel,
    ours: str,
    source: Source,
    weight: torch.Tensor | StoredWeight,
    order: torch.Tensor | None,
) -> bool:
    """Pack one weight. False where a layer's matrix had to be rounded, from floats or from other groups."""
    dim = head_dim_of(model.spec, ours)
    if isinstance(weight, torch.Tensor):
        part = part_of(weight, source, dim)
        check_shape(model.spec, ours, tuple(part.shape))
        model.pack(ours, part if order is None else part[:, order])
        return model.precision == "stored" or not (ours.startswith("layers.") and ours.endswith("_proj.weight"))
    if ours.endswith((".router.weight", ".shared_gate.weight")):  # fp32 in the core
        model.pack(ours, part_of(weight.dequantized(), source, dim))
        return True
    if model.precision == "stored":
        return _pack_blocks(model, ours, _upright(source), weight)
    assert not isinstance(weight, TableWeight)
    if source.factor != 1:
        model.pack(ours, part_of(weight.dequantized(), _upright(source), dim))
        return False
    if source.heads_transposed:
        return _pack_transposed(model, ours, source, weight)
    if isinstance(weight, ScaledWeight):
        return _pack_scaled(model, ours, weight.rows(lambda matrix: part_of(matrix, _upright(source), dim)))
    stored = weight.rows(lambda matrix: part_of(matrix, _upright(source), dim))
    check_shape(model.spec, ours, stored.shape)
    exact = stored if order is None and stored.group_index is None else None
    if order is not None:
        exact = stored.ordered(order)
    if exact is None:
        floats = stored.dequantized()
        model.pack(ours, floats if order is None else floats[:, order])
        return False
    stored = exact.in_groups_of(model.group)
    _pack_numbers(model, ours, stored.values, stored.scales, stored.zeros)
    return True


def _pack_blocks(model: PackedModel, ours: str, source: Source, weight: StoredWeight) -> bool:
    """Pack a matrix in the blocks that it has in the core. False where it has none, as when it is one with floats."""
    dim, number = head_dim_of(model.spec, ours), model.format_of(ours) if may_be_linear(ours) else 0
    if number < BLOCK_FORMAT:
        model.pack(ours, part_of(weight.dequantized(), source, dim))
        return False
    part = weight.rows(lambda matrix: part_of(matrix, source, dim))
    check_shape(model.spec, ours, part.shape)
    try:
        blocks = to_blocks(part, number).contiguous()
    except ValueError as error:
        raise IpexAssistError(f"{ours}: {error}; is it symmetric, as config.json says? Use --precision bf16") from error
    first, scales = blocks.data_ptr(), row_scales(part, number)
    rows = array("q", range(first, first + blocks.numel(), blocks.shape[1]))
    factors = None if scales is None else array("f", scales.numpy().tobytes())
    model.pack_blocks(ours, IN_MEMORY, rows, part.shape[1], factors)
    return True


def _upright(source: Source) -> Source:
    """Quantizers always store (out, in), even where the float checkpoint stores (in, out)."""
    return replace(source, transposed=False)


def _pack_transposed(model: PackedModel, ours: str, source: Source, weight: Int4Weight | ScaledWeight) -> bool:
    """Pack heads that are transposed, without rounding where a head's rows share their scales, as in FP8's blocks."""
    upright, rows = replace(source, heads_transposed=0), source.heads_transposed
    if isinstance(weight, ScaledWeight) and weight.zeros is None and weight.group_index is None:
        part = weight.rows(lambda matrix: part_of(matrix, upright, 1))
        scales = part.scales.expand(-1, -(-part.shape[1] // part.group)).unflatten(0, (-1, rows))
        if torch.equal(scales, scales[:, :1].expand_as(scales)):
            values = part.values.unflatten(0, (-1, rows)).transpose(1, 2).flatten(0, 1)
            of_rows = scales[:, 0].repeat_interleave(part.group, 1)[:, : part.shape[1]].reshape(-1, 1)
            return _pack_scaled(model, ours, replace(part, values=values, scales=of_rows, group=rows))
    model.pack(ours, part_of(weight.dequantized(), source, 1))
    return False


def _pack_numbers(
    model: PackedModel, ours: str, values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
) -> None:
    """Pack a matrix by its stored numbers: values (columns, width), scales and zeros (columns, groups)."""
    values, scales = values.contiguous(), scales.contiguous()
    zeros = None if zeros is None else zeros.contiguous()
    columns, width = values.shape
    status = model.library.ia_model_pack_stored(
        model.handle,
        model.pool.handle,
        ours.encode(),
        values.data_ptr(),
        scales.data_ptr(),
        None if zeros is None else zeros.data_ptr(),
        scales.shape[1],
        columns,
        width,
    )
    model.check_packed(status, ours, (columns, width))


def _pack_scaled(model: PackedModel, ours: str, weight: ScaledWeight) -> bool:
    """Pack a matrix of 8-bit values. False where its scales differ within 16 outputs as fp8 cannot hold them."""
    check_shape(model.spec, ours, weight.shape)
    scales = weight.scales
    if weight.values.dtype == torch.float8_e4m3fn:
        spans = torch.arange(-(-weight.shape[1] // FP8_SPAN)) * FP8_SPAN
        scales = scales[:, spans // weight.group] if scales.shape[1] > 1 else scales.expand(-1, len(spans))
        if not _fits_blocks(scales):
            model.pack(ours, weight.dequantized())
            return False
    _pack_numbers(model, ours, weight.values, scales)
    return True


def _fits_blocks(scales: torch.Tensor) -> bool:
    """Whether of each 16 rows of scales (columns, spans) all are equal, or each has one value for all spans."""
    columns, spans = scales.shape
    last = scales[-1:].expand(-columns % 16, -1)
    blocks = torch.cat((scales, last)).view(-1, 16, spans)
    same = (blocks == blocks[:, :1]).flatten(1).all(1)
    single = (blocks == blocks[:, :, :1]).flatten(1).all(1)
    return bool((same | single).all())


def _set_order(model: PackedModel, ours: str, order: torch.Tensor | None) -> None:
    if ours == "embed_tokens.weight" and not model.spec.tied_head:
        return
    width = weight_shape(model.spec, ours)[1]
    order = (torch.arange(width) if order is None else order).to(torch.int32).contiguous()
    if order.shape != (width,):
        raise IpexAssistError(f"{ours} has an order (g_idx) of {tuple(order.shape)} for {width} columns")
    status = model.library.ia_model_set_order(model.handle, ours.encode(), ctypes.c_void_p(order.data_ptr()), width)
    model.check_packed(status, ours, tuple(order.shape))


def _linear_of(ours: str) -> str:
    """The name that parts of one linear share: "layers.3.qkv" for "layers.3.k_proj.weight"."""
    prefix, _, leaf = ours.removesuffix(".weight").rpartition(".")
    return f"{prefix}.{_TOGETHER.get(leaf, leaf)}"


def _orders(checkpoint: QuantizedCheckpoint, wanted: dict[str, list[str]]) -> dict[str, torch.Tensor]:
    """The permutation of input columns, int64 (width,), by linear: that of the linear's first act-order matrix.

    GPTQ orders columns by the squares of their inputs. Query, key and value (and gate and up) have the same inputs, so
    they have the same permutation.
    """
    orders: dict[str, torch.Tensor] = {}
    for name, index in checkpoint.act_order.items():
        for ours in wanted.get(name, ()):
            orders.setdefault(_linear_of(ours), torch.argsort(index, stable=True))
    return orders
