"""Checkpoints of families whose matrices are sums of a tensor and the product of two others (models: `products`).

They are computed in fp32 as they are read, for each layer by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.base import Checkpoint, RowReader
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import find
from ipex_assist.models.weights import Product

if TYPE_CHECKING:
    import torch

    from ipex_assist.checkpoints.safetensors_file import StoredTensor


def with_products(stored: Checkpoint) -> Checkpoint:
    """The checkpoint, or one that has the matrices which its architecture makes of several tensors beside these."""
    architecture = find(stored.architecture)
    return stored if architecture is None or architecture.products is None else ProductCheckpoint(stored)


class ProductCheckpoint(Checkpoint):
    """A checkpoint with products beside its tensors."""

    def __init__(self, stored: Checkpoint) -> None:
        self.source, self.path = stored.source, stored.path
        self.config, self.generation_config = stored.config, stored.generation_config
        self._stored = stored

    @cached_property
    def _products(self) -> dict[str, Product]:
        architecture = find(self.architecture)
        assert architecture is not None
        assert architecture.products is not None
        return architecture.products(self.config_spec(), self.config, self._stored.names())

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = self._stored.shapes()
        return {**shapes, **{name: self._shape(name, shapes) for name in self._products}}

    def _shape(self, name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
        product = self._products[name]
        for part in (product.base, product.up, product.down):
            if part not in shapes:
                raise IpexAssistError(f"{self.source} lacks {part}. Is the download complete?")
        base, up, down = (shapes[part] for part in (product.base, product.up, product.down))
        if len(base) != 2 or len(up) != 2 or len(down) != 2 or up[1] != down[0] or base != (up[0], down[1]):
            raise IpexAssistError(
                f"{self.source}: {product.base} of the shape {base} gets a product of the shapes {up} and {down}: they "
                "do not belong together"
            )
        return base

    @property
    def num_parameters(self) -> int:
        return self._stored.num_parameters

    @property
    def parameter_bytes(self) -> int:
        return self._stored.parameter_bytes

    def weight_files(self) -> list[Path]:
        return self._stored.weight_files()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        wanted = self._shapes if names is None else names
        for name in wanted:
            product = self._products.get(name)
            if product is None:
                yield from self._stored.tensors([name])
                continue
            base, up, down = (tensor for _, tensor in self._stored.tensors([product.base, product.up, product.down]))
            yield name, base.float().addmm(up.float(), down.float())
            del base, up, down

    def stored_floats(self, name: str) -> StoredTensor | None:
        return None if name in self._products else self._stored.stored_floats(name)

    def bare_type(self, name: str) -> str | None:
        product = self._products.get(name)
        if product is None:
            return self._stored.bare_type(name)
        return self._stored.bare_type(product.base)

    def row_reader(self, name: str, precision: str = "bf16") -> RowReader | None:
        product = self._products.get(name)
        if product is None:
            return self._stored.row_reader(name, precision)
        read = self._stored.row_reader(product.base, precision)
        if read is None:
            return None
        up, down = (tensor.float() for _, tensor in self._stored.tensors([product.up, product.down]))
        return lambda first, last: read(first, last).float().addmm(up[first:last], down)
