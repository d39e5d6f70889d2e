"""Packs what a GGUF file has in blocks as it is: the core's threads read the rows that they pack from the file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.executors.native.files_ahead import FilesAhead
from ipex_assist.executors.native.float_weights import pack_floats
from ipex_assist.executors.native.resident import check_experts, check_least, is_expert
from ipex_assist.executors.tensor_stream import packing_phase
from ipex_assist.models.weights import NotFiniteError, resolve
from ipex_assist.native.model import PackedModel

if TYPE_CHECKING:
    from ipex_assist.checkpoints.gguf import GgufCheckpoint
    from ipex_assist.checkpoints.gguf_blocks import RowsInFile
    from ipex_assist.models import Source
    from ipex_assist.models.spec import DecoderSpec
    from ipex_assist.native.library import Pool

log = logging.getLogger("ipex_assist")


class BlockModel:
    """A model of the core with the formats of a file, and where the rows lie that it keeps as they are."""

    def __init__(
        self,
        checkpoint: GgufCheckpoint,
        spec: DecoderSpec,
        sources: dict[str, Source],
        pool: Pool,
        resident: int | None = None,
    ) -> None:
        """resident: bytes of weights in memory at most; None: all.

        Raises UsageError where there is no such way to run it.
        """
        self._checkpoint, self._sources = checkpoint, sources
        formats = checkpoint.block_formats(spec, sources)
        found = {ours: checkpoint.block_rows(spec, ours, sources[ours]) for ours in formats}
        formats = {ours: formats[ours] for ours, rows in found.items() if rows is not None}
        self.model = PackedModel(spec, "stored", pool, formats=formats, resident=resident or 0)
        # Parts of one linear take the same rows, so that one in floats makes all of them bf16.
        kept = {ours for ours, number in formats.items() if self.model.format_of(ours) == number}
        self._rows: dict[str, RowsInFile] = {
            ours: rows for ours, rows in found.items() if rows is not None and ours in kept
        }
        if resident is not None:
            check_experts(checkpoint.source, sources, self._rows, pool)
            check_least(checkpoint.source, self.model, resident)
        if rounded := len(found) - len(self._rows):
            log.warning(
                "%s: %d matrices become bf16 here: they are not multiplied row by row as the file has them, or with "
                "others that are in floats; the first is %s",
                *(short_name(checkpoint.source), rounded, next(ours for ours in found if ours not in self._rows)),
            )

    def pack(self) -> None:
        """Fill the model's image. Raises NotFiniteError for a weight or scale that is NaN or infinite."""
        model, names = self.model, {ours: name for name, each in self._wanted().items() for ours in each}
        model.allocate()
        parts = dict(sorted(self._rows.items(), key=lambda item: (item[1].path, item[1].offset)))
        # Of these the core learns where they are, and reads them when they are needed.
        later = {ours for ours in parts if model.reads_experts and is_expert(ours)}
        with (
            packing_phase(self._checkpoint, {names[ours] for ours in parts}, model.precision) as packed,
            FilesAhead([rows for ours, rows in parts.items() if ours not in later]) as files,
        ):
            for ours, rows in parts.items():
                try:
                    file = files.file(rows.path) if ours in later else files.begin(rows)
                    model.pack_blocks(ours, file, rows.rows, rows.columns)
                except NotFiniteError as error:
                    raise NotFiniteError(names[ours], error.where) from None
                packed(names[ours])
        rest = {ours: source for ours, source in self._sources.items() if ours not in self._rows}
        pack_floats(model, self._checkpoint, rest, allocated=True)

    def _wanted(self) -> dict[str, list[str]]:
        return resolve(self._sources, self._checkpoint.names())
